/**
 * Lines over a swept field: one mark per value with its interval, a cursor that moves with the pointer or the keys, and
 * the values there.
 */
import type { JSX } from "preact"
import { useMemo, useRef, useState } from "preact/hooks"
import { type Scale } from "../../base/scale"
import { useWidth } from "../canvas"
import { type Upright, acrossOf, labelled, nearest, uprightOf } from "./axes"
import "./chart.css"

const HEIGHT = 236
const LEFT = 66
const RIGHT = 14
const HEAD = 12
const FAILED_PX = 14 // of a line of words above the picture
const FOOT = 38
const SHAPES = 4
const SMALLEST_WHISKER_PX = 3

export interface Mark {
  readonly x: number
  readonly y: number | null // null: not measured, and `failed` says why
  readonly low: number | null
  readonly high: number | null
  readonly failed: string // OOM
  readonly words: string // the value in words
}

export interface Line {
  readonly label: string
  readonly colour: string
  readonly shape: number
  readonly marks: readonly Mark[] // by x
}

export interface LinesProps {
  readonly title: string
  readonly xTitle: string
  readonly xLog: boolean
  readonly yLog: boolean
  readonly bytes: boolean // the measure is a size
  readonly lines: readonly Line[]
  readonly formatY: (value: number) => string
}

export function Lines(props: LinesProps): JSX.Element {
  const { lines } = props
  const box = useRef<HTMLDivElement>(null)
  const width = Math.max(useWidth(box), LEFT + RIGHT + 80)
  const [cursor, setCursor] = useState<number | null>(null)
  const xs = useMemo(() => [...new Set(lines.flatMap((line) => line.marks.map((mark) => mark.x)))].sort((a, b) => a - b), [lines])
  const x = acrossOf(xs, props.xLog, { from: LEFT, to: width - RIGHT })
  const failures = useMemo(() => failedAt(lines), [lines])
  const head = HEAD + (failures.size > 0 ? FAILED_PX : 0)
  const y = uprightOf(measuredIn(lines, props.yLog), props.yLog, props.bytes, { from: HEIGHT - FOOT, to: head })
  const point = (event: PointerEvent): void => setCursor(nearest(xs, x, event.clientX - (box.current?.getBoundingClientRect().left ?? 0)))
  const at = cursor === null ? -1 : xs.indexOf(cursor)
  return (
    <figure class="chart">
      <figcaption>{props.title}</figcaption>
      <div ref={box} class="drawing" tabIndex={0} role="slider" aria-label={`${props.title} over ${props.xTitle}. Left and right move.`}
        aria-valuemin={0} aria-valuemax={xs.length - 1} aria-valuenow={Math.max(0, at)} aria-valuetext={cursor === null ? "no value chosen" : spoken(props, cursor)}
        onPointerMove={point} onPointerDown={point} onPointerLeave={() => setCursor(null)} onBlur={() => setCursor(null)}
        onKeyDown={(event) => onChartKey(event, xs, at, setCursor)}>
        <svg width={width} height={HEIGHT} aria-hidden="true">
          <Axes {...props} xs={xs} x={x} y={y} width={width} />
          {cursor !== null && <line class="cursor" x1={x(cursor)} x2={x(cursor)} y1={head} y2={HEIGHT - FOOT} />}
          {[...failures].map(([value, words]) => <text key={value} class="failed" x={x(value)} y={HEAD + 2} text-anchor="middle">{words}</text>)}
          {lines.map((line) => <LineMarks key={line.label} line={line} x={x} y={y.scale} cursor={cursor} />)}
        </svg>
        {cursor !== null && <Values {...props} cursor={cursor} px={x(cursor)} width={width} />}
      </div>
    </figure>
  )
}

/** All that the axis must hold. */
function measuredIn(lines: readonly Line[], isLog: boolean): readonly number[] {
  const values = lines.flatMap((line) => line.marks.flatMap((mark) => [mark.y, mark.low, mark.high]))
  const found = values.filter((value): value is number => value !== null && (!isLog || value > 0))
  return found.length > 0 ? found : [1]
}

/** What went wrong at a value of x, instead of its marks: "OOM", "2 OOM". */
export function failedAt(lines: readonly Line[]): ReadonlyMap<number, string> {
  const counts = new Map<number, Map<string, number>>()
  for (const mark of lines.flatMap((line) => line.marks)) {
    if (mark.y !== null || mark.failed === "") continue
    const here = counts.get(mark.x) ?? new Map<string, number>()
    counts.set(mark.x, here.set(mark.failed, (here.get(mark.failed) ?? 0) + 1))
  }
  return new Map([...counts].map(([x, here]) => [x, [...here].map(([words, count]) => (count === 1 ? words : `${count} ${words}`)).join(", ")]))
}

function onChartKey(event: KeyboardEvent, xs: readonly number[], at: number, move: (to: number | null) => void): void {
  const places: Readonly<Record<string, number>> = { ArrowLeft: at < 0 ? xs.length - 1 : at - 1, ArrowRight: at + 1, Home: 0, End: xs.length - 1 }
  const to = places[event.key]
  if (to === undefined) return
  move(xs[Math.max(0, Math.min(xs.length - 1, to))] ?? null)
  event.preventDefault()
}

interface AxesProps extends LinesProps {
  readonly xs: readonly number[]
  readonly x: Scale
  readonly y: Upright
  readonly width: number
}

function Axes(props: AxesProps): JSX.Element {
  const { x, y, width } = props
  const foot = HEIGHT - FOOT
  return (
    <g>
      {y.ticks.map((tick) => (
        <g key={tick}>
          <line class={tick === 0 ? "grid zero" : "grid"} x1={LEFT} x2={width - RIGHT} y1={y.scale(tick)} y2={y.scale(tick)} />
          <text x={LEFT - 8} y={y.scale(tick) + 4} text-anchor="end">{props.formatY(tick)}</text>
        </g>
      ))}
      {labelled(props.xs, x, (value) => plain(value).length).map((value) => (
        <text key={value} x={x(value)} y={foot + 15} text-anchor="middle">{plain(value)}</text>
      ))}
      <text class="title" x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">{props.xTitle}{props.xLog && " (log)"}</text>
    </g>
  )
}

/** A swept value as it was given: 16384, as on the command line. */
function plain(value: number): string {
  return String(Number(value.toPrecision(6)))
}

interface LineMarksProps {
  readonly line: Line
  readonly x: Scale
  readonly y: Scale
  readonly cursor: number | null
}

function LineMarks(props: LineMarksProps): JSX.Element {
  const { line, x, y } = props
  const drawn = line.marks.filter((mark): mark is Mark & { readonly y: number } => mark.y !== null)
  return (
    <g style={{ "--mark": line.colour }}>
      <polyline class="line" points={drawn.map((mark) => `${x(mark.x)},${y(mark.y)}`).join(" ")} />
      {line.marks.map((mark) => (
        <g key={mark.x}>
          {mark.low !== null && mark.high !== null && <Whisker at={x(mark.x)} from={y(mark.low)} to={y(mark.high)} />}
          {mark.y !== null && <path class="mark" d={shapeOf(line.shape, x(mark.x), y(mark.y), mark.x === props.cursor ? 5 : 3.5)} />}
        </g>
      ))}
    </g>
  )
}

function Whisker(props: { readonly at: number; readonly from: number; readonly to: number }): JSX.Element | null {
  const { at, from, to } = props
  if (Math.abs(from - to) < SMALLEST_WHISKER_PX) return null
  return <path class="whisker" d={`M${at} ${from}V${to}M${at - 3} ${from}h6M${at - 3} ${to}h6`} />
}

/** A circle, a square, a diamond or a triangle: colours alone do not tell lines apart for everyone. */
function shapeOf(shape: number, x: number, y: number, r: number): string {
  const kind = shape % SHAPES
  if (kind === 1) return `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`
  if (kind === 2) return `M${x} ${y - 1.35 * r}l${1.35 * r} ${1.35 * r}l${-1.35 * r} ${1.35 * r}l${-1.35 * r} ${-1.35 * r}z`
  if (kind === 3) return `M${x} ${y - 1.25 * r}l${1.25 * r} ${2.2 * r}h${-2.5 * r}z`
  return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`
}

/** The mark of a line by itself, for the legend. */
export function LineKey(props: { readonly line: Pick<Line, "colour" | "shape"> }): JSX.Element {
  return (
    <svg class="line-key" width="22" height="12" aria-hidden="true" style={{ "--mark": props.line.colour }}>
      <path class="line" d="M0 6H22" />
      <path class="mark" d={shapeOf(props.line.shape, 11, 6, 3.5)} />
    </svg>
  )
}

interface At {
  readonly line: Line
  readonly mark: Mark
}

/** What stands at a value of x, from the top of the picture down. */
function marksAt(lines: readonly Line[], x: number): readonly At[] {
  const found = lines.flatMap((line) => line.marks.filter((mark) => mark.x === x).map((mark) => ({ line, mark })))
  return found.sort((a, b) => (b.mark.y ?? Infinity) - (a.mark.y ?? Infinity))
}

function spoken(props: LinesProps, cursor: number): string {
  return `${props.xTitle} ${plain(cursor)}: ${marksAt(props.lines, cursor).map(({ line, mark }) => `${line.label} ${mark.words}`.trim()).join("; ")}`
}

function Values(props: LinesProps & { readonly cursor: number; readonly px: number; readonly width: number }): JSX.Element {
  // Below the picture, so that it covers no mark, and as far to the left as the cursor is: it never leaves the page.
  const share = `${(100 * props.px) / props.width}%`
  return (
    <div class="values" aria-hidden="true" style={{ left: share, transform: `translateX(-${share})` }}>
      <p>{props.xTitle} {plain(props.cursor)}</p>
      <ul>
        {marksAt(props.lines, props.cursor).map(({ line, mark }) => (
          <li key={line.label}>
            <LineKey line={line} />
            <span>{line.label}</span>
            <strong>{mark.words}</strong>
          </li>
        ))}
      </ul>
    </div>
  )
}
