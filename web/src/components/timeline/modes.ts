/**
 * Other ways to lay out the same spans: "left heavy" adds up what has the same name under the same parent, the longest
 * first; "steps" puts the steps under each other, all beginning at the left. Both are timelines again.
 */

import type { SpanColumns, Timeline, Track } from "../../data/types"
import { firstEndingAfter, lowerBound } from "./span_index"
import type { View } from "./interaction"
import { makeModel, type Model } from "./model"

export type Mode = "time" | "heavy" | "steps"

interface Node {
  readonly name: number
  readonly depth: number
  readonly children: Map<number, Node>
  ns: number
  longest: number // position of the longest call
}

/** Spans as they are gathered, row by row. */
interface Gathered {
  readonly start: number[]
  readonly dur: number[]
  readonly from: number[] // position of the span that this one stands for
}

function gathered(): Gathered {
  return { start: [], dur: [], from: [] }
}

function modelOf(model: Model, tracks: readonly Track[], spans: Gathered, to: number): Model {
  const { columns } = model
  const pick = (values: Uint8Array | Uint16Array | Uint32Array): number[] => spans.from.map((at) => values[at]!)
  const picked: SpanColumns = {
    start: Float64Array.from(spans.start),
    dur: Float64Array.from(spans.dur),
    name: Uint32Array.from(pick(columns.name)),
    kind: Uint8Array.from(pick(columns.kind)),
    id: Uint32Array.from(spans.from, (at) => columns.id.at(at)!),
    finding: Uint8Array.from(pick(columns.finding)),
  }
  const timeline: Timeline = {
    ...model.timeline,
    from_ns: 0,
    to_ns: Math.max(to, 1),
    spans_count: spans.from.length,
    tracks,
    counters: [],
    steps: [],
    minimap: { kinds: [], columns: [] },
  }
  return makeModel({ timeline, spans: picked, counters: [], rest: null })
}

// ---- left heavy --------------------------------------------------------------------------------------------

/** The tree of a track within an area. GPU lanes lie side by side, so all of their spans are roots. */
function treeOf(track: Track, columns: SpanColumns, area: View): Map<number, Node> {
  const { start, dur, name } = columns
  const roots = new Map<number, Node>()
  let above: { readonly span: number; readonly node: Node }[] = []
  track.rows.forEach(({ offset, count }, lane) => {
    const nested = lane > 0 && track.group !== "gpu"
    const row: { span: number; node: Node }[] = []
    let parent = 0
    for (let at = firstEndingAfter(columns, offset, count, area.from); at < offset + count && start[at]! < area.to; at++) {
      while (nested && parent < above.length && start[above[parent]!.span]! + dur[above[parent]!.span]! <= start[at]!) parent++
      const holder = nested ? above[parent]?.node : undefined
      const siblings = holder?.children ?? roots
      const ns = Math.min(start[at]! + dur[at]!, area.to) - Math.max(start[at]!, area.from)
      row.push({ span: at, node: addTo(siblings, name[at]!, (holder?.depth ?? -1) + 1, ns, at, dur) })
    }
    above = row
  })
  return roots
}

function addTo(siblings: Map<number, Node>, name: number, depth: number, ns: number, at: number, dur: SpanColumns["dur"]): Node {
  const known = siblings.get(name)
  if (known === undefined) {
    const node = { name, depth, children: new Map<number, Node>(), ns, longest: at }
    siblings.set(name, node)
    return node
  }
  known.ns += ns
  if (dur[at]! > dur[known.longest]!) known.longest = at
  return known
}

/** Lays a level out from `from`, the longest first, then what is inside each. */
function place(siblings: ReadonlyMap<number, Node>, from: number, levels: Gathered[]): number {
  let at = from
  for (const node of [...siblings.values()].sort((a, b) => b.ns - a.ns)) {
    const level = (levels[node.depth] ??= gathered())
    level.start.push(at)
    level.dur.push(node.ns)
    level.from.push(node.longest)
    place(node.children, at, levels)
    at += node.ns
  }
  return at
}

export function leftHeavy(model: Model, area: View): Model {
  const all = gathered()
  let to = 0
  const tracks = model.timeline.tracks.map((track) => {
    const levels: Gathered[] = []
    to = Math.max(to, place(treeOf(track, model.columns, area), 0, levels))
    const rows = levels.map((level) => append(all, level))
    return { ...track, rows }
  })
  return modelOf(model, tracks.filter((track) => track.rows.length > 0), all, to)
}

function append(all: Gathered, level: Gathered): { readonly offset: number; readonly count: number } {
  const offset = all.from.length
  for (let at = 0; at < level.from.length; at++) {
    all.start.push(level.start[at]!)
    all.dur.push(level.dur[at]!)
    all.from.push(level.from[at]!)
  }
  return { offset, count: level.from.length }
}

// ---- steps -------------------------------------------------------------------------------------------------

const MOST_STEPS = 60

/** The spans of a row that start within a stretch, counted from its beginning. */
function shifted(columns: SpanColumns, row: { readonly offset: number; readonly count: number }, within: View): Gathered {
  const spans = gathered()
  const end = row.offset + row.count
  for (let at = lowerBound(columns.start, row.offset, end, within.from); at < end && columns.start[at]! < within.to; at++) {
    spans.start.push(columns.start[at]! - within.from)
    spans.dur.push(columns.dur[at]!)
    spans.from.push(at)
  }
  return spans
}

/** The busiest stream (or the first thread) of each step. */
export function stepsAligned(model: Model, text: (ns: number) => string): Model {
  const { timeline, columns } = model
  const size = (track: Track): number => track.rows.reduce((sum, row) => sum + row.count, 0)
  const streams = timeline.tracks.filter((track) => track.group === "gpu").sort((a, b) => size(b) - size(a))
  const shown = streams[0] ?? timeline.tracks.find((track) => track.group === "host")
  const all = gathered()
  let longest = 0
  const tracks: Track[] = []
  for (const step of timeline.steps.slice(0, MOST_STEPS)) {
    const within = { from: step.from_ns, to: step.to_ns } // with the wait before its first work
    if (shown === undefined) continue
    const rows = shown.rows.map((row) => append(all, shifted(columns, row, within))).filter((row) => row.count > 0)
    longest = Math.max(longest, within.to - within.from)
    if (rows.length > 0) tracks.push({ group: shown.group, title: `Step ${step.step}`, subtitle: text(within.to - within.from), rows })
  }
  return modelOf(model, tracks, all, longest)
}
