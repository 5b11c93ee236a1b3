/** The ranks on one clock: how late each was in each step, who arrived when at one collective, and the path across ranks. */
import type { JSX } from "preact"
import { useEffect, useMemo, useRef, useState } from "preact/hooks"
import { formatNs } from "../../base/format"
import { contextOf, useWidth } from "../../components/canvas"
import { go, runs, source, valueOf } from "../../data/state"
import type { Ranks } from "../../data/types"
import { RankStack, type Picked } from "./rank_stack"
import "./rank_clock.css"

const MOST_PX = 420 // of the map, whatever the number of ranks
const ROW_PX = 16 // of a rank, where there are few
const MOST_CAUSES = 12
const MOST_PICKED = 12 // ranks; the latest ones stay beside them
const LEFT_PX = 44
const STRIP_PX = 96
const PATH_PX = 120

interface Cell {
  readonly rank: number
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

/** One drawing into a picture of one pixel per rank and step, stretched: as quick for ten thousand ranks as for ten. */
function LateMap(props: { readonly value: Ranks; readonly here: ReadonlySet<string>; readonly pick: ((rank: number, step: number) => void) | null }): JSX.Element {
  const { here, pick } = props
  const { late_ns: late, steps, runs: ids, job } = props.value
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const height = Math.min(MOST_PX, late.length * ROW_PX)
  const [at, setAt] = useState<Cell | null>(null)
  const numbers = ranksOf(props.value)
  const click = pick ? "A click stacks the rank with others in that step, below." : clickSays(props.value, here)
  const rest = useMemo(() => `The stronger the colour, the later: up to ${formatNs(mostOf(late))} after the median rank. ${click}`, [late, click])
  useEffect(() => {
    if (!canvas.current || width === 0) return
    const context = contextOf(canvas.current, width, height)
    if (context) drawMap(context, late, steps.length, { left: LEFT_PX, width: width - LEFT_PX, height }, numbers)
  }, [late, width])
  const cellAt = (event: PointerEvent | MouseEvent): Cell | null => {
    const box = canvas.current?.getBoundingClientRect()
    if (!box) return null
    const rank = Math.floor(((event.clientY - box.top) / height) * late.length)
    const step = Math.floor(((event.clientX - box.left - LEFT_PX) / (width - LEFT_PX)) * steps.length)
    return late[rank] === undefined || steps[step] === undefined ? null : { rank, step }
  }
  const open = (event: MouseEvent): void => {
    const cell = cellAt(event)
    if (pick) {
      if (cell) pick(job[cell.rank] ?? 0, steps[cell.step] ?? 0)
      return
    }
    const run = cell ? ids[cell.rank] : undefined
    if (run !== undefined && here.has(run)) go({ run, view: "timeline" })
  }
  return (
    <>
      <canvas ref={canvas} class="late-map" style={{ height: `${height}px` }} role="img" aria-label="Lateness by rank and step" onPointerMove={(event) => setAt(cellAt(event))} onPointerLeave={() => setAt(null)} onClick={open} />
      <p class="quiet">{at ? told(props.value, at) : rest}</p>
    </>
  )
}

/** What a click does: in a report, which holds some of the ranks, perhaps nothing. */
function clickSays(value: Ranks, here: ReadonlySet<string>): string {
  const some = value.job.filter((_, at) => here.has(value.runs[at] ?? ""))
  if (some.length === value.job.length) return "A click opens the rank's own page."
  return `This page holds rank ${some.join(", ")}; foretrace serve with the folder has a page for each.`
}

function told(value: Ranks, at: Cell): string {
  const ns = value.late_ns[at.rank]?.[at.step] ?? null
  return `rank ${ranksOf(value)[at.rank]}, step ${value.steps[at.step]}: ${ns === null ? "nothing recorded" : `${formatNs(ns)} after the median rank`}`
}

function ranksOf(value: Ranks): readonly number[] {
  return value.job
}

function mostOf(late: Ranks["late_ns"]): number {
  let most = 1
  for (const row of late) for (const ns of row) if (ns !== null && ns > most) most = ns
  return most
}

interface Box {
  readonly left: number
  readonly width: number
  readonly height: number
}

function drawMap(context: CanvasRenderingContext2D, late: Ranks["late_ns"], steps: number, box: Box, ranks: readonly number[]): void {
  const most = mostOf(late)
  const style = getComputedStyle(context.canvas)
  const small = document.createElement("canvas")
  small.width = steps
  small.height = late.length
  const picture = small.getContext("2d")
  if (!picture) return
  const [red, green, blue] = rgbOf(style.getPropertyValue("--bad"))
  const data = picture.createImageData(steps, late.length)
  late.forEach((row, rank) => {
    row.forEach((ns, step) => {
      const place = 4 * (rank * steps + step)
      data.data.set([red, green, blue, ns === null ? 0 : Math.round(24 + 231 * Math.sqrt(ns / most))], place)
    })
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
  for (let rank = 0; rank < ranks.length; rank += every) context.fillText(String(ranks[rank]), 4, ((rank + 0.5) / ranks.length) * height + 4)
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
  const most = arrivals ? arrivals.after_ns.reduce((a, b) => Math.max(a, b), 1) : 1
  useEffect(() => {
    if (!canvas.current || !arrivals || width === 0) return
    const context = contextOf(canvas.current, width, STRIP_PX)
    if (!context) return
    const style = getComputedStyle(canvas.current)
    context.fillStyle = style.getPropertyValue("--accent")
    const wide = Math.max(1, (width - LEFT_PX) / arrivals.ranks.length - 1)
    arrivals.after_ns.forEach((ns, at) => {
      const high = Math.max(1, ((STRIP_PX - 4) * ns) / most)
      context.fillRect(LEFT_PX + (at * (width - LEFT_PX)) / arrivals.ranks.length, STRIP_PX - high, wide, high)
    })
  }, [arrivals, width])
  if (!arrivals) return null
  const last = arrivals.ranks[arrivals.after_ns.indexOf(most)] ?? arrivals.ranks[0]
  return (
    <>
      <h2>Arrivals at one collective</h2>
      <canvas ref={canvas} class="arrivals" style={{ height: `${STRIP_PX}px` }} role="img" aria-label="Arrivals at one collective" />
      <p class="quiet">
        {arrivals.kind} of step {arrivals.step}: rank {last} came last, {formatNs(most)} after the first of {arrivals.ranks.length}
      </p>
    </>
  )
}

/** What the job's time consists of at its end: each stretch at the height of the rank that it lies on. */
function Path(props: { readonly value: Ranks }): JSX.Element {
  const { path, job: ranks } = props.value
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
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
  }, [path, width])
  return (
    <>
      <h2>Path across ranks</h2>
      <canvas ref={canvas} class="rank-path" style={{ height: `${PATH_PX}px` }} role="img" aria-label="Path across ranks" />
      <p class="quiet">The last {formatNs(until - from)} of the job: what it waited for, each on its rank.</p>
    </>
  )
}
