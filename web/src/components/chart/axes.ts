/** The geometry of a chart over a swept field: axes around its points, round ticks, and which of the labels have room. */
import { type Scale, linear, log } from "../../base/scale"
import { byteTicks } from "../curve/stack"

export interface Room {
  readonly from: number
  readonly to: number
}

/** The axis across: a little wider than the values, so that no mark stands on the edge. */
export function acrossOf(values: readonly number[], isLog: boolean, room: Room): Scale {
  const [least, most] = [Math.min(...values), Math.max(...values)]
  if (isLog) return log([least / 1.12, most * 1.12], [room.from, room.to])
  const margin = (most - least || Math.abs(most) || 1) * 0.05
  return linear([least - margin, most + margin], [room.from, room.to])
}

export interface Upright {
  readonly scale: Scale
  readonly ticks: readonly number[]
}

/** The axis up: from nothing, or by whole powers where it is logarithmic; sizes by powers of two. */
export function uprightOf(values: readonly number[], isLog: boolean, bytes: boolean, room: Room): Upright {
  const most = Math.max(...values)
  if (!isLog) {
    const top = most > 0 ? most * 1.06 : 1
    const scale = linear([0, top], [room.from, room.to])
    return { scale, ticks: bytes ? byteTicks(top, (from, to) => linear([from, to], [0, 1]).ticks(4)) : scale.ticks(4) }
  }
  const base = bytes ? 2 : 10
  const first = Math.floor(logOf(Math.min(...values), base))
  const last = Math.max(first + 1, Math.ceil(logOf(most, base)))
  const every = Math.max(1, Math.ceil((last - first) / 5))
  const powers = Array.from({ length: last - first + 1 }, (_, at) => first + at).filter((power) => (power - first) % every === 0)
  return { scale: log([base ** first, base ** last], [room.from, room.to]), ticks: powers.map((power) => base ** power) }
}

function logOf(value: number, base: number): number {
  return Math.log(value) / Math.log(base)
}

/** The values whose labels do not touch the one before; the last one is always among them. */
export function labelled(values: readonly number[], at: (value: number) => number, letters: (value: number) => number): readonly number[] {
  const half = (value: number): number => letters(value) * 3.4 + 4
  const kept: number[] = []
  for (const value of [...new Set(values)].sort((a, b) => b - a)) {
    const next = kept.at(-1)
    if (next === undefined || at(next) - half(next) >= at(value) + half(value)) kept.push(value)
  }
  return kept.reverse()
}

/** The value whose place is nearest. */
export function nearest(values: readonly number[], at: (value: number) => number, px: number): number | null {
  let best: number | null = null
  for (const value of values) if (best === null || Math.abs(at(value) - px) < Math.abs(at(best) - px)) best = value
  return best
}
