/** Ranks: how each rank of a distributed run spends its device's time, and how much communication computation hides. */
import type { JSX } from "preact"
import { overview, source, valueOf } from "../data/state"
import type { Ranks as RanksData } from "../data/types"
import { Empty, Failed, Loading } from "../components/parts"
import { useResource, useTable } from "../data/use_resource"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop } from "./pieces/page_top"
import { RankClock } from "./pieces/rank_clock"
import { Overlap, Shares } from "./pieces/rank_shares"
import "./ranks.css"

const ALONE = "To compare ranks, open the other ranks' recordings too, for example with foretrace serve FOLDER."

/** A rank that is alone may still communicate: its collectives are shown. */
export function Ranks(): JSX.Element {
  const about = overview.value
  if (about.state === "loading") return <Loading what="Loading ranks …" />
  const missing = valueOf(about)?.missing["ranks"]
  if (missing !== undefined && !besideOthers()) return <Empty title="Ranks" says={missing} />
  return <Found missing={missing} />
}

/** A report holds only its own runs; a server may have read more since the overview was made. */
function besideOthers(): boolean {
  return source.value?.live === true && valueOf(overview.value)?.counts["ranks"] !== undefined
}

function Found(props: { readonly missing: string | undefined }): JSX.Element {
  const resource = useResource<RanksData>("ranks")
  if (resource.state === "loading") return <Loading what="Loading ranks …" />
  if (resource.state === "failed") return <Failed what="The ranks could not be loaded" says={resource.says} />
  if (resource.value.ranks.length < 2 && resource.value.job.length < 2 && props.missing !== undefined) return <Empty title="Ranks" says={props.missing} />
  return <RanksPage value={resource.value} />
}

function RanksPage(props: { readonly value: RanksData }): JSX.Element {
  const { value } = props
  return (
    <div class="page ranks">
      <PageTop says={value.says} />
      {value.job.length < 2 && value.ranks.length < 2 && <p class="quiet">{ALONE}</p>}
      {value.steps.length > 0 && <RankClock value={value} />}
      <div class="heat-and-overlap">
        <Shares value={value} />
        <Overlap table={value.table} />
      </div>
      <ArrangedTable table={value.table} first={["rank", "name"]} id="r" title="Ranks" sort="rank" height="max(180px, 30vh)" unfiltered={value.ranks.length < 9} />
      <Collectives />
    </div>
  )
}

function Collectives(): JSX.Element | null {
  const table = valueOf(useTable("communication"))
  if (!table || table.rows_count === 0) return null
  return (
    <>
      <div class="section-title">
        <h2>Collectives of this rank</h2>
        <span class="caption">{table.says}</span>
      </div>
      <ArrangedTable table={table} first={[]} id="c" title="Collectives" sort="-total_ns" height="max(180px, 30vh)" />
    </>
  )
}
