/** A scale turns values into places on an axis, and names round values on it. */
export interface Scale {
  (value: number): number
  invert(at: number): number
  ticks(count: number): readonly number[]
}

export function linear(domain: readonly [number, number], range: readonly [number, number]): Scale {
  const [d0, d1] = domain
  const [r0, r1] = range
  const slope = d1 === d0 ? 0 : (r1 - r0) / (d1 - d0)
  const scale = (value: number): number => r0 + (value - d0) * slope
  return Object.assign(scale, {
    invert: (at: number) => (slope === 0 ? d0 : d0 + (at - r0) / slope),
    ticks: (count: number) => linearTicks(d0, d1, count),
  })
}

export function log(domain: readonly [number, number], range: readonly [number, number]): Scale {
  const inner = linear([Math.log10(domain[0]), Math.log10(domain[1])], range)
  const scale = (value: number): number => inner(Math.log10(value))
  return Object.assign(scale, {
    invert: (at: number) => 10 ** inner.invert(at),
    ticks: (count: number) => logTicks(domain[0], domain[1], count),
  })
}

/** The step of 1, 2 or 5 times a power of ten that gives about `count` ticks. */
export function tickStep(from: number, to: number, count: number): number {
  const rough = Math.abs(to - from) / Math.max(1, count)
  if (!(rough > 0) || !Number.isFinite(rough)) return 1
  const power = 10 ** Math.floor(Math.log10(rough))
  const ratio = rough / power
  return power * (ratio < Math.SQRT2 ? 1 : ratio < Math.sqrt(12.5) ? 2 : ratio < Math.sqrt(50) ? 5 : 10)
}

export function linearTicks(from: number, to: number, count: number): readonly number[] {
  const step = tickStep(from, to, count)
  const first = Math.ceil(Math.min(from, to) / step)
  const last = Math.floor(Math.max(from, to) / step)
  // Powers below 1 are divided, not multiplied: 0.3 and not 0.30000000000000004.
  const value = (index: number): number => (step < 1 ? index / Math.round(1 / step) : index * step)
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => value(first + index))
}

function logTicks(from: number, to: number, count: number): readonly number[] {
  const first = Math.ceil(Math.log10(from) - 1e-9)
  const last = Math.floor(Math.log10(to) + 1e-9)
  const every = Math.max(1, Math.ceil((last - first + 1) / Math.max(1, count)))
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, index) => first + index)
    .filter((power) => (power - first) % every === 0)
    .map((power) => 10 ** power)
}
