/** The ranks on one clock: how late each was in each step, who arrived when at one collective, and the path across ranks. */
import type { JSX } from "preact"
import { useEffect, useMemo, useRef, useState } from "preact/hooks"
import { formatCount, formatNs } from "../../base/format"
import { contextOf, useWidth } from "../../components/canvas"
import { go, runs, shownTheme, source, valueOf } from "../../data/state"
import type { Ranks } from "../../data/types"
import { type LateRows, lateRows, ranksOfRow } from "./late_rows"
import { RankStack, type Picked } from "./rank_stack"
import "./rank_clock.css"

const MOST_PX = 420 // of the map, whatever the number of ranks
const ROW_PX = 16 // of a rank, where there are few
const MOST_CAUSES = 12
const MOST_PICKED = 12 // ranks; the latest ones stay beside them
const LEFT_PX = 44
const STRIP_PX = 96
const PATH_PX = 120
const AXIS_PX = 16
const LABEL_PX = 56 // that a number below takes

/** Of the map: several ranks may share it. */
interface Cell {
  readonly row: number
  readonly step: number
}

export function RankClock(props: { readonly value: Ranks }): JSX.Element {
  const { value } = props
  const [picked, setPicked] = useState<Picked | null>(null)
  const listed = valueOf(runs.value)?.runs
  const here = useMemo(() => new Set(listed?.map((run) => run.id)), [listed])
  const live = source.value?.live === true && value.stack !== null
  const pick = (rank: number, step: number): void => setPicked((before) => ({ step, ranks: [...(before?.ranks ?? []).filter((each) => each !== rank), rank].slice(-MOST_PICKED) }))
  return (
    <section class="rank-clock">
      <Causes value={value} />
      <h2>Lateness by rank and step</h2>
      <LateMap value={value} here={here} pick={live ? pick : null} />
      {value.stack && <RankStack value={value} first={value.stack} here={here} picked={picked} setPicked={live ? setPicked : null} />}
      {value.arrivals && <Arrivals value={value} />}
      {value.path.length > 0 && <Path value={value} />}
    </section>
  )
}

function Causes(props: { readonly value: Ranks }): JSX.Element | null {
  const { findings } = props.value
  if (findings.length === 0) return null
  return (
    <ul class="causes">
      {findings.slice(0, MOST_CAUSES).map(([what, who, says, worth, atLeast]) => (
        <li key={`${what} ${who}`}>
          <b>{what}</b> {says}: {atLeast && "at least "}
          {formatNs(worth)} a step
        </li>
      ))}
      {findings.length > MOST_CAUSES && <li class="quiet">and {findings.length - MOST_CAUSES} more, worth less: foretrace ranks lists all</li>}
    </ul>
  )
}

/** A picture of one pixel per row and step, stretched, and drawn once: hovering changes a line of text alone. */
function LateMap(props: { readonly value: Ranks; readonly here: ReadonlySet<string>; readonly pick: ((rank: number, step: number) => void) | null }): JSX.Element {
  const { value, here, pick } = props
  const { late_ns: late, steps, runs: ids, job } = value
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const height = Math.min(MOST_PX, late.length * ROW_PX)
  const theme = shownTheme.value
  const [at, setAt] = useState<Cell | null>(null)
  const map = useMemo(() => lateRows(late, steps.length, Math.round(height * (devicePixelRatio || 1))), [late])
  const rest = useMemo(() => {
    const click = pick ? "A click stacks the rank with others in that step, below." : clickSays(value, here)
    return `The stronger the colour, the later: up to ${formatNs(map.most_ns)} after the median rank. ${sharing(map, late.length)}${click}`
  }, [value, here, pick === null])
  useEffect(() => {
    if (!canvas.current || width === 0) return
    const context = contextOf(canvas.current, width, height + AXIS_PX)
    if (!context) return
    drawMap(context, late, map, { left: LEFT_PX, width: width - LEFT_PX, height }, job)
    drawBelow(context, steps, width, height, "step ")
  }, [map, width, theme])
  const cellAt = (event: MouseEvent): Cell | null => {
    const row = Math.floor((event.offsetY / height) * map.rows)
    const step = Math.floor(((event.offsetX - LEFT_PX) / (width - LEFT_PX)) * steps.length)
    return row < 0 || row >= map.rows || steps[step] === undefined ? null : { row, step }
  }
  const move = (event: MouseEvent): void => {
    const cell = cellAt(event)
    setAt((before) => (before?.row === cell?.row && before?.step === cell?.step ? before : cell))
  }
  const open = (event: MouseEvent): void => {
    const cell = cellAt(event)
    if (!cell) return
    const rank = rankAt(map, cell, late.length)
    const run = ids[rank]
    if (pick) pick(job[rank] ?? 0, steps[cell.step] ?? 0)
    else if (run !== undefined && here.has(run)) go({ run, view: "timeline" })
  }
  return (
    <>
      <canvas ref={canvas} class="late-map" style={{ height: `${height + AXIS_PX}px` }} role="img" aria-label="Lateness by rank and step" onPointerMove={move} onPointerLeave={() => setAt(null)} onClick={open} />
      <p class="quiet">{at ? told(value, map, at) : rest}</p>
    </>
  )
}

/** The place of the rank that a cell shows: the latest of those that share it. */
function rankAt(map: LateRows, at: Cell, ranks: number): number {
  const latest = map.latest[at.row * map.steps + at.step] ?? -1
  return latest === -1 ? ranksOfRow(at.row, ranks, map.rows)[0] : latest
}

function sharing(map: LateRows, ranks: number): string {
  return map.rows < ranks ? `About ${Math.round(ranks / map.rows)} ranks share a row, which shows the latest of them. ` : ""
}

/** What a click does: in a report, which holds some of the ranks, perhaps nothing. */
function clickSays(value: Ranks, here: ReadonlySet<string>): string {
  const some = value.job.filter((_, at) => here.has(value.runs[at] ?? ""))
  if (some.length === value.job.length) return "A click opens the rank's own page."
  return `This page holds rank ${some.join(", ")}; foretrace serve with the folder has a page for each.`
}

function told(value: Ranks, map: LateRows, at: Cell): string {
  const { job, late_ns: late, steps } = value
  const rank = rankAt(map, at, late.length)
  const [from, until] = ranksOfRow(at.row, late.length, map.rows)
  const ns = late[rank]?.[at.step] ?? null
  const where = `step ${steps[at.step]}`
  if (ns === null) return `rank ${job[from]}${from < until ? ` to ${job[until]}` : ""}, ${where}: nothing recorded`
  const among = from < until ? `, the latest of rank ${job[from]} to ${job[until]}` : ""
  return `rank ${job[rank]}, ${where}: ${formatNs(ns)} after the median rank${among}`
}

interface Box {
  readonly left: number
  readonly width: number
  readonly height: number
}

function drawMap(context: CanvasRenderingContext2D, late: Ranks["late_ns"], map: LateRows, box: Box, ranks: readonly number[]): void {
  const small = document.createElement("canvas")
  small.width = map.steps
  small.height = map.rows
  const picture = small.getContext("2d")
  if (!picture) return
  const [red, green, blue] = rgbOf(getComputedStyle(context.canvas).getPropertyValue("--bad"))
  const data = picture.createImageData(map.steps, map.rows)
  map.latest.forEach((rank, at) => {
    const ns = late[rank]?.[at % map.steps] ?? null
    if (ns !== null) data.data.set([red, green, blue, Math.round(24 + 231 * Math.sqrt(ns / map.most_ns))], 4 * at)
  })
  picture.putImageData(data, 0, 0)
  context.imageSmoothingEnabled = false
  context.drawImage(small, box.left, 0, box.width, box.height)
  drawNumbers(context, ranks, box.height)
}

/** The ranks' numbers beside rows that share a height, as many as can be read. */
function drawNumbers(context: CanvasRenderingContext2D, ranks: readonly number[], height: number): void {
  const style = getComputedStyle(context.canvas)
  context.fillStyle = style.color
  context.font = style.font
  const every = Math.max(1, Math.ceil((ranks.length * ROW_PX) / height))
  for (let rank = 0; rank < ranks.length; rank += every) {
    const y = ((rank + 0.5) / ranks.length) * height + 4
    context.fillText(String(ranks[rank]), 4, Math.max(9, Math.min(height - 1, y)))
  }
}

/** Numbers below columns that share a width, as many as can be read; the first says what they are. */
function drawBelow(context: CanvasRenderingContext2D, numbers: readonly number[], width: number, top: number, what: string): void {
  const style = getComputedStyle(context.canvas)
  context.fillStyle = style.color
  context.font = style.font
  context.textAlign = "center"
  const every = Math.max(1, Math.ceil((numbers.length * LABEL_PX) / (width - LEFT_PX)))
  for (let at = 0; at < numbers.length; at += every) {
    const text = `${at === 0 ? what : ""}${numbers[at]}`
    const half = context.measureText(text).width / 2
    const x = LEFT_PX + ((at + 0.5) / numbers.length) * (width - LEFT_PX)
    context.fillText(text, Math.max(LEFT_PX + half, Math.min(width - half, x)), top + AXIS_PX - 4)
  }
}

function rgbOf(colour: string): readonly [number, number, number] {
  const hex = colour.trim().replace("#", "")
  const part = (at: number): number => parseInt(hex.slice(at, at + 2), 16) || 0
  return [part(0), part(2), part(4)]
}

/** One mark per rank of the collective with the most skew, by how long after the first it arrived. */
function Arrivals(props: { readonly value: Ranks }): JSX.Element | null {
  const arrivals = props.value.arrivals
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const theme = shownTheme.value
  const most = arrivals ? arrivals.after_ns.reduce((a, b) => Math.max(a, b), 1) : 1
  useEffect(() => {
    if (!canvas.current || !arrivals || width === 0) return
    const context = contextOf(canvas.current, width, STRIP_PX + AXIS_PX)
    if (!context) return
    const style = getComputedStyle(canvas.current)
    context.fillStyle = style.getPropertyValue("--accent")
    // Where ranks share a pixel, the last to arrive is drawn.
    const bars = Math.min(arrivals.ranks.length, Math.floor(width - LEFT_PX))
    const high = new Float64Array(bars)
    arrivals.after_ns.forEach((ns, at) => {
      const bar = Math.floor((at * bars) / arrivals.ranks.length)
      high[bar] = Math.max(1, ((STRIP_PX - 4) * ns) / most, high[bar] ?? 0)
    })
    const each = (width - LEFT_PX) / bars
    high.forEach((px, bar) => context.fillRect(LEFT_PX + bar * each, STRIP_PX - px, Math.max(1, each - 1), px))
    drawBelow(context, arrivals.ranks, width, STRIP_PX, "rank ")
  }, [arrivals, width, theme])
  if (!arrivals) return null
  const last = arrivals.ranks[arrivals.after_ns.indexOf(most)] ?? arrivals.ranks[0]
  return (
    <>
      <h2>Arrivals at one collective</h2>
      <canvas ref={canvas} class="arrivals" style={{ height: `${STRIP_PX + AXIS_PX}px` }} role="img" aria-label="Arrivals at one collective" />
      <p class="quiet">
        {arrivals.kind} of step {arrivals.step}: rank {last} came last, {formatNs(most)} after the first of {formatCount(arrivals.ranks.length)}
      </p>
    </>
  )
}

/** What the job's time consists of at its end: each stretch at the height of the rank that it lies on. */
function Path(props: { readonly value: Ranks }): JSX.Element {
  const { path, job: ranks } = props.value
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const theme = shownTheme.value
  const from = path[0]?.[2] ?? 0
  const until = path[path.length - 1]?.[3] ?? 1
  useEffect(() => {
    if (!canvas.current || width === 0) return
    const context = contextOf(canvas.current, width, PATH_PX)
    if (!context) return
    const style = getComputedStyle(canvas.current)
    const colours: Readonly<Record<string, string>> = { computation: "--c-gemm", input: "--bad", other: "--c-wait" }
    const high = Math.max(2, PATH_PX / Math.max(1, ranks.length))
    const place = new Map(ranks.map((rank, at) => [rank, at]))
    for (const [rank, what, start, end] of path) {
      context.fillStyle = style.getPropertyValue(colours[what] ?? "--c-comm")
      const x = LEFT_PX + ((start - from) / (until - from)) * (width - LEFT_PX)
      const y = ((place.get(rank) ?? 0) / Math.max(1, ranks.length)) * PATH_PX
      context.fillRect(x, Math.min(y, PATH_PX - high), Math.max(1, ((end - start) / (until - from)) * (width - LEFT_PX)), high)
    }
    drawNumbers(context, ranks, PATH_PX)
  }, [path, width, theme])
  return (
    <>
      <h2>Path across ranks</h2>
      <canvas ref={canvas} class="rank-path" style={{ height: `${PATH_PX}px` }} role="img" aria-label="Path across ranks" />
      <p class="quiet">The last {formatNs(until - from)} of the job: what it waited for, each on its rank.</p>
    </>
  )
}
