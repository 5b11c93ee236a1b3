/** Compare: this run and another, the step as a way from one to the other, and each kernel's part of it; or two benchmarks or memory snapshots. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { go, place, resourceOf, run, runId, runs, source, valueOf } from "../data/state"
import type { BenchComparison, Comparison, RunEntry, SnapshotComparison, Table } from "../data/types"
import { choose } from "../data/choice"
import { arranged, columnOf, unrecorded } from "../components/table/columns"
import { descent } from "../base/descent"
import { type TimeScale, formatMs, timeScale } from "../base/format"
import { Empty, Loaded, Swatch } from "../components/parts"
import { DataTable } from "../components/table/table"
import "./compare.css"
import { BenchComparisonBlock } from "./pieces/bench_comparison"
import { differenceCell } from "./pieces/difference_cell"
import { DifferenceFlame } from "./pieces/difference_flame"
import { PageTop } from "./pieces/page_top"
import { MemoryDifference, SnapshotComparisonBlock } from "./pieces/snapshot_comparison"

export function Compare(): JSX.Element {
  const others = otherRuns()
  const chosen = others.find((entry) => entry.id === place.value.rest["other"]) ?? others[0]
  const id = runId.value
  if (!chosen || id === null) {
    return <Empty title="Nothing to compare with" says={alone()} />
  }
  return (
    <div class="page compare">
      <Chooser others={others} chosen={chosen} />
      <OfSort sort={chosen.sort} id={id} other={chosen.id} />
    </div>
  )
}

interface Pair {
  readonly id: string
  readonly other: string
}

function OfSort(props: Pair & { readonly sort: RunEntry["sort"] }): JSX.Element {
  if (props.sort === "benchmark") return <OfBenchmarks {...props} />
  return props.sort === "snapshot" ? <OfSnapshots {...props} /> : <OfRecordings {...props} />
}

function OfSnapshots(props: Pair): JSX.Element {
  const comparison = resourceOf<SnapshotComparison>(props.id, `compare/${encodeURIComponent(props.other)}`).value
  return (
    <Loaded resource={comparison} what="comparison">
      {(value) => <SnapshotComparisonBlock value={value} />}
    </Loaded>
  )
}

function OfRecordings(props: Pair): JSX.Element {
  const comparison = resourceOf<Comparison>(props.id, `compare/${encodeURIComponent(props.other)}`).value
  return (
    <Loaded resource={comparison} what="comparison">
      {(value) => <ComparisonBlock value={value} />}
    </Loaded>
  )
}

function OfBenchmarks(props: Pair): JSX.Element {
  const comparison = resourceOf<BenchComparison>(props.id, `compare/${encodeURIComponent(props.other)}`).value
  return (
    <Loaded resource={comparison} what="comparison">
      {(value) => <BenchComparisonBlock value={value} />}
    </Loaded>
  )
}

function alone(): string {
  if (run.value?.sort === "benchmark") return `To compare two benchmarks of one kind, open both: foretrace ${source.value?.live ? "serve" : "report"} BEFORE.json AFTER.json.`
  if (run.value?.sort === "snapshot") return `To compare two memory snapshots, open both: foretrace ${source.value?.live ? "serve" : "report"} BEFORE.pickle AFTER.pickle.`
  if (source.value?.live) return "To compare two recordings, open both: foretrace serve BEFORE AFTER."
  const several = (valueOf(runs.value)?.runs.length ?? 0) > 1
  return several ? "A report compares runs of the same program, and this one has no other run here. foretrace serve compares any two." : "This report holds one run. To compare two, write both into it: foretrace report BEFORE AFTER."
}

/** Runs of the same program first. A report compares only those; benchmarks are compared with those of their kind. */
function otherRuns(): readonly RunEntry[] {
  const here = run.value
  const ready = (valueOf(runs.value)?.runs ?? []).filter((entry) => entry.state === "ready" && entry.id !== here?.id && entry.sort === here?.sort)
  const alike = (entry: RunEntry): boolean => entry.group === here?.group || (entry.title !== "" && entry.title === here?.title)
  const near = ready.filter(alike)
  return source.value?.live && here?.sort === "recording" ? [...near, ...ready.filter((entry) => !alike(entry))] : near
}

/** What a run is called; with its group where another has the same name, as two Runs of one program do. */
function told(entry: RunEntry, others: readonly RunEntry[]): string {
  return others.some((other) => other.name === entry.name) ? `${entry.name}, ${entry.group}` : entry.name
}

function Chooser(props: { readonly others: readonly RunEntry[]; readonly chosen: RunEntry }): JSX.Element {
  const { others, chosen } = props
  return (
    <p class="chooser">
      <strong>{run.value && told(run.value, [chosen])}</strong>
      <label>
        compared with{" "}
        <select value={chosen.id} onChange={(event) => choose({ other: event.currentTarget.value })}>
          {others.map((entry) => (
            <option key={entry.id} value={entry.id}>
              {run.value ? told(entry, [run.value]) : entry.name}
              {entry.step_ms === null ? "" : `, ${formatMs(entry.step_ms)}`}
            </option>
          ))}
        </select>
      </label>
      <button type="button" class="button" onClick={() => go({ run: chosen.id, rest: { other: runId.peek() ?? "" } })}>
        Swap
      </button>
    </p>
  )
}

function ComparisonBlock(props: { readonly value: Comparison }): JSX.Element {
  const { value } = props
  return (
    <>
      <PageTop says={`${value.verdict}: ${value.says}${value.why && `, because ${value.why}`}`} />
      {value.rows.length > 0 && <Way value={value} />}
      {value.notes.map((note) => (
        <p key={note} class="quiet small">
          {note}
        </p>
      ))}
      {value.frames.length > 1 && <DifferenceFlame frames={value.frames} />}
      {value.operators.rows_count > 0 && <Differences id="operators-" title="Operators" table={value.operators} noted={value.notes} height="260px" />}
      {value.nodes.rows_count > 0 && <Differences id="parts-" title="Parts of a step" table={value.nodes} noted={value.notes} height="260px" />}
      {value.memory && <MemoryDifference value={value.memory} />}
      <Differences title="Kernels" table={value.kernels} noted={value.notes} height="max(260px, calc(100vh - 520px))" />
    </>
  )
}

/** The waterfall from a to b, and the same parts as numbers. */
function Way(props: { readonly value: Comparison }): JSX.Element {
  const { a, b, rows } = props.value
  const way = useMemo(() => descent(rows), [rows])
  const scale = timeScale(way.most / 1e6)
  return (
    <section class="way">
      <table aria-label={`From ${a.name} to ${b.name}, by cause, per step`}>
        <thead>
          <tr>
            <th scope="col">Causes</th>
            <th scope="col"><span class="unseen">From the first to the second</span></th>
            <th scope="col" class="number">First</th>
            <th scope="col" class="number">Second</th>
            <th scope="col" class="number">Difference</th>
          </tr>
        </thead>
        <tbody>
          <WholeRow name={a.name} ns={way.from} most={way.most} scale={scale} side="a" />
          {way.parts.map(({ part, before, after }) => (
            <tr key={part.label}>
              <th scope="row">
                <Swatch kind={part.kind} /> {part.label}
              </th>
              <td>
                <WayBar before={before} after={after} most={way.most} />
              </td>
              <td class="number">{scale.text(part.a_ns / 1e6)}</td>
              <td class="number">{scale.text(part.b_ns / 1e6)}</td>
              <td class="number">{signed(part.b_ns - part.a_ns, scale)}</td>
            </tr>
          ))}
          <WholeRow name={b.name} ns={way.to} most={way.most} scale={scale} side="b" difference={way.to - way.from} />
        </tbody>
      </table>
      <p class="caption">
        <span class="swatch less" aria-hidden="true" /> less time in the second <span class="swatch more" aria-hidden="true" /> more time in the second
      </p>
    </section>
  )
}

interface WholeRowProps {
  readonly name: string
  readonly ns: number
  readonly most: number
  readonly scale: TimeScale
  readonly side: "a" | "b"
  readonly difference?: number
}

function WholeRow(props: WholeRowProps): JSX.Element {
  const { scale } = props
  const text = `${scale.text(props.ns / 1e6)} ${scale.unit}`
  return (
    <tr class="whole">
      <th scope="row" title={props.name}>{props.name}</th>
      <td>
        <svg width="100%" height="22" aria-hidden="true">
          <rect x="0" y="6" width={`${(100 * props.ns) / props.most}%`} height="11" class="sum" />
        </svg>
      </td>
      <td class="number">{props.side === "a" ? text : ""}</td>
      <td class="number">{props.side === "b" ? text : ""}</td>
      <td class="number">{props.difference === undefined ? "" : `${signed(props.difference, scale)} ${scale.unit}`}</td>
    </tr>
  )
}

function WayBar(props: { readonly before: number; readonly after: number; readonly most: number }): JSX.Element {
  const { before, after, most } = props
  const at = (ns: number): string => `${(100 * ns) / most}%`
  return (
    <svg width="100%" height="22" aria-hidden="true">
      <line x1={at(before)} x2={at(before)} y1="-6" y2="6" class="joint" />
      <rect x={at(Math.min(before, after))} y="6" width={at(Math.abs(after - before))} height="11" class={after <= before ? "less" : "more"} />
    </svg>
  )
}

function signed(ns: number, scale: TimeScale): string {
  const text = scale.text(Math.abs(ns) / 1e6)
  if (Number(text.replaceAll(",", "")) === 0) return text
  return `${ns < 0 ? "−" : "+"} ${text}`
}

function Differences(props: { readonly id?: string; readonly title: string; readonly table: Table; readonly noted: readonly string[]; readonly height: string }): JSX.Element {
  const { noted } = props
  const table = useMemo(() => named(props.table, noted), [props.table, noted])
  const most = useMemo(() => columnOf(table, "difference_ns").reduce<number>((largest, ns) => Math.max(largest, Math.abs(Number(ns ?? 0))), 0), [table])
  return <DataTable {...(props.id === undefined ? {} : { id: props.id })} table={table} title={props.title} hide={unrecorded(table)} height={props.height} cell={(column, _, value) => differenceCell(column, value, most)} />
}

const HEADINGS: Readonly<Record<string, string>> = { before_count: "calls, first", after_count: "calls, second", before_ns: "GPU, first", after_ns: "GPU, second", a_kernel: "kernel, first", b_kernel: "kernel, second", before_kernel: "kernel, first", after_kernel: "kernel, second", before_shapes: "shapes, first", after_shapes: "shapes, second", a_count: "calls, first", b_count: "calls, second", a_host_ns: "host, first", b_host_ns: "host, second", a_ns: "GPU, first", b_ns: "GPU, second", difference_ns: "difference per step" }

const AMOUNTS = ["a_count", "b_count", "before_count", "after_count", "a_host_ns", "b_host_ns", "a_ns", "b_ns", "before_ns", "after_ns", "difference_ns"]

/** With headings in words; what is said above the table is not said again below it. */
function named(table: Table, noted: readonly string[]): Table {
  const shown = arranged(table, ["change", "op", "module", "type", "name", ...(table.name === "operators" ? [] : ["role"]), ...AMOUNTS])
  return { ...shown, columns: shown.columns.map((column) => ({ ...column, heading: HEADINGS[column.name] ?? column.heading })), notes: table.notes.filter((note) => !noted.includes(note)) }
}
