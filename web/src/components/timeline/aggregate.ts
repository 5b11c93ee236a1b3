/**
 * The aggregate: what the spans of an area add up to, by name. It is the table under the timeline, and what a reader
 * who cannot see the canvas has instead of it.
 */

import type { SpanColumns, Timeline, Track } from "../../data/types"
import { firstEndingAfter } from "./span_index"
import type { View } from "./interaction"

export interface AggregateRow {
  readonly name: number // in Timeline.names
  readonly kind: number
  readonly calls: number
  readonly ns: number // within the area
  readonly share: number // of all rows, 0 to 1
  readonly finding: number // 0: none
  readonly longest: number // position of the longest call
}

export interface Aggregate {
  readonly group: Track["group"]
  readonly events: number
  readonly busy: number // share of the area during which some track of the group was busy
  readonly rows: readonly AggregateRow[]
}

interface Sum {
  kind: number
  calls: number
  ns: number
  finding: number
  longest: number
}

type Group = Track["group"]

/** Adds a row's spans, cut to the area; `covered` is the time of its spans that the lane below explains. */
function addRow(sums: Map<number, Sum>, columns: SpanColumns, track: Track, lane: number, area: View, nested: boolean): void {
  const { start, dur, name, kind, finding } = columns
  const { offset, count } = track.rows[lane]!
  const below = nested ? track.rows[lane + 1] : undefined
  let child = below === undefined ? 0 : firstEndingAfter(columns, below.offset, below.count, area.from)
  const childEnd = below === undefined ? 0 : below.offset + below.count
  for (let at = firstEndingAfter(columns, offset, count, area.from); at < offset + count && start[at]! < area.to; at++) {
    const from = Math.max(start[at]!, area.from)
    const to = Math.min(start[at]! + dur[at]!, area.to)
    let ns = to - from
    for (; child < childEnd && start[child]! < to; child++) {
      ns -= Math.max(0, Math.min(start[child]! + dur[child]!, to) - Math.max(start[child]!, from))
    }
    const sum = sums.get(name[at]!)
    if (sum === undefined) {
      sums.set(name[at]!, { kind: kind[at]!, calls: 1, ns, finding: finding[at]!, longest: at })
      continue
    }
    sum.calls++
    sum.ns += ns
    if (sum.finding === 0) sum.finding = finding[at]!
    if (dur[at]! > dur[sum.longest]!) sum.longest = at
  }
}

/** The share of the area in which at least one span runs: rows are walked together, so that nothing is kept. */
function busyShare(columns: SpanColumns, tracks: readonly Track[], area: View): number {
  const { start, dur } = columns
  const rows = tracks.flatMap((track) => (track.group === "gpu" ? track.rows : track.rows.slice(0, 1)))
  const at = rows.map(({ offset, count }) => firstEndingAfter(columns, offset, count, area.from))
  const ends = rows.map(({ offset, count }) => offset + count)
  let busy = 0
  let until = area.from
  for (;;) {
    let row = -1
    for (let candidate = 0; candidate < rows.length; candidate++) {
      if (at[candidate]! < ends[candidate]! && (row < 0 || start[at[candidate]!]! < start[at[row]!]!)) row = candidate
    }
    const span = row < 0 ? -1 : at[row]!++
    if (span < 0 || start[span]! >= area.to) break
    const to = Math.min(start[span]! + dur[span]!, area.to)
    if (to <= until) continue
    busy += to - Math.max(start[span]!, until)
    until = to
  }
  return area.to > area.from ? busy / (area.to - area.from) : 0
}

/**
 * The spans of one group of tracks in the area, by name, the longest first. On the GPU lanes run side by side and
 * every span counts whole; elsewhere lanes are nested, and a span counts without what runs inside it.
 */
export function aggregate(timeline: Timeline, columns: SpanColumns, area: View, group: Group): Aggregate {
  const tracks = timeline.tracks.filter((track) => track.group === group)
  const sums = new Map<number, Sum>()
  for (const track of tracks) track.rows.forEach((_, lane) => addRow(sums, columns, track, lane, area, group !== "gpu"))
  let all = 0
  let events = 0
  for (const sum of sums.values()) {
    all += sum.ns
    events += sum.calls
  }
  const rows = [...sums].map(([name, sum]) => ({ name, ...sum, share: all > 0 ? sum.ns / all : 0 }))
  rows.sort((a, b) => b.ns - a.ns)
  return { group, events, busy: busyShare(columns, tracks, area), rows }
}

/** The groups that have a span in the area, in the order in which they are worth showing. */
export function groupsIn(timeline: Timeline, columns: SpanColumns, area: View): readonly Group[] {
  const order: readonly Group[] = ["gpu", "idle", "host", "modules", "python", "marks"]
  const filled = (track: Track): boolean =>
    track.rows.some(({ offset, count }) => {
      const at = firstEndingAfter(columns, offset, count, area.from)
      return at < offset + count && columns.start[at]! < area.to
    })
  return order.filter((group) => timeline.tracks.some((track) => track.group === group && filled(track)))
}
