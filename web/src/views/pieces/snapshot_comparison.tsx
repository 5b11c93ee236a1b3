/** Two memory snapshots: what their peaks differ in, by source line and more. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { choice, choose } from "../../data/choice"
import type { SnapshotComparison, Table } from "../../data/types"
import { Segments } from "../../components/segments"
import { columnOf } from "../../components/table/columns"
import { DataTable } from "../../components/table/table"
import { bytes } from "./category_parts"
import { differenceCell } from "./difference_cell"
import { PageTop } from "./page_top"

const BY = [
  { value: "line", label: "By source line" },
  { value: "category", label: "By category" },
  { value: "phase", label: "By phase" },
  { value: "module", label: "By module" },
] as const

interface Chosen {
  readonly device: SnapshotComparison["devices"][number] | undefined
  readonly table: Table | undefined
  readonly by: string
  readonly most: number
  readonly choosers: JSX.Element
}

/** The device and the key that were chosen, and the controls that choose them. */
function useChosen(value: SnapshotComparison): Chosen {
  const names = value.devices.map((device) => device.name)
  const chosen = choice("device", names, names[0] ?? "")
  const by = choice("show", BY.map((option) => option.value), "line")
  const device = value.devices.find((candidate) => candidate.name === chosen)
  const table = device?.tables[by]
  const most = useMemo(() => (table ? Math.max(0, ...columnOf(table, "change_bytes").map((cell) => Math.abs(Number(cell ?? 0)))) : 0), [table])
  const choosers = (
    <>
      {names.length > 1 && <Segments label="Device" options={names.map((name) => ({ value: name, label: name }))} chosen={chosen} onChoose={(name) => choose({ device: name })} />}
      {device && <Segments label="At the peaks" options={BY} chosen={by} onChoose={(name) => choose({ show: name === "line" ? "" : name, sort: "", q: "" })} />}
    </>
  )
  return { device, table, by, most, choosers }
}

const NONE_SHARED = "The two snapshots have no device in common, so nothing can be compared."

export function SnapshotComparisonBlock(props: { readonly value: SnapshotComparison }): JSX.Element {
  const { value } = props
  const { device, table, by, most, choosers } = useChosen(value)
  return (
    <>
      <PageTop says={device?.says ?? NONE_SHARED}
        totals={device ? [{ heading: `first: ${value.a}`, text: bytes(device.before_bytes) }, { heading: `second: ${value.b}`, text: bytes(device.after_bytes) }] : []}>
        {choosers}
      </PageTop>
      {value.notes.map((note) => <p key={note} class="note-line">{note}</p>)}
      {table && <DataTable key={by} table={table} title="What differs" height="max(300px, calc(100vh - 320px))" cell={(column, _, cell) => differenceCell(column, cell, most)} />}
    </>
  )
}

/** The same as a part of the comparison of two recordings: of the snapshots of their Runs. */
export function MemoryDifference(props: { readonly value: SnapshotComparison }): JSX.Element {
  const { device, table, by, most, choosers } = useChosen(props.value)
  return (
    <section class="memory-difference">
      <h2>GPU memory</h2>
      <p>{device?.says ?? NONE_SHARED}</p>
      {choosers}
      {props.value.notes.map((note) => <p key={note} class="note-line">{note}</p>)}
      {table && <DataTable id="memory-" key={by} table={table} title="Memory at the peaks" height="260px" cell={(column, _, cell) => differenceCell(column, cell, most)} />}
    </section>
  )
}
