/** Roofline: how near each kernel comes to what its device could do with so much work per byte. */
import type { JSX } from "preact"
import { useMemo, useRef, useState } from "preact/hooks"
import { go, source } from "../data/state"
import type { Roofline as RooflineData } from "../data/types"
import { choice, choose } from "../data/choice"
import { counted, formatNs, formatValue, shorten } from "../base/format"
import { Loaded, Swatch, colourOf } from "../components/parts"
import { Recorded } from "../components/recorded"
import { type Axes, type Frame, type Mark, axesOf, nextMark, radiusOf, roofLines, spread } from "./pieces/roofline_geometry"
import { Segments } from "../components/segments"
import { useResource, useTable } from "../data/use_resource"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop } from "./pieces/page_top"
import "./roofline.css"

const FRAME: Frame = { width: 880, height: 400, left: 74, right: 138, top: 12, bottom: 40 }
const LABEL_PX = 13

export function Roofline(): JSX.Element {
  return (
    <Recorded<RooflineData> view="roofline" title="Roofline" ask={() => useResource<RooflineData>("roofline")}
      otherwise="How much work each kernel does is not known. Record with record_shapes=True.">
      {(value) => <RooflinePage value={value} />}
    </Recorded>
  )
}

function RooflinePage(props: { readonly value: RooflineData }): JSX.Element {
  const { value } = props
  const [pointed, setPointed] = useState<number | null>(null)
  const [focused, setFocused] = useState(0)
  const shown = value.marks[pointed ?? focused]
  return (
    <div class="page">
      <PageTop says={value.says} />
      {value.marks.length > 0 ? (
        <div class="roofline">
          <Chart value={value} focused={focused} pointed={pointed} onFocus={setFocused} onPoint={setPointed} />
          <aside aria-label="Kernel and roofs">
            {shown && <MarkFacts mark={shown} />}
            <Roofs value={value} />
          </aside>
        </div>
      ) : (
        <p class="quiet">No kernel can be drawn: {value.without || "how much work each does is not known. Record with record_shapes=True."}</p>
      )}
      {value.marks.length > 0 && value.without && <p class="quiet small">{value.without}</p>}
      <RooflineTable />
    </div>
  )
}

interface ChartProps {
  readonly value: RooflineData
  readonly focused: number
  readonly pointed: number | null
  readonly onFocus: (mark: number) => void
  readonly onPoint: (mark: number | null) => void
}

function Chart(props: ChartProps): JSX.Element {
  const { value } = props
  const axes = useMemo(() => axesOf(value, FRAME), [value])
  return (
    <svg viewBox={`0 0 ${FRAME.width} ${FRAME.height}`} role="group" aria-label={`Roofline of ${value.device}: ${counted(value.marks.length, "kernel")}. Arrow keys move: left and right by intensity, up and down by time.`}>
      <AxisLines axes={axes} />
      <Roofing value={value} axes={axes} />
      <Marks {...props} axes={axes} />
    </svg>
  )
}

function AxisLines(props: { readonly axes: Axes }): JSX.Element {
  const { x, y } = props.axes
  const foot = FRAME.height - FRAME.bottom
  return (
    <g aria-hidden="true">
      {x.ticks(8).map((tick) => (
        <g key={`x ${tick}`}>
          <line class="grid" x1={x(tick)} x2={x(tick)} y1={FRAME.top} y2={foot} />
          <text x={x(tick)} y={foot + 15} text-anchor="middle">{plain(tick)}</text>
        </g>
      ))}
      {y.ticks(7).map((tick) => (
        <g key={`y ${tick}`}>
          <line class="grid" x1={FRAME.left} x2={FRAME.width - FRAME.right} y1={y(tick)} y2={y(tick)} />
          <text x={FRAME.left - 6} y={y(tick) + 4} text-anchor="end">{formatValue("_flops", tick).replace("FLOP", "FLOP/s").replace(/\.0+ /, " ")}</text>
        </g>
      ))}
      <text class="title" x={(FRAME.left + FRAME.width - FRAME.right) / 2} y={FRAME.height - 5} text-anchor="middle">FLOP per byte moved</text>
    </g>
  )
}

function plain(value: number): string {
  return value >= 1 ? String(value).replace(/\B(?=(\d{3})+$)/g, ",") : String(Number(value.toPrecision(1)))
}

function Roofing(props: { readonly value: RooflineData; readonly axes: Axes }): JSX.Element {
  const { x, y } = props.axes
  const lines = roofLines(props.value.roofs, props.axes)
  const heights = spread(lines.map((roof) => (roof.kind === "compute" ? y(roof.to[1]) : Infinity)), LABEL_PX)
  return (
    <g class="roofs" aria-hidden="true">
      {lines.map((roof, index) => {
        const [x1, y1, x2, y2] = [x(roof.from[0]), y(roof.from[1]), x(roof.to[0]), y(roof.to[1])]
        const angle = (Math.atan2(y2 - y1, x2 - x1) * 180) / Math.PI
        const slope = roof.kind === "memory"
        return (
          <g key={roof.label}>
            <line x1={x1} y1={y1} x2={x2} y2={y2} class={roof.kind} />
            {slope ? (
              <text x={x1 + (x2 - x1) * 0.5} y={y1 + (y2 - y1) * 0.5 - 5} text-anchor="middle" transform={`rotate(${angle} ${x1 + (x2 - x1) * 0.5} ${y1 + (y2 - y1) * 0.5})`}>{roof.label}</text>
            ) : (
              <text x={x2 + 6} y={(heights[index] ?? y2) + 4}>{roof.label}</text>
            )}
          </g>
        )
      })}
    </g>
  )
}

function Marks(props: ChartProps & { readonly axes: Axes }): JSX.Element {
  const { value, axes, focused } = props
  const group = useRef<SVGGElement>(null)
  const longest = Math.max(0, ...value.marks.map((mark) => mark.total_ns))
  const order = useMemo(() => [...value.marks.keys()].sort((a, b) => value.marks[b]!.total_ns - value.marks[a]!.total_ns), [value])
  const move = (to: number): void => {
    props.onFocus(to)
    group.current?.querySelector<SVGElement>(`[data-mark="${to}"]`)?.focus()
  }
  const lit = props.pointed ?? focused
  return (
    <g ref={group} class="marks" onMouseLeave={() => props.onPoint(null)}>
      {order.map((at) => {
        const mark = value.marks[at]!
        return (
          <circle key={at} data-mark={at} cx={axes.x(mark.flops_per_byte)} cy={axes.y(mark.flops_per_s)} r={radiusOf(mark, longest)} role="button" tabIndex={at === focused ? 0 : -1}
            aria-label={`${shorten(mark.name, 120)}: ${formatNs(mark.total_ns)}, ${mark.says}`} class={at === lit ? "lit" : ""} style={{ fill: colourOf(mark.kind) }}
            onMouseEnter={() => props.onPoint(at)} onFocus={() => props.onFocus(at)} onClick={() => move(at)} onDblClick={() => showMark(mark)}
            onKeyDown={(event) => onMarkKey(event, value.marks, at, move)} />
        )
      })}
    </g>
  )
}

function onMarkKey(event: KeyboardEvent, marks: readonly Mark[], at: number, move: (to: number) => void): void {
  const keys: Readonly<Record<string, "left" | "right" | "up" | "down">> = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down" }
  const key = keys[event.key]
  if (key) move(nextMark(marks, at, key))
  else if (event.key === "Enter" && marks[at]) showMark(marks[at])
  else return
  event.preventDefault()
}

function showMark(mark: Mark): void {
  go({ view: "timeline", span: mark.span, shown: null, selection: null })
}

function MarkFacts(props: { readonly mark: Mark }): JSX.Element {
  const { mark } = props
  return (
    <section aria-live="polite">
      <h2>
        <Swatch kind={mark.kind} /> <span class="code">{shorten(mark.name, 90)}</span>
      </h2>
      <dl class="facts">
        <div><dt>Time</dt><dd>{formatNs(mark.total_ns)} in {counted(mark.calls, "call")}</dd></div>
        <div><dt>Intensity</dt><dd>{formatValue("_flops_per_byte", mark.flops_per_byte)}</dd></div>
        {mark.says.split(", ").map((text, index) => (
          <div key={index}><dt>{index === 0 ? "Achieved" : ""}</dt><dd>{text}</dd></div>
        ))}
      </dl>
      <p>
        <button type="button" class="link" onClick={() => showMark(mark)}>Show its longest call on the timeline</button>
      </p>
    </section>
  )
}

function Roofs(props: { readonly value: RooflineData }): JSX.Element {
  const { roofs, device } = props.value
  return (
    <section>
      <h2>{device}</h2>
      {roofs.length === 0 ? (
        <p class="quiet">The peaks of this device are not known, so no roofs are drawn.</p>
      ) : (
        <ul class="roof-list">
          {roofs.map((roof) => (
            <li key={roof.label} title={roof.source}>{roof.label}</li>
          ))}
        </ul>
      )}
      <p class="caption">A mark's area is its kernel's time. Higher is faster. A kernel on a roof can only get faster by doing less work or moving fewer bytes.</p>
    </section>
  )
}

const GROUPS = [
  { value: "shape", label: "Operator and shapes" },
  { value: "op", label: "Operator" },
  { value: "kernel", label: "Kernel" },
] as const
const FIRST = ["op", "kernel", "shapes", "dtype", "calls_count", "total_ns", "total_pct", "roof_pct", "bound", "achieved_flops_per_s", "achieved_bytes_per_s", "intensity_flops_per_byte", "excess_ns"]

function RooflineTable(): JSX.Element {
  const by = choice("by", GROUPS.map((option) => option.value), "shape")
  const table = useTable(by === "shape" ? "roofline" : `roofline?group_by=${by}`)
  const live = source.value?.live ?? true
  return (
    <>
      <div class="section-title">
        <Segments label="Group by" options={GROUPS.map((option) => (live || option.value === "shape" ? option : { ...option, disabled: true, title: "Not included in a report; foretrace serve shows it" }))} chosen={by}
          onChoose={(value) => choose({ by: value === "shape" ? "" : value, sort: "" })} />
      </div>
      <Loaded resource={table} what="table">
        {(value) => <ArrangedTable table={value} first={FIRST} title="Work and time" sort="-total_ns" height="max(280px, calc(100vh - 620px))" />}
      </Loaded>
    </>
  )
}
