/** Memory: what was allocated over time and for what, what was live at the peak, and the largest blocks of it. */
import type { JSX } from "preact"
import { useMemo, useState } from "preact/hooks"
import { go, place, source } from "../data/state"
import type { Memory as MemoryData, Table } from "../data/types"
import { choice, choose } from "../data/choice"
import { Curve } from "../components/curve/curve"
import { type Series, pointAt } from "../components/curve/stack"
import { fixed, formatValue } from "../base/format"
import { Loaded } from "../components/parts"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { useResource, useTable } from "../data/use_resource"
import "./memory.css"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop } from "./pieces/page_top"

/** Categories borrow the palette of the kinds of work, which stays apart for every sight; each has its label beside it. */
const COLOURS: Readonly<Record<string, string>> = {
  "before-the-recording": "--c-wait", activation: "--c-gemm", gradient: "--c-copy", "optimizer-state": "--c-optim", autograd: "--c-elem",
  intermediate: "--c-comm", temporary: "--c-attn", input: "--c-transfer", parameter: "--c-reduce", unknown: "--c-wait",
}
const TABLES = [
  { value: "largest", label: "Largest at the peak" },
  { value: "category", label: "By category" },
  { value: "op", label: "By operator" },
  { value: "module", label: "By module" },
] as const
type Shown = (typeof TABLES)[number]["value"]

const bytes = (value: number): string => formatValue("_bytes", value)
const milliseconds = (ns: number): string => `${fixed(ns / 1e6, 2)} ms`

export function Memory(): JSX.Element {
  return (
    <Recorded<MemoryData> view="memory" title="Memory" ask={() => useResource<MemoryData>("memory")} empty={(value) => value.at_ns.length === 0}
      otherwise="No allocations were recorded. Record with profile_memory=True.">
      {(value) => <MemoryPage memory={value} />}
    </Recorded>
  )
}

function MemoryPage(props: { readonly memory: MemoryData }): JSX.Element {
  const { memory } = props
  const series = useMemo(() => seriesOf(memory), [memory])
  const peak = pointAt(memory.at_ns, memory.peak.at_ns)
  const [cursor, setCursor] = useState(peak)
  const at = memory.at_ns[cursor] ?? 0
  return (
    <div class="page memory">
      <PageTop says={memory.says} />
      <div class="curve-and-parts">
        <Curve label="Memory over time" moments={memory.at_ns} until={untilOf(memory.at_ns)} series={series} marked={peak} cursor={cursor}
          words={`${milliseconds(at)}: ${bytes(totalAt(series, cursor))}`} selection={place.value.selection} formatX={(ns) => `${formatTick(ns)} ms`} formatY={bytes}
          onCursor={setCursor} onSelect={(selection, growing) => go({ selection }, { replace: growing })} onOpen={() => showMoment(at, memory.at_ns)} />
        <Parts memory={memory} series={series} cursor={cursor} atPeak={cursor === peak} />
      </div>
      <Tables memory={memory} />
    </div>
  )
}

function seriesOf(memory: MemoryData): readonly Series[] {
  return memory.series.map((category) => ({ label: category.label, colour: COLOURS[category.kind] ?? "--c-wait", values: category.bytes }))
}

/** The last value holds a little longer, to be seen. */
function untilOf(moments: readonly number[]): number {
  const first = moments[0] ?? 0
  const last = moments.at(-1) ?? 0
  return last + Math.max(1, (last - first) / 200)
}

function formatTick(ns: number): string {
  return String(Number(fixed(ns / 1e6, 3)))
}

function totalAt(series: readonly Series[], point: number): number {
  return series.reduce((sum, category) => sum + (category.values[point] ?? 0), 0)
}

function showMoment(ns: number, moments: readonly number[]): void {
  const margin = Math.max(1e5, ((moments.at(-1) ?? 0) - (moments[0] ?? 0)) / 50)
  go({ view: "timeline", shown: { from: Math.max(0, ns - margin), to: ns + margin }, span: null })
}

interface PartsProps {
  readonly memory: MemoryData
  readonly series: readonly Series[]
  readonly cursor: number
  readonly atPeak: boolean
}

/** The legend: each category at the cursor and at the peak. */
function Parts(props: PartsProps): JSX.Element {
  const { memory, series, cursor } = props
  const peak = new Map(memory.peak.parts.map((part) => [part.label, part]))
  const at = memory.at_ns[cursor] ?? 0
  return (
    <div class="memory-parts">
      <table aria-label="Memory by category">
        <thead>
          <tr>
            <th scope="col">Category</th>
            <th scope="col" class="number">{milliseconds(at)}</th>
            <th scope="col" class="number">Peak</th>
            <th scope="col" class="number">Share</th>
          </tr>
        </thead>
        <tbody>
          {[...series].reverse().map((category) => (
            <tr key={category.label}>
              <th scope="row">
                <span class="swatch" aria-hidden="true" style={{ background: `var(${category.colour})` }} /> {category.label}
              </th>
              <td class="number">{bytes(category.values[cursor] ?? 0)}</td>
              <td class="number">{bytes(peak.get(category.label)?.bytes ?? 0)}</td>
              <td class="number quiet">{fixed(peak.get(category.label)?.pct ?? 0, 1)} %</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">Total</th>
            <td class="number">{bytes(totalAt(series, cursor))}</td>
            <td class="number">{bytes(memory.peak.bytes)}</td>
            <td />
          </tr>
        </tfoot>
      </table>
      <p class="caption">
        {props.atPeak ? `The peak is at ${milliseconds(memory.peak.at_ns)}. ` : ""}
        <button type="button" class="link" onClick={() => showMoment(at, memory.at_ns)}>Show this moment on the timeline</button>
      </p>
    </div>
  )
}

function Tables(props: { readonly memory: MemoryData }): JSX.Element {
  const shown = choice("show", TABLES.map((option) => option.value), "largest")
  const live = source.value?.live ?? true
  const options = TABLES.map((option) => live || option.value === "largest" || option.value === "category" ? option : { ...option, disabled: true, title: "Not included in a report; foretrace serve shows it" })
  return (
    <>
      <div class="section-title">
        <Segments label="Show" options={options} chosen={shown} onChoose={(value) => choose({ show: value === "largest" ? "" : value, sort: "" })} />
        <span class="caption">{shown === "largest" ? props.memory.largest.says : ""}</span>
      </div>
      {shown === "largest" ? <Largest table={props.memory.largest} /> : <ByAnalysis by={shown} />}
    </>
  )
}

function Largest(props: { readonly table: Table }): JSX.Element {
  return <ArrangedTable table={props.table} first={["size_bytes", "op", "where", "category"]} title="Blocks" sort="-size_bytes" height="max(260px, calc(100vh - 480px))" />
}

function ByAnalysis(props: { readonly by: Exclude<Shown, "largest"> }): JSX.Element {
  const table = useTable(props.by === "category" ? "memory" : `memory?by=${props.by}`)
  return (
    <Loaded resource={table} what="table">
      {(value) => <ArrangedTable table={value} first={["category", "op", "module"]} title="Memory" sort="-peak_bytes" height="max(260px, calc(100vh - 480px))" />}
    </Loaded>
  )
}
