/**
 * A search on the timeline: the spans whose name holds the words, in the order of time for stepping through them.
 */

import { containsAll, wordsOf } from "../../base/search_words"
import type { SpanColumns, Timeline } from "../../data/types"

/** By name: 1 where it holds every word of the query. */
export function matchNames(names: readonly string[], query: string): Uint8Array | null {
  const words = wordsOf(query)
  if (words.length === 0) return null
  return Uint8Array.from(names, (name) => (containsAll(name, words) ? 1 : 0))
}

/** Positions of the spans that match, in the order of the columns. */
export function findHits(columns: SpanColumns, matches: Uint8Array): Uint32Array {
  const { name } = columns
  let count = 0
  for (let at = 0; at < name.length; at++) count += matches[name[at]!]!
  const hits = new Uint32Array(count)
  let next = 0
  for (let at = 0; at < name.length; at++) if (matches[name[at]!] === 1) hits[next++] = at
  return hits
}

/** The hit that starts next after `ns` (or before it), of all rows; the first or last when there is none further. */
export function stepHit(columns: SpanColumns, hits: Uint32Array, ns: number, current: number | null, forward: boolean): number | null {
  const { start } = columns
  const later = (a: number, b: number): boolean => start[a]! > start[b]! || (start[a] === start[b] && a > b)
  let next: number | null = null
  let around: number | null = null
  for (const hit of hits) {
    const beyond = current === null ? (forward ? start[hit]! >= ns : start[hit]! <= ns) : hit !== current && later(hit, current) === forward
    if (beyond && (next === null || later(next, hit) === forward)) next = hit
    if (around === null || later(around, hit) === forward) around = hit
  }
  return next ?? around
}

/** The span before or after in the same row; null at its end. */
export function neighbour(timeline: Timeline, position: number, by: 1 | -1): number | null {
  for (const track of timeline.tracks) {
    for (const { offset, count } of track.rows) {
      if (position < offset || position >= offset + count) continue
      const next = position + by
      return next >= offset && next < offset + count ? next : null
    }
  }
  return null
}

/** The row above or below in the same track, and its span that lies at `ns` or nearest before it. */
export function parentOrChild(timeline: Timeline, columns: SpanColumns, position: number, by: 1 | -1): number | null {
  for (const track of timeline.tracks) {
    const lane = track.rows.findIndex(({ offset, count }) => position >= offset && position < offset + count)
    if (lane < 0) continue
    const row = track.rows[lane + by]
    if (row === undefined || row.count === 0) return null
    const from = columns.start[position]!
    const to = from + columns.dur[position]!
    let low = row.offset
    let high = row.offset + row.count
    while (low < high) {
      const middle = (low + high) >>> 1
      if (columns.start[middle]! <= (by < 0 ? from : to)) low = middle + 1
      else high = middle
    }
    return low > row.offset ? low - 1 : null
  }
  return null
}
