/**
 * The layout: which row of which track lies at which height. Lanes that hold nothing in view are left out.
 */

import type { SpanColumns, Timeline, Track } from "../../data/types"
import { firstEndingAfter } from "./span_index"
import type { View } from "./interaction"

export const COUNTER_HEIGHT = 35
const PAD = 5
const GPU_LANE = 27
const SUB_LANE = 18
const IDLE_LOWEST = 36 // two lines of words beside one lane
const LANE = 18
const SLIM = 24
/** Deep Python stacks are folded to this many lanes until asked for. */
export const LANES_FOLDED = 8

export interface Lane {
  readonly row: number // in track.rows
  readonly offset: number
  readonly count: number
  readonly y: number
  readonly height: number
}

export type TrackState = "open" | "collapsed" | "empty"

export interface TrackBox {
  readonly track: Track
  readonly number: number
  readonly state: TrackState
  readonly y: number
  readonly height: number
  readonly lanes: readonly Lane[]
  readonly hidden: number // lanes folded away
}

export interface Layout {
  readonly counters: number // how many, COUNTER_HEIGHT each, at the top
  readonly tracks: readonly TrackBox[]
  readonly height: number
}

/** Whether a reader closed or unfolded a track; absent: as it comes. */
export type TrackChoice = "collapsed" | "all"

function laneHeights(track: Track, lane: number): number {
  if (track.group === "gpu") return lane === 0 ? GPU_LANE : SUB_LANE
  return LANE
}

/** One more than the deepest lane with a span in view; 0: nothing. */
export function lanesInView(track: Track, columns: SpanColumns, view: View): number {
  for (let lane = track.rows.length - 1; lane >= 0; lane--) {
    const { offset, count } = track.rows[lane]!
    const at = firstEndingAfter(columns, offset, count, view.from)
    if (at < offset + count && columns.start[at]! < view.to) return lane + 1
  }
  return 0
}

function lanesOf(track: Track, shown: number, top: number): readonly Lane[] {
  const lanes: Lane[] = []
  let y = top
  for (let row = 0; row < shown; row++) {
    const height = laneHeights(track, row)
    const { offset, count } = track.rows[row]!
    lanes.push({ row, offset, count, y, height: height - 1 })
    y += height
  }
  return lanes
}

function boxOf(track: Track, number: number, used: number, choice: TrackChoice | undefined, y: number): TrackBox {
  if (used === 0) return { track, number, state: "empty", y, height: SLIM, lanes: [], hidden: 0 }
  if (choice === "collapsed") {
    const { offset, count } = track.rows[0]!
    const lanes = [{ row: 0, offset, count, y: y + 4, height: SLIM - 8 }]
    return { track, number, state: "collapsed", y, height: SLIM, lanes, hidden: used - 1 }
  }
  const limit = track.group === "python" && choice !== "all" ? LANES_FOLDED : used
  const lanes = lanesOf(track, Math.min(used, limit), y + PAD)
  const last = lanes[lanes.length - 1]!
  // A GPU stream keeps room below its lanes for the words of a flow.
  const room = track.group === "gpu" ? 18 : 5
  const height = Math.max(last.y + last.height + room - y, track.group === "idle" ? IDLE_LOWEST : 46)
  return { track, number, state: "open", y, height, lanes, hidden: Math.max(0, used - limit) }
}

/** `used` says how many lanes of each track to show, as lanesInView counts them. */
export function layOut(timeline: Timeline, used: readonly number[], choices: ReadonlyMap<number, TrackChoice>): Layout {
  const counters = timeline.counters.length
  let y = counters * COUNTER_HEIGHT
  const tracks: TrackBox[] = []
  timeline.tracks.forEach((track, number) => {
    const box = boxOf(track, number, used[number] ?? 0, choices.get(number), y)
    tracks.push(box)
    y += box.height + 1
  })
  return { counters, tracks, height: y }
}

/** The box and lane at a height; null between lanes. */
export function laneAt(layout: Layout, y: number): { readonly box: TrackBox; readonly lane: Lane } | null {
  for (const box of layout.tracks) {
    if (y < box.y || y >= box.y + box.height) continue
    const lane = box.lanes.find((candidate) => y >= candidate.y && y <= candidate.y + candidate.height)
    return lane === undefined ? null : { box, lane }
  }
  return null
}

/** The box and lane that hold a span, by its position in the columns; null when it is folded away. */
export function laneOf(layout: Layout, position: number): { readonly box: TrackBox; readonly lane: Lane } | null {
  for (const box of layout.tracks) {
    for (const lane of box.lanes) {
      if (position >= lane.offset && position < lane.offset + lane.count) return { box, lane }
    }
  }
  return null
}

/** The number of the track that holds a span, shown or not. */
export function trackOf(tracks: readonly Track[], position: number): number {
  return tracks.findIndex((track) => track.rows.some((row) => position >= row.offset && position < row.offset + row.count))
}

/** The span under a pointer: the one at that moment, else the nearest within `slack` ns of the same lane. */
export function spanAt(columns: SpanColumns, lane: Lane, ns: number, slack: number): number | null {
  const { start, dur } = columns
  const end = lane.offset + lane.count
  let best: number | null = null
  let bestGap = slack
  let bestLength = -1
  let at = firstEndingAfter(columns, lane.offset, lane.count, ns - slack)
  for (; at < end && start[at]! <= ns + slack; at++) {
    const gap = Math.max(0, start[at]! - ns, ns - start[at]! - dur[at]!)
    if (gap < bestGap || (gap === bestGap && dur[at]! > bestLength)) {
      best = at
      bestGap = gap
      bestLength = dur[at]!
    }
  }
  return best
}
