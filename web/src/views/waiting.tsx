/** Waiting: why the GPU was idle, gap by gap, and what else holds the host or the GPU up. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { formatNs } from "../base/format"
import { colourOf } from "../components/parts"
import { Recorded } from "../components/recorded"
import { type Share, ShareStrip } from "../components/share_strip"
import { columnOf } from "../components/table/columns"
import { rowCount } from "../components/table/rows"
import { go, linkTo } from "../data/state"
import type { Cell, HostKind, Kind, Table, TableColumn, Waiting as WaitingData, WaitingTable } from "../data/types"
import { useResource } from "../data/use_resource"
import { ArrangedTable } from "./pieces/arranged_table"
import { PageTop, type Total } from "./pieces/page_top"
import "./waiting.css"

const CAUSES_FIRST = ["cause", "share_pct", "total_ns", "gaps_count", "longest_ns", "why", "doing", "where"]
const GAPS_FIRST = ["start_ns", "idle_ns", "cause", "cause_pct", "waited_for", "where", "next", "step"]
const TOTALS = ["idle_pct", "idle_ns", "gaps_count", "host_pct", "after_sync_ns"]

export function Waiting(): JSX.Element {
  return (
    <Recorded<WaitingData> view="waiting" title="Waiting" ask={() => useResource<WaitingData>("waiting")} empty={(value) => rowCount(value.idle) === 0}
      otherwise="The GPU was never idle in this recording.">
      {(value) => <WaitingPage value={value} />}
    </Recorded>
  )
}

function WaitingPage(props: { readonly value: WaitingData }): JSX.Element {
  const { idle, gaps, others, says } = props.value
  return (
    <div class="page waiting">
      <PageTop says={says} totals={totals(idle)} />
      <ShareStrip title="Idle time" shares={shares(idle)} most={14} />
      <ArrangedTable table={idle} first={CAUSES_FIRST} title="Why the GPU was idle" id="idle-" sort="-total_ns" height="310px" unfiltered hide={["span_pct", "kind"]} />
      {gaps !== null && <Gaps table={gaps} />}
      {others.map((other) => (
        <Other key={other.name} other={other} />
      ))}
    </div>
  )
}

function totals(idle: Table): readonly Total[] {
  const chosen = idle.values.filter((value) => TOTALS.includes(value.name))
  return chosen.map((value) => ({ heading: HEADINGS[value.name] ?? value.heading, text: value.text }))
}

const HEADINGS: Readonly<Record<string, string>> = { idle_pct: "idle share", idle_ns: "idle", host_pct: "waiting for the host", after_sync_ns: "after blocking calls" }

/** In the colours of the lane on the timeline: a gap has that of what it waited for. */
function shares(idle: Table): readonly Share[] {
  const pct = columnOf(idle, "share_pct")
  const kinds = columnOf(idle, "kind")
  return columnOf(idle, "cause").map((cause, row) => ({ label: String(cause), pct: Number(pct[row] ?? 0), colour: colourOf(kinds[row] as Kind | HostKind) }))
}

/** One click on when a gap began leads to it on the timeline. */
function Gaps(props: { readonly table: Table }): JSX.Element {
  const { table } = props
  const spans = useMemo(() => columnOf(table, "span"), [table])
  const place = (row: number): Parameters<typeof linkTo>[0] => ({ view: "timeline", span: Number(spans[row]), shown: null, selection: null })
  const cell = (column: TableColumn, row: number, value: Cell): JSX.Element | undefined =>
    column.name === "start_ns" && typeof value === "number" ? <a href={linkTo(place(row))}>{formatNs(value)}</a> : undefined
  return (
    <>
      <ArrangedTable table={table} first={GAPS_FIRST} title="Longest gaps" id="gaps-" sort="-idle_ns" height="310px" hide={["span"]} cell={cell} onOpen={(row) => go(place(row))} />
      <p class="note-line quiet small">Choose when a gap began to see it on the timeline, with what the host did meanwhile.</p>
    </>
  )
}

function Other(props: { readonly other: WaitingTable }): JSX.Element {
  const { name, title, table, missing } = props.other
  if (table === null) {
    return (
      <section class="absent">
        <h2>{title}</h2>
        <p class="quiet">{missing}</p>
      </section>
    )
  }
  return (
    <section>
      <ArrangedTable table={table} first={[]} title={title} id={`${name}-`} height="280px" unfiltered />
      <p class="note-line quiet small">{table.says}</p>
    </section>
  )
}
