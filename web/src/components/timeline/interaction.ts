/**
 * The view: the stretch of time on screen, and how keys, wheel and pointer move it. Nothing here touches the page.
 */

export interface View {
  readonly from: number // ns
  readonly to: number
}

/** Closer than this, every mark of a nanosecond clock stands alone. */
const NARROWEST_NS = 50

/** The same view, held inside the capture. */
export function clamp(view: View, whole: View): View {
  const length = Math.min(Math.max(view.to - view.from, NARROWEST_NS), Math.max(whole.to - whole.from, NARROWEST_NS))
  const from = Math.max(whole.from, Math.min(view.from, whole.to - length))
  return { from, to: from + length }
}

/** Zooms by `factor` (below 1: closer) so that the moment `at` stays where it is on screen. */
export function zoom(view: View, whole: View, at: number, factor: number): View {
  const length = view.to - view.from
  const wanted = Math.max(NARROWEST_NS, Math.min(length * factor, whole.to - whole.from))
  const share = length > 0 ? (at - view.from) / length : 0.5
  const from = at - share * wanted
  return clamp({ from, to: from + wanted }, whole)
}

/** Moves by a share of the view's own length. */
export function pan(view: View, whole: View, share: number): View {
  const by = (view.to - view.from) * share
  return clamp({ from: view.from + by, to: view.to + by }, whole)
}

/** A view that shows [from, to] with room on both sides. */
export function around(from: number, to: number, whole: View, room = 0.35): View {
  const length = Math.max(to - from, NARROWEST_NS)
  return clamp({ from: from - length * room, to: to + length * room }, whole)
}

/** Brings a span on screen without changing the scale, unless it would be too small to see or too long to fit. */
export function reveal(view: View, whole: View, from: number, to: number): View {
  const length = view.to - view.from
  const span = to - from
  if (span > length || span < length / 400) return around(from, to, whole, span > length ? 0.1 : 20)
  if (from >= view.from && to <= view.to) return view
  const middle = (from + to) / 2
  return clamp({ from: middle - length / 2, to: middle + length / 2 }, whole)
}

/** Between two views, for the animation of a zoom: share 0 is `a`, 1 is `b`. Scales grow evenly. */
export function between(a: View, b: View, share: number): View {
  if (share >= 1) return b
  const lengthA = a.to - a.from
  const lengthB = b.to - b.from
  const eased = 1 - (1 - share) * (1 - share)
  if (Math.abs(lengthA - lengthB) < 1e-6 * lengthA) {
    return { from: a.from + (b.from - a.from) * eased, to: a.to + (b.to - a.to) * eased }
  }
  const length = lengthA * Math.pow(lengthB / lengthA, eased)
  // The moment that stands still between the two views stands still all the way.
  const share_of_way = (length - lengthA) / (lengthB - lengthA)
  const from = a.from + (b.from - a.from) * share_of_way
  return { from, to: from + length }
}

/** Positions of the ruler's ticks, in ns, and the step between them. */
export function ticks(view: View, width: number, room = 90): { readonly step: number; readonly at: readonly number[] } {
  const rough = ((view.to - view.from) * room) / Math.max(width, 1)
  const power = Math.pow(10, Math.floor(Math.log10(Math.max(rough, 1))))
  const step = [1, 2, 5, 10].map((times) => times * power).find((candidate) => candidate >= rough) ?? 10 * power
  const at: number[] = []
  for (let tick = Math.ceil(view.from / step) * step; tick <= view.to; tick += step) at.push(tick)
  return { step, at }
}

/** "102 ms", "102.35 ms", "12.5 s": with as many decimals as the step needs. */
export function tickText(ns: number, step: number, whole: View): string {
  const seconds = whole.to - whole.from > 20e9
  const unit = seconds ? 1e9 : 1e6
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9))
  const text = (ns / unit).toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals })
  return `${text} ${seconds ? "s" : "ms"}`
}

/** How the pointer is being used between press and release. */
export type Drag =
  | { readonly kind: "area"; readonly anchor: number; readonly x: number; readonly moved: boolean; readonly adds: boolean }
  | { readonly kind: "pan"; readonly x: number; readonly view: View }
  | { readonly kind: "minimap"; readonly grab: number }

/** A press becomes a drag after this many pixels; before, it is a click. */
export const CLICK_SLACK = 3

/** The area between two moments, in order. */
export function area(a: number, b: number, whole: View): View {
  const low = Math.max(whole.from, Math.min(a, b))
  return { from: low, to: Math.min(whole.to, Math.max(a, b)) }
}
