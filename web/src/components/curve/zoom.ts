/** What a curve shows of its whole: a step of zooming, and the stretch whose detail is asked for. */
import type { Interval } from "../../base/router"
import type { Zoom } from "./curve"

const LEAST_NS = 1000

/** The stretch after a step; all of it where the step says so, or would go beyond both ends. */
export function zoomed(shown: Interval, whole: Interval, step: Zoom): Interval {
  if (step === null) return whole
  const width = shown.to - shown.from
  const next = Math.min(whole.to - whole.from, Math.max(LEAST_NS, width * step.factor))
  const at = step.at !== null && step.at >= shown.from && step.at <= shown.to ? step.at : (shown.from + shown.to) / 2
  const share = width > 0 ? (at - shown.from) / width : 0.5
  return within({ from: at - share * next + step.by * next, to: at + (1 - share) * next + step.by * next }, whole)
}

/** Moved so that it lies inside; a stretch that does not fit is the whole. */
export function within(area: Interval, whole: Interval): Interval {
  const width = area.to - area.from
  if (width >= whole.to - whole.from) return whole
  const from = Math.min(Math.max(area.from, whole.from), whole.to - width)
  return { from: Math.round(from), to: Math.round(from + width) }
}

/** A round stretch around what is shown: a small move asks for nothing new. */
export function roundedStretch(shown: Interval): Interval {
  const size = 2 ** Math.ceil(Math.log2(Math.max(1, shown.to - shown.from)))
  const from = Math.floor(shown.from / size) * size
  return { from, to: from + 2 * size }
}
