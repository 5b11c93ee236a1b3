/**
 * A counter: a step function of time, such as GPU busy or memory in use. A pixel shows its largest value there.
 */

import { indexLargest, largest, lowerBound, type Largest } from "./span_index"
import type { View } from "./interaction"

type Column = Float32Array | Float64Array | Uint8Array | Uint16Array | Uint32Array

export interface CounterCurve {
  readonly at: Float64Array
  readonly largest: Largest
}

function asFloat64(column: Column): Float64Array {
  return column instanceof Float64Array ? column : Float64Array.from(column)
}

export function makeCurve(counter: { readonly at: Column; readonly value: Column }): CounterCurve {
  return { at: asFloat64(counter.at), largest: indexLargest(asFloat64(counter.value)) }
}

/** Largest value per pixel; before the first point there is nothing, which is 0. */
export function curvePixels(curve: CounterCurve, view: View, width: number): Float64Array {
  const { at } = curve
  const { values } = curve.largest
  const out = new Float64Array(width)
  const pixelNs = (view.to - view.from) / width
  let next = lowerBound(at, 0, at.length, view.from)
  for (let pixel = 0; pixel < width; pixel++) {
    const pixelTo = view.from + (pixel + 1) * pixelNs
    const first = Math.max(0, next - 1)
    next = lowerBound(at, next, at.length, pixelTo)
    if (next > 0) out[pixel] = values[largest(curve.largest, Math.min(first, next - 1), next)]!
  }
  return out
}

/** The largest value in view; null when the counter says nothing there. */
export function mostInView(curve: CounterCurve, view: View): number | null {
  const first = Math.max(0, lowerBound(curve.at, 0, curve.at.length, view.from) - 1)
  const end = lowerBound(curve.at, first, curve.at.length, view.to)
  return end > first ? curve.largest.values[largest(curve.largest, first, end)]! : null
}

/** The mean over time in view; null when the counter says nothing there. */
export function meanInView(curve: CounterCurve, view: View): number | null {
  const { at } = curve
  const { values } = curve.largest
  const first = Math.max(0, lowerBound(at, 0, at.length, view.from) - 1)
  const end = lowerBound(at, first, at.length, view.to)
  if (end <= first) return null
  let sum = 0
  let length = 0
  for (let point = first; point < end; point++) {
    const from = Math.max(at[point]!, view.from)
    const to = Math.min(point + 1 < at.length ? at[point + 1]! : view.to, view.to)
    if (to <= from) continue
    sum += values[point]! * (to - from)
    length += to - from
  }
  return length > 0 ? sum / length : values[end - 1]!
}
