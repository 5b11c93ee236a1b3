/** The geometry of a roofline: log-log axes around the marks, and each roof up to where it meets the other. */
import type { Roofline } from "../../data/types"
import { type Scale, log } from "../../base/scale"

export type Mark = Roofline["marks"][number]

export interface Frame {
  readonly width: number
  readonly height: number
  readonly left: number
  readonly right: number
  readonly top: number
  readonly bottom: number
}

export interface Axes {
  readonly x: Scale
  readonly y: Scale
  readonly fromX: number
  readonly toX: number
}

/** Decades that hold every mark, the ridge of the fastest roof, and a little of the slope. */
export function axesOf(value: Roofline, frame: Frame): Axes {
  const compute = value.roofs.filter((roof) => roof.kind === "compute").map((roof) => roof.per_s)
  const memory = value.roofs.filter((roof) => roof.kind === "memory").map((roof) => roof.per_s)
  const ridges = memory.flatMap((bytes) => compute.map((flops) => flops / bytes))
  const across = [...value.marks.map((mark) => mark.flops_per_byte), ...ridges.map((ridge) => ridge * 4)].filter((intensity) => intensity > 0)
  const up = [...value.marks.map((mark) => mark.flops_per_s), ...compute.map((flops) => flops * 1.5)].filter((rate) => rate > 0)
  const [fromX, toX] = decades(across, 2)
  const [fromY, toY] = decades(up, 2)
  return { fromX, toX, x: log([fromX, toX], [frame.left, frame.width - frame.right]), y: log([fromY, toY], [frame.height - frame.bottom, frame.top]) }
}

function decades(values: readonly number[], least: number): readonly [number, number] {
  if (values.length === 0) return [1, 10 ** least]
  const from = Math.floor(Math.log10(Math.min(...values) / 1.3))
  const to = Math.ceil(Math.log10(Math.max(...values) * 1.1))
  return [10 ** from, 10 ** Math.max(to, from + least)]
}

export interface RoofLine {
  readonly label: string
  readonly source: string
  readonly kind: "compute" | "memory"
  readonly from: readonly [x: number, y: number] // in FLOP per byte and FLOP per second
  readonly to: readonly [x: number, y: number]
}

/** A slope for each memory, up to the highest compute roof; a level for each peak, from where the slope meets it. Equal peaks are one line. */
export function roofLines(roofs: Roofline["roofs"], axes: Pick<Axes, "fromX" | "toX">): readonly RoofLine[] {
  const memory = roofs.filter((roof) => roof.kind === "memory")
  const compute = together(roofs.filter((roof) => roof.kind === "compute"))
  const highest = Math.max(0, ...compute.map((roof) => roof.per_s))
  const fastest = Math.max(0, ...memory.map((roof) => roof.per_s))
  const slopes = memory.map((roof): RoofLine => {
    const end = highest > 0 ? Math.min(highest / roof.per_s, axes.toX) : axes.toX
    return { label: roof.label, source: roof.source, kind: "memory", from: [axes.fromX, roof.per_s * axes.fromX], to: [end, roof.per_s * end] }
  })
  const levels = compute.map((roof): RoofLine => {
    const begin = fastest > 0 ? Math.max(axes.fromX, roof.per_s / fastest) : axes.fromX
    return { label: roof.label, source: roof.source, kind: "compute", from: [begin, roof.per_s], to: [axes.toX, roof.per_s] }
  })
  return [...slopes, ...levels]
}

/** "fp16 989 TFLOP/s" and "bf16 989 TFLOP/s" as "fp16, bf16 989 TFLOP/s". */
function together(roofs: Roofline["roofs"]): Roofline["roofs"] {
  const joined = new Map<number, Roofline["roofs"][number]>()
  for (const roof of roofs) {
    const before = joined.get(roof.per_s)
    joined.set(roof.per_s, before ? { ...before, label: `${before.label.split(" ")[0]}, ${roof.label}` } : roof)
  }
  return [...joined.values()]
}

/** Area is time: the longest has the largest radius, none is too small to point at. */
export function radiusOf(mark: Mark, longest: number, most = 22, least = 3.5): number {
  return longest > 0 ? Math.max(least, most * Math.sqrt(mark.total_ns / longest)) : least
}

/** Which mark a key leads to: left and right by intensity, up and down by time. */
export function nextMark(marks: readonly Mark[], now: number, key: "left" | "right" | "up" | "down"): number {
  const by = key === "left" || key === "right" ? (mark: Mark): number => mark.flops_per_byte : (mark: Mark): number => mark.total_ns
  const order = [...marks.keys()].sort((a, b) => by(marks[a]!) - by(marks[b]!) || a - b)
  const step = key === "right" || key === "up" ? 1 : -1
  return order[order.indexOf(now) + step] ?? now
}

/** Heights moved apart to at least `gap`, in their order, as little as it takes from the lowest up. */
export function spread(heights: readonly number[], gap: number): readonly number[] {
  const order = [...heights.keys()].sort((a, b) => heights[b]! - heights[a]!)
  const moved = [...heights]
  let last = Infinity
  for (const at of order) {
    moved[at] = Math.min(heights[at]!, last - gap)
    last = moved[at]!
  }
  return moved
}
