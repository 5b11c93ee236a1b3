/** One step of several ranks, one below the other on the common clock: what each device did, and under it its communications. */
import type { JSX } from "preact"
import { useEffect, useMemo, useRef, useState } from "preact/hooks"
import { formatNs } from "../../base/format"
import { contextOf, useWidth } from "../../components/canvas"
import { Failed, Loading } from "../../components/parts"
import { linkTo, shownTheme } from "../../data/state"
import type { RankCall, Ranks, RankSpan, RankStack as Stack } from "../../data/types"
import { useResource } from "../../data/use_resource"
import "./rank_stack.css"

const ROW_PX = 26
const BAR_PX = 14
const CALL_PX = 6
const AXIS_PX = 18
const TICKS = 4
const COLOURS: Readonly<Record<string, string>> = { computation: "--c-gemm", communication: "--c-comm", waiting: "--c-elem", input: "--bad", other: "--c-idle" }
const COLOUR_OF_CALL = "--c-comm"

/** What was chosen: a step, and ranks that are stacked in it whatever else is. */
export interface Picked {
  readonly step: number
  readonly ranks: readonly number[]
}

interface StackProps {
  readonly value: Ranks
  readonly first: Stack
  readonly here: ReadonlySet<string>
  readonly picked: Picked | null
  readonly setPicked: ((picked: Picked | null) => void) | null // null in a report, which holds one step
}

export function RankStack(props: StackProps): JSX.Element {
  const { value, first, picked, setPicked } = props
  const step = picked?.step ?? first.step
  return (
    <section class="rank-stack">
      <div class="section-title">
        <h2>Ranks on one clock</h2>
        {setPicked ? (
          <label class="caption">
            Step{" "}
            <select value={step} onChange={(event) => setPicked({ step: Number(event.currentTarget.value), ranks: picked?.ranks ?? [] })}>
              {value.steps.map((each) => (
                <option key={each} value={each}>{each}</option>
              ))}
            </select>
          </label>
        ) : (
          <span class="caption">Step {step}, in which a rank was latest</span>
        )}
        {picked && setPicked && <button type="button" onClick={() => setPicked(null)}>Reset</button>}
      </div>
      {picked ? <Asked {...props} picked={picked} /> : <Rows {...props} stack={first} />}
    </section>
  )
}

function Asked(props: StackProps & { readonly picked: Picked }): JSX.Element {
  const { step, ranks } = props.picked
  const found = useResource<Stack>(`ranks/stack?step=${step}&ranks=${ranks.join(",")}`)
  if (found.state === "loading") return <Loading what="Loading the step …" />
  if (found.state === "failed") return <Failed what="The step could not be loaded" says={found.says} />
  return <Rows {...props} stack={found.value} />
}

/** What is under the pointer: a stretch of a rank, or one of its communications. */
interface Under {
  readonly row: number
  readonly span?: RankSpan
  readonly call?: RankCall
}

function Rows(props: StackProps & { readonly stack: Stack }): JSX.Element {
  const { stack, value, here, picked } = props
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const height = stack.ranks.length * ROW_PX + AXIS_PX
  const theme = shownTheme.value
  const [under, setUnder] = useState<Under | null>(null)
  const marked = (under ? communicationOf(under) : null) ?? stack.longest?.communication ?? null
  useEffect(() => {
    if (!canvas.current || width === 0) return
    const context = contextOf(canvas.current, width, height)
    if (context) draw(context, stack, width, marked)
  }, [stack, width, marked, theme])
  const move = (event: PointerEvent): void => {
    const box = canvas.current?.getBoundingClientRect()
    if (box) setUnder(underAt(stack, event.clientX - box.left, event.clientY - box.top, width))
  }
  const run = useMemo(() => new Map(value.job.map((rank, at) => [rank, value.runs[at] ?? ""])), [value])
  return (
    <>
      <p class="legend quiet">
        {stack.parts.map((part) => (
          <span key={part}>
            <span class="swatch" style={{ background: `var(${COLOURS[part]})` }} aria-hidden="true" /> {part}
          </span>
        ))}
      </p>
      <div class="stack-rows">
        <ol aria-label="Stacked ranks">
          {stack.ranks.map((rank) => (
            <li key={rank} class={picked?.ranks.includes(rank) ? "picked" : ""}>
              <Name rank={rank} run={run.get(rank) ?? ""} here={here} />
            </li>
          ))}
        </ol>
        <canvas ref={canvas} style={{ height: `${height}px` }} role="img" aria-label={`Step ${stack.step} of ${stack.ranks.length} ranks on one clock. ${restOf(stack)}`} onPointerMove={move} onPointerLeave={() => setUnder(null)} />
      </div>
      <p class="quiet stack-says">{under ? told(stack, under) : restOf(stack)}</p>
    </>
  )
}

/** A rank's number, which opens its own page where there is one. */
function Name(props: { readonly rank: number; readonly run: string; readonly here: ReadonlySet<string> }): JSX.Element {
  if (!props.here.has(props.run)) return <span>{props.rank}</span>
  const to = { run: props.run, view: "timeline", shown: null, selection: null, span: null, rest: {} }
  return <a href={linkTo(to)} aria-label={`Timeline of rank ${props.rank}`}>{props.rank}</a>
}

function restOf(stack: Stack): string {
  const { longest, left_out: left } = stack
  const wait = longest ? `Framed: ${longest.kind}, at which rank ${longest.last_rank} arrived last, ${formatNs(longest.wait_ns)} after rank ${longest.rank}.` : "No rank arrives before another."
  const more = left.length > 0 ? ` Rank ${left.join(", ")} would be too much to draw.` : ""
  return `${wait} Between two communications the order of pauses and computation is not known.${more}`
}

function told(stack: Stack, under: Under): string {
  const rank = `rank ${stack.ranks[under.row]}`
  const { span, call } = under
  if (call) {
    const [, , arrive, latest, leave] = call
    return `${rank}: ${calledIn(stack, call)}, arrived at ${formatNs(arrive)}, last of all at ${formatNs(latest)}, left at ${formatNs(leave)}`
  }
  if (!span) return `${rank}: nothing of this step`
  const [part, start, end, communication] = span
  const own = stack.calls[under.row]?.find((each) => each[0] === communication)
  const what = stack.parts[part] ?? ""
  const whom = own && what === "waiting" ? ` for rank ${own[5]}` : ""
  return `${rank}: ${what}${whom}${own ? ` in ${calledIn(stack, own)}` : ""}, ${formatNs(end - start)}, from ${formatNs(start)} to ${formatNs(end)}`
}

function calledIn(stack: Stack, call: RankCall): string {
  return stack.kinds[call[1]] ?? ""
}

function communicationOf(under: Under): number | null {
  const number = under.call?.[0] ?? under.span?.[3] ?? -1
  return number < 0 ? null : number
}

function underAt(stack: Stack, x: number, y: number, width: number): Under | null {
  const row = Math.floor(y / ROW_PX)
  if (stack.ranks[row] === undefined) return null
  const at = (x / width) * stack.end_ns
  const call = y - row * ROW_PX > BAR_PX ? stack.calls[row]?.find(([, , arrive, , leave]) => arrive <= at && at <= leave) : undefined
  if (call) return { row, call }
  const span = stack.spans[row]?.find(([, start, end]) => start <= at && at < end)
  return span ? { row, span } : { row }
}

function draw(context: CanvasRenderingContext2D, stack: Stack, width: number, marked: number | null): void {
  const style = getComputedStyle(context.canvas)
  const x = (ns: number): number => (ns / Math.max(1, stack.end_ns)) * width
  const colours = stack.parts.map((part) => style.getPropertyValue(COLOURS[part] ?? "--c-idle"))
  const ofCall = style.getPropertyValue(COLOUR_OF_CALL)
  const box = (from: number, until: number, top: number, high: number): void => context.fillRect(x(from), top, Math.max(0.5, x(until) - x(from)), high)
  stack.spans.forEach((spans, row) => {
    for (const [part, start, end] of spans) {
      context.fillStyle = colours[part] ?? ""
      box(start, end, row * ROW_PX, BAR_PX)
    }
  })
  stack.calls.forEach((calls, row) => {
    context.fillStyle = ofCall
    const top = row * ROW_PX + BAR_PX + 1
    for (const [, , arrive, latest, leave] of calls) {
      box(arrive, latest, top + CALL_PX / 2 - 1, 2)
      box(latest, leave, top, CALL_PX)
    }
  })
  context.strokeStyle = style.getPropertyValue("--ink")
  context.lineWidth = 1.5
  stack.calls.forEach((calls, row) => {
    for (const [number, , arrive, , leave] of calls) if (number === marked) context.strokeRect(x(arrive), row * ROW_PX + 0.75, Math.max(2, x(leave) - x(arrive)), BAR_PX + CALL_PX + 1)
  })
  axis(context, stack, width, style)
}

function axis(context: CanvasRenderingContext2D, stack: Stack, width: number, style: CSSStyleDeclaration): void {
  context.fillStyle = style.color
  context.font = style.font
  const y = stack.ranks.length * ROW_PX + AXIS_PX - 5
  for (let tick = 0; tick <= TICKS; tick++) {
    context.textAlign = tick === 0 ? "left" : tick === TICKS ? "right" : "center"
    context.fillText(formatNs((stack.end_ns * tick) / TICKS), (width * tick) / TICKS, y)
  }
}
