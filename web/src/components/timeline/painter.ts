/**
 * The painter: one row of spans becomes one line of pixels, which the page stretches to the height of the lane.
 *
 * Spans of 1.5 pixels and more are drawn one by one. Shorter ones are leapt over a pixel at a time: the pixel shows
 * the longest of them, as strong as the share of the pixel that is busy. The work is bounded by the pixels.
 */

import type { SpanColumns } from "../../data/types"
import { busyNs, firstEndingAfter, gallop, largest, type SpanIndex } from "./span_index"
import type { View } from "./interaction"
import { STRENGTHS } from "./palette"

const WIDE_PX = 1.5
const FULL = STRENGTHS - 1

export interface Row {
  readonly offset: number
  readonly count: number
}

/** Wide spans, where their names may be written; reused from frame to frame. */
export interface Labels {
  readonly span: Uint32Array
  readonly from: Float32Array // px
  readonly to: Float32Array
  readonly line: Uint16Array
  count: number
}

export function makeLabels(capacity: number): Labels {
  return {
    span: new Uint32Array(capacity),
    from: new Float32Array(capacity),
    to: new Float32Array(capacity),
    line: new Uint16Array(capacity),
    count: 0,
  }
}

export interface Line {
  readonly pixels: Uint32Array
  readonly at: number // where the line begins in `pixels`
  readonly width: number
  readonly number: number
  readonly gap: number // pixels kept clear at the end of a wide span
  readonly leastLabel: number // px
}

/** Paints the spans of a row over a line that already has its background. */
export function paintRow(index: SpanIndex, row: Row, view: View, line: Line, colours: Uint32Array, labels: Labels | null): void {
  const { start, dur, kind } = index.columns
  const end = row.offset + row.count
  const scale = line.width / (view.to - view.from) // px per ns
  const pixelNs = 1 / scale
  const wideNs = WIDE_PX * pixelNs
  let free = 0 // the first pixel that no wide span has taken
  let tail = 0 // ns that the previous short span reaches into the pixel `tailPixel`
  let tailPixel = -1
  let at = firstEndingAfter(index.columns, row.offset, row.count, view.from)
  while (at < end && start[at]! < view.to) {
    if (dur[at]! >= wideNs) {
      free = paintWide(index.columns, at, view, line, colours, labels)
      at++
      continue
    }
    const pixel = Math.floor((start[at]! - view.from) * scale)
    const pixelTo = view.from + (pixel + 1) * pixelNs
    let next = gallop(start, at, end, pixelTo)
    if (next <= at) next = at + 1 // rounding at the edge of a pixel
    let best = largest(index.longest, at, next)
    if (dur[best]! >= wideNs) {
      // It starts in this pixel but reaches beyond: the short ones before it first, then it alone.
      next = best
      best = largest(index.longest, at, next)
    }
    paintShort(at, next, pixel, pixelTo, best)
    at = next
  }

  function paintShort(first: number, next: number, pixel: number, pixelTo: number, best: number): void {
    const last = next - 1
    const lastTo = start[last]! + dur[last]!
    let busy = busyNs(index, first, next) - Math.max(0, lastTo - pixelTo)
    if (tailPixel === pixel) busy += tail
    paintPixel(pixel, best, busy)
    tail = 0
    // What reaches beyond this pixel: alone in a pixel it is painted now, else it counts there.
    const nextStart = next < end ? start[next]! : Infinity
    let over = pixel + 1
    for (let edge = pixelTo; lastTo > edge; edge += pixelNs, over++) {
      const part = Math.min(lastTo - edge, pixelNs)
      if (nextStart < edge + pixelNs) {
        tail = part
        tailPixel = over
        break
      }
      paintPixel(over, last, part)
    }
  }

  function paintPixel(pixel: number, span: number, busy: number): void {
    if (pixel < free || pixel >= line.width || pixel < 0) return
    const share = Math.min(1, Math.max(0, busy * scale))
    line.pixels[line.at + pixel] = colours[kind[span]! * STRENGTHS + Math.round(share * FULL)]!
  }
}

/** Paints one span over all of its pixels, notes where its name may be written, and gives the first pixel after it. */
function paintWide(columns: SpanColumns, span: number, view: View, line: Line, colours: Uint32Array, labels: Labels | null): number {
  const scale = line.width / (view.to - view.from)
  const start = columns.start[span]!
  const from = Math.round((start - view.from) * scale)
  const to = Math.max(from + 1, Math.round((start + columns.dur[span]! - view.from) * scale))
  const left = Math.max(from, 0)
  const right = Math.min(to, line.width)
  const solidTo = to - from > 2 * line.gap && to <= line.width ? right - line.gap : right
  line.pixels.fill(colours[columns.kind[span]! * STRENGTHS + FULL]!, line.at + left, line.at + Math.max(solidTo, left))
  if (labels !== null && right - left >= line.leastLabel && labels.count < labels.span.length) {
    labels.span[labels.count] = span
    labels.from[labels.count] = left
    labels.to[labels.count] = right
    labels.line[labels.count] = line.number
    labels.count++
  }
  return right
}

/** Paints only the given spans (positions in order): what a search found, over a dimmed row. */
export function paintHits(index: SpanIndex, hits: Uint32Array, row: Row, view: View, line: Line, colours: Uint32Array): void {
  const { start, dur, kind } = index.columns
  const scale = line.width / (view.to - view.from)
  let at = positionIn(hits, firstEndingAfter(index.columns, row.offset, row.count, view.from))
  const end = row.offset + row.count
  while (at < hits.length && hits[at]! < end && start[hits[at]!]! < view.to) {
    const span = hits[at]!
    const from = Math.max(0, Math.floor((start[span]! - view.from) * scale))
    const to = Math.min(line.width, Math.max(from + 1, Math.round((start[span]! + dur[span]! - view.from) * scale)))
    const solidTo = to - from > 2 * line.gap ? to - line.gap : to
    line.pixels.fill(colours[kind[span]! * STRENGTHS + FULL]!, line.at + from, line.at + solidTo)
    const nextStart = view.from + to / scale
    at = Math.max(at + 1, nextHit(hits, at, start, end, nextStart))
  }
}

/** The first hit at or after a position in the columns. */
export function positionIn(hits: Uint32Array, span: number): number {
  let low = 0
  let high = hits.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if (hits[middle]! < span) low = middle + 1
    else high = middle
  }
  return low
}

/** The first hit after `at` that starts at or after `ns`, or that leaves the row. */
function nextHit(hits: Uint32Array, at: number, start: Float64Array, rowEnd: number, ns: number): number {
  const before = (hit: number): boolean => hits[hit]! < rowEnd && start[hits[hit]!]! < ns
  let step = 1
  while (at + step < hits.length && before(at + step)) {
    at += step
    step *= 2
  }
  let low = at
  let high = Math.min(at + step, hits.length)
  while (low < high) {
    const middle = (low + high) >>> 1
    if (before(middle)) low = middle + 1
    else high = middle
  }
  return low
}
