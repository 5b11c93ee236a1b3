/** Memory: what was allocated over time and for what, what was live at the peak, and the largest blocks of it. */
import type { JSX } from "preact"
import { useMemo, useState } from "preact/hooks"
import { go, overview, place, source, valueOf } from "../data/state"
import type { Memory as MemoryData, RunSnapshot, Table } from "../data/types"
import { choice, choose } from "../data/choice"
import { Curve } from "../components/curve/curve"
import { pointAt } from "../components/curve/stack"
import { capitalised } from "../base/format"
import { Empty, Loaded } from "../components/parts"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { useResource, useTable } from "../data/use_resource"
import "./memory.css"
import { ArrangedTable } from "./pieces/arranged_table"
import { CategoryParts, bytes, formatTick, milliseconds, seriesOf, totalAt, untilOf } from "./pieces/category_parts"
import { PageTop } from "./pieces/page_top"
import { SnapshotBlock } from "./pieces/snapshot_block"

const TABLES = [
  { value: "largest", label: "Largest at the peak" },
  { value: "category", label: "By category" },
  { value: "op", label: "By operator" },
  { value: "module", label: "By module" },
] as const
const FROM = [
  { value: "snapshot", label: "Snapshot of the allocator" },
  { value: "recording", label: "Recording" },
] as const
type Shown = (typeof TABLES)[number]["value"]

export function Memory(): JSX.Element {
  const beside = useResource<RunSnapshot>("memory/snapshot")
  const found = valueOf(beside)
  if (!found?.snapshot) return <Allocations without={valueOf(overview.value)?.missing["memory"] === undefined ? (found?.missing ?? null) : null} />
  const from = choice("from", FROM.map((option) => option.value), "snapshot")
  return (
    <>
      <div class="memory-from">
        <Segments label="From" options={FROM} chosen={from} onChoose={(value) => choose({ from: value === "snapshot" ? "" : value, show: "", sort: "", q: "" })} />
        <span class="caption">{from === "snapshot" ? `${found.snapshot.name}, made in the same Run` : "the memory events of the recording itself"}</span>
      </div>
      {from === "snapshot" ? <SnapshotBlock value={found.snapshot} resource="memory/snapshot/curve" /> : found.unrecorded === null ? <Allocations without={null} /> : <Empty title="Memory" says={capitalised(found.unrecorded)} />}
    </>
  )
}

/** What the recording itself says of memory; `without` is why there is no snapshot beside it. */
function Allocations(props: { readonly without: string | null }): JSX.Element {
  return (
    <Recorded<MemoryData> view="memory" title="Memory" ask={() => useResource<MemoryData>("memory")} empty={(value) => value.at_ns.length === 0}
      otherwise="No allocations were recorded. Record with profile_memory=True.">
      {(value) => <MemoryPage memory={value} without={props.without} />}
    </Recorded>
  )
}

function MemoryPage(props: { readonly memory: MemoryData; readonly without: string | null }): JSX.Element {
  const { memory } = props
  const series = useMemo(() => seriesOf(memory.series), [memory])
  const peak = pointAt(memory.at_ns, memory.peak.at_ns)
  const [cursor, setCursor] = useState(peak)
  const at = memory.at_ns[cursor] ?? 0
  return (
    <div class="page memory">
      <PageTop says={memory.says} />
      <div class="curve-and-parts">
        <Curve label="Memory over time" moments={memory.at_ns} until={untilOf(memory.at_ns)} series={series} marked={peak} cursor={cursor}
          words={`${milliseconds(at)}: ${bytes(totalAt(series, cursor))}`} selection={place.value.selection} formatX={formatTick} formatY={bytes}
          onCursor={setCursor} onSelect={(selection, growing) => go({ selection }, { replace: growing })} onOpen={() => showMoment(at, memory.at_ns)} />
        <CategoryParts series={series} cursor={cursor} at={at} peak={memory.peak}>
          <p class="caption">
            {cursor === peak ? `The peak is at ${milliseconds(memory.peak.at_ns)}. ` : ""}
            <button type="button" class="link" onClick={() => showMoment(at, memory.at_ns)}>Show this moment on the timeline</button>
          </p>
          {props.without !== null && <p class="caption">{capitalised(props.without)}.</p>}
        </CategoryParts>
      </div>
      <Tables memory={memory} />
    </div>
  )
}

function showMoment(ns: number, moments: readonly number[]): void {
  const margin = Math.max(1e5, ((moments.at(-1) ?? 0) - (moments[0] ?? 0)) / 50)
  go({ view: "timeline", shown: { from: Math.max(0, ns - margin), to: ns + margin }, span: null })
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
