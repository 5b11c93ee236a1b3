/**
 * The index of the spans: what lets a frame cost as much as its pixels, not as its spans.
 *
 * Spans lie row after row, each row by start. Blocks of 64 and of 4,096 spans remember their longest span; the busy
 * time before each block of 64 is summed up, so that "which is the longest of these" and "how long are these together"
 * read at most two partial blocks.
 */

import type { SpanColumns } from "../../data/types"

export const SMALL = 64
export const LARGE = 4096
const SMALL_PER_LARGE = LARGE / SMALL

type Values = Float32Array | Float64Array | Uint32Array

/** Positions of the largest value of every block. */
export interface Largest {
  readonly values: Values
  readonly small: Uint32Array
  readonly large: Uint32Array
}

export interface SpanIndex {
  readonly columns: SpanColumns
  readonly longest: Largest
  readonly busyBefore: Float64Array // ns of the spans before each block of 64
}

/** The position of the largest of values[from:to], by looking at each. */
function largestByLooking(values: Values, from: number, to: number): number {
  let best = from
  let most = values[from]!
  for (let at = from + 1; at < to; at++) {
    const value = values[at]!
    if (value > most) {
      most = value
      best = at
    }
  }
  return best
}

export function indexLargest(values: Values): Largest {
  const small = new Uint32Array(Math.ceil(values.length / SMALL))
  const large = new Uint32Array(Math.ceil(values.length / LARGE))
  for (let block = 0; block < small.length; block++) {
    const from = block * SMALL
    small[block] = largestByLooking(values, from, Math.min(from + SMALL, values.length))
  }
  for (let block = 0; block < large.length; block++) {
    let best = small[block * SMALL_PER_LARGE]!
    const end = Math.min((block + 1) * SMALL_PER_LARGE, small.length)
    for (let at = block * SMALL_PER_LARGE + 1; at < end; at++) if (values[small[at]!]! > values[best]!) best = small[at]!
    large[block] = best
  }
  return { values, small, large }
}

/** The position of the largest of values[from:to]; the first of equals within a block. `to` must exceed `from`. */
export function largest(index: Largest, from: number, to: number): number {
  const { values, small, large } = index
  if (to - from <= 2 * SMALL) return largestByLooking(values, from, to)
  const firstBlock = Math.ceil(from / SMALL)
  const lastBlock = Math.floor(to / SMALL)
  let best = from < firstBlock * SMALL ? largestByLooking(values, from, firstBlock * SMALL) : small[firstBlock]!
  for (let block = firstBlock; block < lastBlock; ) {
    const whole = block % SMALL_PER_LARGE === 0 && block + SMALL_PER_LARGE <= lastBlock
    const candidate = whole ? large[block / SMALL_PER_LARGE]! : small[block]!
    if (values[candidate]! > values[best]!) best = candidate
    block += whole ? SMALL_PER_LARGE : 1
  }
  if (lastBlock * SMALL < to) {
    const candidate = largestByLooking(values, lastBlock * SMALL, to)
    if (values[candidate]! > values[best]!) best = candidate
  }
  return best
}

export function indexSpans(columns: SpanColumns): SpanIndex {
  const { dur } = columns
  const blocks = Math.ceil(dur.length / SMALL)
  const busyBefore = new Float64Array(blocks + 1)
  let busy = 0
  for (let block = 0; block < blocks; block++) {
    busyBefore[block] = busy
    const end = Math.min((block + 1) * SMALL, dur.length)
    for (let at = block * SMALL; at < end; at++) busy += dur[at]!
  }
  busyBefore[blocks] = busy
  return { columns, longest: indexLargest(dur), busyBefore }
}

/** Nanoseconds of the spans [from, to) together. */
export function busyNs(index: SpanIndex, from: number, to: number): number {
  const { dur } = index.columns
  const firstBlock = Math.ceil(from / SMALL)
  const lastBlock = Math.floor(to / SMALL)
  let sum = 0
  if (firstBlock >= lastBlock) {
    for (let at = from; at < to; at++) sum += dur[at]!
    return sum
  }
  for (let at = from; at < firstBlock * SMALL; at++) sum += dur[at]!
  for (let at = lastBlock * SMALL; at < to; at++) sum += dur[at]!
  return sum + index.busyBefore[lastBlock]! - index.busyBefore[firstBlock]!
}

/** The first position in [from, to) whose value is at least `value`; `to` when there is none. */
export function lowerBound(values: Values, from: number, to: number, value: number): number {
  while (from < to) {
    const middle = (from + to) >>> 1
    if (values[middle]! < value) from = middle + 1
    else to = middle
  }
  return from
}

/** As lowerBound, but fast when the answer is near `from`. */
export function gallop(values: Values, from: number, to: number, value: number): number {
  let step = 1
  let low = from
  while (low + step < to && values[low + step]! < value) {
    low += step
    step *= 2
  }
  return lowerBound(values, low, Math.min(low + step + 1, to), value)
}

/** The first span of a row that ends after `ns`. */
export function firstEndingAfter(columns: SpanColumns, offset: number, count: number, ns: number): number {
  const { start, dur } = columns
  let at = lowerBound(start, offset, offset + count, ns)
  while (at > offset && start[at - 1]! + dur[at - 1]! > ns) at--
  return at
}
