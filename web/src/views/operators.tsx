/** Operators: what each costs the host and the device, itself and with all that it calls. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { go, search, valueOf } from "../data/state"
import type { Table } from "../data/types"
import { choice, choose } from "../data/choice"
import { arranged, columnOf, rowsWhere, unrecorded } from "../components/table/columns"
import { counted } from "../base/format"
import { Recorded } from "../components/recorded"
import { rowCount } from "../components/table/rows"
import { Segments } from "../components/segments"
import { type Share, ShareStrip } from "../components/share_strip"
import { DataTable } from "../components/table/table"
import { useTable } from "../data/use_resource"
import { Grouping } from "./pieces/grouping"
import { PageTop, type Total } from "./pieces/page_top"

const GROUPS = [
  { value: "name", label: "Name" },
  { value: "shape", label: "Name and shapes", title: "Needs record_shapes=True" },
  { value: "stack", label: "Name and stack", title: "Needs with_stack=True" },
] as const
const SHOWN = ["op", "runtime", "annotation", "device", "all"] as const
type Shown = (typeof SHOWN)[number]
const SHOWN_LABELS: Readonly<Record<Shown, string>> = { op: "Operators", runtime: "Runtime calls", annotation: "Annotations", device: "Kernels, copies", all: "All" }
const FIRST = ["name", "kind", "on", "input_shapes", "shapes", "stack", "calls_count", "device_self_ns", "device_self_pct", "device_total_ns", "host_self_ns", "host_self_pct", "host_total_ns", "host_total_pct"]
/** All of the window that is left below the choices and the strips. */
export const TABLE_HEIGHT = "max(300px, calc(100vh - 330px))"

export function Operators(): JSX.Element {
  const by = choice("by", GROUPS.map((group) => group.value), "name")
  return (
    <Recorded view="operators" title="Operators" ask={() => useTable(by === "name" ? "operators" : `operators?group_by=${by}`)} empty={(value) => rowCount(value) === 0}
      otherwise="No operators were recorded. Record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA].">
      {(value) => <OperatorsPage table={value} by={by} />}
    </Recorded>
  )
}

function OperatorsPage(props: { readonly table: Table; readonly by: (typeof GROUPS)[number]["value"] }): JSX.Element {
  const { table } = props
  const shown = choice("show", SHOWN, "op")
  const rows = useMemo(() => arranged(only(table, shown), FIRST), [table, shown])
  const onHost = useMemo(() => rowsWhere(rowsWhere(table, "on", (on) => on === "host"), "kind", (kind) => kind !== "overhead"), [table])
  const absent = useMemo(() => unrecorded(table), [table])
  const onDevice = !absent.includes("device_self_ns")
  const efficiency = onDevice ? valueOf(useTable("gpu-efficiency")) : null
  return (
    <div class="page">
      <PageTop says={table.says} totals={[...table.values, ...tensorCores(efficiency)]}>
        <Grouping options={GROUPS} chosen={props.by} />
        <Segments label="Show" chosen={shown} onChoose={(value) => choose({ show: value === "op" ? "" : value })}
          options={SHOWN.filter((rows) => rowCount(only(table, rows)) > 0).map((value) => ({ value, label: SHOWN_LABELS[value] }))} />
      </PageTop>
      <ShareStrip title="Host self time" shares={shares(onHost, "host_self_pct")} />
      {onDevice && <ShareStrip title="Device self time" shares={shares(onHost, "device_self_pct")} />}
      <DataTable table={rows} title={SHOWN_LABELS[shown] === "All" ? "All rows" : SHOWN_LABELS[shown]} sort={onDevice ? "-device_self_ns" : "-host_self_ns"}
        height={TABLE_HEIGHT} hide={[...absent, ...(shown === "all" || shown === "device" ? [] : ["on", "kind"])]}
        onOpen={(row) => searchTimeline(String(columnOf(rows, "name")[row] ?? ""))} />
      <p class="note-line quiet small">
        {absent.length > 0 && `Not recorded: ${absentWords(absent).join(", ")}. `}Press Enter or double-click a row to search for it on the timeline.
      </p>
    </div>
  )
}

function only(table: Table, shown: Shown): Table {
  if (shown === "all") return table
  if (shown === "device") return rowsWhere(table, "kind", (kind) => kind === "kernel" || kind === "copy" || kind === "set")
  return rowsWhere(table, "kind", (kind) => kind === shown)
}

function shares(table: Table, column: string): readonly Share[] {
  const names = columnOf(table, "name")
  return columnOf(table, column).map((pct, row) => ({ label: String(names[row] ?? "").replace(/^aten::/, ""), pct: typeof pct === "number" ? pct : 0 }))
}

const TENSOR_CORES: Readonly<Record<string, Omit<Total, "text">>> = {
  tensor_core_pct: { heading: "on tensor cores", says: "Share of kernel time" },
  tensor_core_eligible_pct: { heading: "of capable work", says: "Share of the work that tensor cores could do" },
}

/** How much time tensor cores took: of all kernel time, and of the work that they could do. */
export function tensorCores(efficiency: Table | null): readonly Total[] {
  return (efficiency?.values ?? []).flatMap((value) => {
    const total = TENSOR_CORES[value.name]
    return total ? [{ ...total, text: value.text }] : []
  })
}

const NEEDED: readonly (readonly [part: string, words: string])[] = [
  ["device_self_ns", "device time (ProfilerActivity.CUDA)"], ["memory", "memory (profile_memory=True)"], ["flops", "FLOPs (with_flops=True)"],
]

function absentWords(absent: readonly string[]): readonly string[] {
  const words = NEEDED.filter(([part]) => absent.some((column) => column.includes(part))).map(([, text]) => text)
  return words.length > 0 ? words : [counted(absent.length, "column")]
}

export function searchTimeline(text: string): void {
  search.value = text.replace(/^aten::/, "")
  go({ view: "timeline", span: null })
}
