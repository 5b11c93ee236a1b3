/** Sections: the ranges that the program marked, and the run broken down by them and by its kernels. */
import type { JSX } from "preact"
import type { Sections as SectionsData, Table } from "../data/types"
import { choice, choose } from "../data/choice"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { useResource } from "../data/use_resource"
import { TABLE_HEIGHT } from "./operators"
import { ArrangedTable } from "./pieces/arranged_table"
import { Breakdown } from "./pieces/breakdown"
import { PageTop } from "./pieces/page_top"

const SHOWN = [
  { value: "breakdown", label: "Breakdown", title: "The run in one table: steps, ranges, their parts, kernels by kind" },
  { value: "sections", label: "All sections", title: "Every range with its time on the host and on the GPU" },
] as const
const FIRST = ["section", "device_ns", "device_pct", "host_ns", "host_pct", "host_exclusive_ns", "residual_pct", "calls_count", "top_kernel"]

export function Sections(): JSX.Element {
  return (
    <Recorded<SectionsData> view="sections" title="Sections" ask={() => useResource<SectionsData>("sections")}
      otherwise="No ranges were recorded. Mark parts of the program with torch.profiler.record_function or torch.cuda.nvtx.range.">
      {(value) => <SectionsPage value={value} />}
    </Recorded>
  )
}

function SectionsPage(props: { readonly value: SectionsData }): JSX.Element {
  const tables: Readonly<Record<(typeof SHOWN)[number]["value"], Table | null>> = props.value
  const options = SHOWN.filter((option) => tables[option.value] !== null)
  const shown = choice("show", options.map((option) => option.value), options[0]?.value ?? "sections")
  const table = tables[shown]
  return (
    <div class="page">
      <PageTop says={table?.says ?? props.value.says}>
        {options.length > 1 && <Segments label="Show" options={options} chosen={shown} onChoose={(value) => choose({ show: value === options[0]?.value ? "" : value, sort: "" })} />}
      </PageTop>
      {table && shown === "breakdown" && <Breakdown table={table} />}
      {table && shown === "sections" && <ArrangedTable table={table} first={FIRST} title="Sections" height={TABLE_HEIGHT} />}
      {table?.notes.map((note) => <p key={note} class="note-line quiet small">{note}</p>)}
    </div>
  )
}
