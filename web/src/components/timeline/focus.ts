/**
 * What the timeline shows while the rest is dimmed: what a search found, all calls of one name, or the places where a
 * finding occurs; and the stepping through them.
 */

import { positionsOf } from "../../base/ids"
import type { Occurrences, SpanColumns } from "../../data/types"
import { isWhole, type Model } from "./model"
import { findHits, matchNames } from "./search"

/** One place to go to: a span, by its id, and where it lies. */
export interface Stop {
  readonly span: number
  readonly from: number
  readonly to: number
}

export type Focus =
  | { readonly kind: "search"; readonly words: string }
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "finding"; readonly occurrences: Occurrences }

/** More are not put in order: nobody steps through them. */
const MOST_STOPS = 200_000

/** Positions of the spans that are not dimmed, in the order of the columns. */
export function spansInFocus(model: Model, focus: Focus | null): Uint32Array | null {
  const { columns, timeline } = model
  if (focus === null || !isWhole(columns)) return null
  if (focus.kind === "finding") return positionsOf(columns.id, new Set(focus.occurrences.spans))
  if (focus.kind === "name") return findHits(columns, Uint8Array.from(timeline.names, (name) => (name === focus.name ? 1 : 0)))
  const matches = matchNames(timeline.names, focus.words)
  return matches === null ? null : findHits(columns, matches)
}

/** The places to step through, in order of time; null where there are too many. */
export function stopsOf(columns: SpanColumns, focus: Focus | null, hits: Uint32Array | null): readonly Stop[] | null {
  if (focus?.kind === "finding") {
    const { span, from_ns: from, to_ns: to } = focus.occurrences
    return span.map((id, at) => ({ span: id, from: from[at]!, to: to[at]! }))
  }
  if (hits === null || hits.length > MOST_STOPS) return null
  const { start, dur, id } = columns
  return [...hits].sort((a, b) => start[a]! - start[b]! || a - b).map((at) => ({ span: id.at(at)!, from: start[at]!, to: start[at]! + dur[at]! }))
}

/** The stop that a span is, or lies in; -1: none. */
export function stopAt(stops: readonly Stop[], span: number | null, from: number | null): number {
  if (span === null) return -1
  const same = stops.findIndex((stop) => stop.span === span)
  return same >= 0 || from === null ? same : stops.findIndex((stop) => from >= stop.from && from < stop.to)
}

/** The next stop, or the previous: after the one at `current`, else after a moment; around at the ends. */
export function nextStop(stops: readonly Stop[], current: number, ns: number, by: 1 | -1): number {
  if (stops.length === 0) return -1
  if (current >= 0) return (current + by + stops.length) % stops.length
  const after = stops.findIndex((stop) => stop.from >= ns)
  if (by > 0) return after < 0 ? 0 : after
  return after <= 0 ? stops.length - 1 : after - 1
}
