/** Profiled: what Nsight Compute measured of single kernels: limits, occupancy, memory access, stalls, and its own advice. */
import type { JSX } from "preact"
import type { Table } from "../data/types"
import { choice, choose } from "../data/choice"
import { valueOf } from "../data/state"
import { Loaded } from "../components/parts"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { useTable } from "../data/use_resource"
import { TABLE_HEIGHT } from "./operators"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop } from "./pieces/page_top"

const TABLES = [
  { value: "profiled", label: "Limits and occupancy" },
  { value: "memory-access", label: "Memory access" },
  { value: "warp-stalls", label: "Warp stalls" },
  { value: "ncu-rules", label: "ncu's advice" },
] as const

export function Profiled(): JSX.Element {
  return (
    <Recorded<Table> view="profiled" title="Profiled" ask={() => useTable("profiled")}
      otherwise="No counters of kernels. Record with foretrace run --with ncu, or name ncu's CSV: --ncu FILE.">
      {(value) => <ProfiledPage limits={value} />}
    </Recorded>
  )
}

function ProfiledPage(props: { readonly limits: Table }): JSX.Element {
  const chosen = choice("table", TABLES.map((option) => option.value), "profiled")
  const table = useTable(chosen)
  const totals = props.limits.values.map((value) => ({ heading: value.heading, text: value.text }))
  return (
    <div class="page">
      <PageTop says={valueOf(table)?.says ?? props.limits.says} totals={totals}>
        <Segments label="Table" options={TABLES} chosen={chosen} onChoose={(value) => choose({ table: value === "profiled" ? "" : value, sort: "" })} />
      </PageTop>
      <Loaded resource={table} what="table">
        {(value) => <ArrangedTable table={value} first={["kernel"]} title="Profiled kernels" height={TABLE_HEIGHT} />}
      </Loaded>
    </div>
  )
}
