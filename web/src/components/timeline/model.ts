/** The model: a timeline's payload with its index, made once when it arrives. */

import type { TimelinePayload } from "../../data/payload"
import type { SpanColumns, Timeline } from "../../data/types"
import { type CounterCurve, makeCurve } from "./counters"
import { indexSpans, type SpanIndex } from "./span_index"
import type { View } from "./interaction"

export interface Model {
  readonly timeline: Timeline
  readonly columns: SpanColumns
  readonly index: SpanIndex
  readonly curves: readonly CounterCurve[]
  readonly whole: View
}

export function makeModel(payload: TimelinePayload): Model {
  const { timeline, spans, counters } = payload
  return {
    timeline,
    columns: spans,
    index: indexSpans(spans),
    curves: counters.map(makeCurve),
    whole: { from: timeline.from_ns, to: Math.max(timeline.to_ns, timeline.from_ns + 1) },
  }
}

/** The model with the columns that came later. */
export function withColumns(model: Model, columns: SpanColumns): Model {
  return { ...model, columns, index: { ...model.index, columns } }
}

/** Whether names and ids are there, without which nothing can be named, found or selected. */
export function isWhole(columns: SpanColumns): boolean {
  return columns.id.length === columns.start.length
}

/** The id of what is drawn and is no span of the recording, such as a module projected on the GPU. */
export const NO_SPAN = 0xffffffff

/** Where the span with this id lies in the columns. */
export function positionOf(columns: SpanColumns, id: number): number | null {
  const at = columns.id.indexOf(id)
  return at < 0 ? null : at
}
