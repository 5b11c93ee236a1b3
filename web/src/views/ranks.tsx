/** Ranks: how each rank of a distributed run spends its device's time, and how much communication computation hides. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { overview, source, valueOf } from "../data/state"
import type { Cell, Ranks as RanksData, Table } from "../data/types"
import { columnOf } from "../components/table/columns"
import { fixed, formatNs } from "../base/format"
import { Empty, Failed, Loading } from "../components/parts"
import { useResource, useTable } from "../data/use_resource"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop } from "./pieces/page_top"
import { RankClock } from "./pieces/rank_clock"
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
        <HeatMap value={value} />
        <Overlap table={value.table} />
      </div>
      <ArrangedTable table={value.table} first={["rank", "name"]} id="r" title="Ranks" sort="rank" height="max(180px, 30vh)" unfiltered={value.ranks.length < 9} />
      <Collectives />
    </div>
  )
}

/** The larger its share, the darker a cell: from nothing to the largest share of the table. */
function HeatMap(props: { readonly value: RanksData }): JSX.Element {
  const { ranks, parts, share_pct: share } = props.value
  const most = share.reduce((high, row) => row.reduce((a, b) => Math.max(a, b), high), 1)
  return (
    <section>
      <h2>Device time by rank</h2>
      <div class="heat-scroller" tabIndex={0} role="region" aria-label="Device time by rank">
        <table class="heat">
          <thead>
            <tr>
              <th scope="col">Rank</th>
              {parts.map((part) => (
                <th key={part} scope="col">{part}</th>
              ))}
            </tr>
          </thead>
          <tbody>
            {ranks.map((rank, row) => (
              <tr key={rank}>
                <th scope="row">{rank}</th>
                {parts.map((part, at) => (
                  <HeatCell key={part} pct={share[row]?.[at] ?? 0} most={most} />
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </section>
  )
}

const STRONGEST_PCT = 46 // text stays readable on it in both themes

function HeatCell(props: { readonly pct: number; readonly most: number }): JSX.Element {
  const strength = fixed((STRONGEST_PCT * props.pct) / props.most, 0)
  return <td style={{ background: `color-mix(in srgb, var(--accent) ${strength}%, var(--bg))` }}>{fixed(props.pct, 1)} %</td>
}

/** Communication of each rank: hidden behind computation, and exposed. */
function Overlap(props: { readonly table: Table }): JSX.Element | null {
  const { table } = props
  const all = columnOf(table, "communication_ns")
  const exposed = columnOf(table, "exposed_communication_ns")
  const most = useMemo(() => Math.max(0, ...all.map(numberOf)), [table])
  if (most === 0) return null
  return (
    <section>
      <h2>Communication</h2>
      <table class="overlap" aria-label="Communication of each rank, hidden and exposed">
        <thead>
          <tr>
            <th scope="col">Rank</th>
            <th scope="col" class="legend-head">
              <span class="swatch hidden-part" aria-hidden="true" /> hidden <span class="swatch exposed-part" aria-hidden="true" /> exposed
            </th>
            <th scope="col" class="number">Exposed</th>
            <th scope="col" class="number">Overlap</th>
          </tr>
        </thead>
        <tbody>
          {columnOf(table, "rank").map((rank, row) => (
            <tr key={row}>
              <th scope="row">{String(rank)}</th>
              <td>
                <span class="overlap-bar" aria-hidden="true">
                  <span class="hidden-part" style={{ width: `${(100 * Math.max(0, numberOf(all[row]) - numberOf(exposed[row]))) / most}%` }} />
                  <span class="exposed-part" style={{ width: `${(100 * numberOf(exposed[row])) / most}%` }} />
                </span>
              </td>
              <td class="number">{formatNs(cellNs(exposed[row]))}</td>
              <td class="number">{overlapText(columnOf(table, "overlap_pct")[row])}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </section>
  )
}

function numberOf(cell: Cell | undefined): number {
  return typeof cell === "number" ? cell : 0
}

function cellNs(cell: Cell | undefined): number | null {
  return typeof cell === "number" ? cell : null
}

function overlapText(cell: Cell | undefined): string {
  return typeof cell === "number" ? `${fixed(cell, 1)} %` : "–"
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
