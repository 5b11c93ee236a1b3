/** How each rank's device spent its time, and how much of its communication computation hid: of many ranks, those in sight. */
import type { ComponentChildren, JSX } from "preact"
import { useMemo } from "preact/hooks"
import { fixed, formatNs } from "../../base/format"
import { columnOf } from "../../components/table/columns"
import { Spacer, useRowsInSight } from "../../components/table/scrolling"
import type { Cell, Ranks, Table } from "../../data/types"
import "./rank_shares.css"

const ROW_PX = 25 // as in rank_shares.css, with the space between rows
const STRONGEST_PCT = 46 // text stays readable on it in both themes

interface ScrolledProps {
  readonly title: string
  readonly label: string
  readonly kind: string
  readonly head: JSX.Element
  readonly count: number
  readonly row: (row: number) => ComponentChildren
}

/** A table of which only the rows in sight are in the page. */
function Scrolled(props: ScrolledProps): JSX.Element {
  const { scroller, look, first, last } = useRowsInSight(props.count, ROW_PX)
  return (
    <section>
      <h2>{props.title}</h2>
      <div class="shares-scroller" ref={scroller} onScroll={look} tabIndex={0} role="region" aria-label={props.title}>
        <table class={props.kind} aria-label={props.label} aria-rowcount={props.count + 1}>
          <thead>{props.head}</thead>
          <tbody>
            <Spacer rows={first} rowPx={ROW_PX} />
            {Array.from({ length: last - first }, (_, at) => (
              <tr key={first + at} aria-rowindex={first + at + 2}>{props.row(first + at)}</tr>
            ))}
            <Spacer rows={props.count - last} rowPx={ROW_PX} />
          </tbody>
        </table>
      </div>
    </section>
  )
}

/** The larger its share, the darker a cell: from nothing to the largest share of the table. */
export function Shares(props: { readonly value: Ranks }): JSX.Element {
  const { ranks, parts, share_pct: share } = props.value
  const most = useMemo(() => share.reduce((high, row) => row.reduce((a, b) => Math.max(a, b), high), 1), [share])
  const head = (
    <tr>
      <th scope="col">Rank</th>
      {parts.map((part) => (
        <th key={part} scope="col">{part}</th>
      ))}
    </tr>
  )
  const row = (at: number): JSX.Element => (
    <>
      <th scope="row">{ranks[at]}</th>
      {parts.map((part, column) => (
        <Share key={part} pct={share[at]?.[column] ?? 0} most={most} />
      ))}
    </>
  )
  return <Scrolled title="Device time by rank" label="Shares of each rank's device time" kind="heat" head={head} count={ranks.length} row={row} />
}

function Share(props: { readonly pct: number; readonly most: number }): JSX.Element {
  const strength = fixed((STRONGEST_PCT * props.pct) / props.most, 0)
  return <td style={{ background: `color-mix(in srgb, var(--accent) ${strength}%, var(--bg))` }}>{fixed(props.pct, 1)} %</td>
}

/** Communication of each rank: hidden behind computation, and exposed. */
export function Overlap(props: { readonly table: Table }): JSX.Element | null {
  const { table } = props
  const [ranks, all, exposed, overlap] = ["rank", "communication_ns", "exposed_communication_ns", "overlap_pct"].map((name) => columnOf(table, name)) as [Cells, Cells, Cells, Cells]
  const most = useMemo(() => all.reduce<number>((high, cell) => Math.max(high, numberOf(cell)), 0), [all])
  if (most === 0) return null
  const head = (
    <tr>
      <th scope="col">Rank</th>
      <th scope="col" class="legend-head">
        <span class="swatch hidden-part" aria-hidden="true" /> hidden <span class="swatch exposed-part" aria-hidden="true" /> exposed
      </th>
      <th scope="col" class="number">Exposed</th>
      <th scope="col" class="number">Overlap</th>
    </tr>
  )
  const row = (at: number): JSX.Element => (
    <>
      <th scope="row">{String(ranks[at])}</th>
      <td>
        <span class="overlap-bar" aria-hidden="true">
          <span class="hidden-part" style={{ width: `${(100 * Math.max(0, numberOf(all[at]) - numberOf(exposed[at]))) / most}%` }} />
          <span class="exposed-part" style={{ width: `${(100 * numberOf(exposed[at])) / most}%` }} />
        </span>
      </td>
      <td class="number">{formatNs(cellNs(exposed[at]))}</td>
      <td class="number">{overlapText(overlap[at])}</td>
    </>
  )
  return <Scrolled title="Communication" label="Communication of each rank, hidden and exposed" kind="overlap" head={head} count={ranks.length} row={row} />
}

type Cells = readonly Cell[]

function numberOf(cell: Cell | undefined): number {
  return typeof cell === "number" ? cell : 0
}

function cellNs(cell: Cell | undefined): number | null {
  return typeof cell === "number" ? cell : null
}

function overlapText(cell: Cell | undefined): string {
  return typeof cell === "number" ? `${fixed(cell, 1)} %` : "–"
}
