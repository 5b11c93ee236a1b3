/** Kernels: which ones the device's time goes to, and how well they fill it. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { go, linkTo, source, valueOf } from "../data/state"
import type { Cell, Kind, Table, TableColumn, WhatIfKernels } from "../data/types"
import { choice, choose } from "../data/choice"
import { visible } from "../base/format"
import { columnOf } from "../components/table/columns"
import { Swatch, colourOf, kindText } from "../components/parts"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { rowCount } from "../components/table/rows"
import { type Share, ShareStrip } from "../components/share_strip"
import { kindsOf } from "../components/table/table"
import { useResource, useTable } from "../data/use_resource"
import { TABLE_HEIGHT, searchTimeline, tensorCores } from "./operators"
import { ArrangedTable } from "./pieces/arranged_table"
import { Grouping } from "./pieces/grouping"
import { PageTop, type Total } from "./pieces/page_top"

const GROUPS = [
  { value: "name", label: "Name" },
  { value: "config", label: "Name, operator, launch", title: "Also by grid, block, registers and shared memory" },
  { value: "op", label: "Operator" },
] as const
type Group = (typeof GROUPS)[number]["value"]
const FIRST = ["title", "op", "names_count", "per_step_count", "calls_count", "per_step_ns", "total_ns", "total_pct", "tensor_cores", "mean_ns", "max_ns", "min_ns", "blocks_per_sm_count", "occupancy_pct"]
const TIMES = [{ value: "total", label: "Total" }, { value: "step", label: "Per step" }] as const
/** For the swatches and for going to the timeline, not to be read. */
const UNREAD = ["kind", "span"]

export function Kernels(): JSX.Element {
  const by = choice("by", GROUPS.map((group) => group.value), "name")
  const early = choice("early", ["with", ""], "") === "with"
  const query = new URLSearchParams({ ...(by === "name" ? {} : { group_by: by }), ...(early ? { orphans: "1" } : {}) }).toString()
  return (
    <Recorded view="kernels" title="Kernels" ask={() => useTable(query === "" ? "kernels" : `kernels?${query}`)} empty={(value) => rowCount(value) === 0}
      otherwise="No kernels were recorded: record with ProfilerActivity.CUDA.">
      {(value) => <KernelsPage table={value} by={by} early={early} />}
    </Recorded>
  )
}

function KernelsPage(props: { readonly table: Table; readonly by: Group; readonly early: boolean }): JSX.Element {
  const { table, by, early } = props
  const known = valueOf(useResource<WhatIfKernels>("whatif"))
  const rows = useMemo(() => kernelRows(table, known), [table, known])
  const perStep = columnOf(table, "per_step_ns").some((ns) => ns !== null)
  const times = perStep ? choice("times", ["total", "step"], "total") : "total"
  const headed = useMemo(() => withHeadings(table), [table])
  const efficiency = valueOf(useTable("gpu-efficiency"))
  const hasEarly = table.values.some((value) => value.name === "orphan_count" && value.text !== "0")
  return (
    <div class="page">
      <PageTop says={table.says} totals={[...totals(table), ...ofDevice(efficiency)]}>
        <Grouping options={GROUPS} chosen={by} />
        {perStep && <Segments label="Times" options={TIMES} chosen={times} onChoose={(value) => choose({ times: value === "total" ? "" : value, sort: "" })} />}
        {hasEarly && source.value?.live && (
          <label class="tick">
            <input type="checkbox" checked={early} onChange={(event) => choose({ early: event.currentTarget.checked ? "with" : "" })} />
            include kernels queued before the recording
          </label>
        )}
        <Legend kinds={rows.kinds} />
      </PageTop>
      <ShareStrip title="Kernel time" shares={rows.shares} most={14} />
      <ArrangedTable table={headed} first={FIRST} title="Kernels" height={TABLE_HEIGHT} sort={times === "step" ? "-per_step_ns" : "-total_ns"} hide={[...UNREAD, ...(times === "step" ? ["total_ns", "calls_count"] : ["per_step_ns", "per_step_count"])]} kinds={rows.kinds} onOpen={(row) => show(rows, row)} cell={(column, row, value) => nameCell(rows, column, row, value)} />
      <p class="note-line quiet small">
        A kernel’s name leads to a call in a middle step on the timeline, where the others can be stepped through. <a href={linkTo({ view: "findings" })}>Findings</a> shows what a faster kernel would be worth.
      </p>
    </div>
  )
}

/** The short name is what a row is called. */
function withHeadings(table: Table): Table {
  const words: Readonly<Record<string, string>> = { title: "kernel", name: "whole name", per_step_ns: "per step", per_step_count: "calls per step" }
  return { ...table, columns: table.columns.map((column) => ({ ...column, heading: words[column.name] ?? column.heading })) }
}

interface KernelRows {
  readonly titles: readonly string[]
  readonly kinds: readonly (Kind | null)[]
  readonly spans: readonly (number | null)[]
  readonly shares: readonly Share[]
}

/** What is known of each row beside its numbers: from the table where it says so, else from the list of what-if. */
export function kernelRows(table: Table, known: WhatIfKernels | null): KernelRows {
  const named = new Map((known?.kernels ?? []).map((kernel) => [kernel.name, kernel]))
  const names = columnOf(table, "name").length > 0 ? columnOf(table, "name") : columnOf(table, "op")
  const said = kindsOf(table)
  const written = columnOf(table, "title")
  const kinds = names.map((name, row) => said[row] ?? named.get(String(name))?.kind ?? null)
  const titles = names.map((name, row) => String(written[row] ?? named.get(String(name))?.title ?? name ?? "no operator"))
  const spans = columnOf(table, "span")
  const pct = columnOf(table, "total_pct")
  return {
    titles,
    kinds,
    spans: names.map((_, row) => (typeof spans[row] === "number" ? spans[row] : null)),
    shares: titles.map((label, row) => ({ label, pct: Number(pct[row] ?? 0), ...colourOfRow(kinds[row] ?? null) })),
  }
}

function colourOfRow(kind: Kind | null): { readonly colour?: string } {
  return kind === null ? {} : { colour: colourOf(kind) }
}

function show(rows: KernelRows, row: number): void {
  const span = rows.spans[row] ?? null
  if (span === null) searchTimeline(rows.titles[row] ?? "")
  else go(onTimeline(rows, row, span))
}

/** A call in a middle step, with the other calls of its name in sight. */
function onTimeline(rows: KernelRows, row: number, span: number): Parameters<typeof linkTo>[0] {
  return { view: "timeline", span, shown: null, selection: null, rest: { name: rows.titles[row] ?? "" } }
}

/** The friendly name leads to the timeline; the whole name is in a column of its own. */
function nameCell(rows: KernelRows, column: TableColumn, row: number, value: Cell): JSX.Element | undefined {
  const span = rows.spans[row] ?? null
  if (column.name !== "title" || span === null) return undefined
  return <a href={linkTo(onTimeline(rows, row, span))}>{visible(String(value))}</a>
}

function Legend(props: { readonly kinds: readonly (Kind | null)[] }): JSX.Element {
  const present = [...new Set(props.kinds)].filter((kind) => kind !== null)
  return (
    <ul class="legend">
      {present.map((kind) => (
        <li key={kind}>
          <Swatch kind={kind} /> {kindText(kind)}
        </li>
      ))}
    </ul>
  )
}

function totals(table: Table): readonly Total[] {
  const headings: Readonly<Record<string, string>> = { kernel_count: "kernels", distinct_count: "distinct", total_ns: "total time", orphan_count: "queued before recording", orphan_ns: "their time" }
  return table.values.map((value) => ({ heading: headings[value.name] ?? value.heading, text: value.text }))
}

function ofDevice(efficiency: Table | null): readonly Total[] {
  const wanted = ["sm_efficiency_pct", "occupancy_pct"]
  const filled = (efficiency?.values ?? []).filter((value) => wanted.includes(value.name)).map((value) => ({ heading: value.heading, text: value.text }))
  return [...filled, ...tensorCores(efficiency)]
}
