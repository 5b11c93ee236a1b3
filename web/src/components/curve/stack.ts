/** Amounts of several sorts over time, one on the other: a step function of each, and their places on a canvas. */
export interface Series {
  readonly label: string
  readonly colour: string // a variable of the design
  readonly values: readonly number[]
}

/** The upper edge of each series: the sum of it and all below it. */
export function stacked(series: readonly Series[], points: number): readonly Float64Array[] {
  const below = new Float64Array(points)
  return series.map(({ values }) => {
    for (let at = 0; at < points; at++) below[at]! += values[at] ?? 0
    return below.slice()
  })
}

/** The last point at or before a moment; the first when there is none. */
export function pointAt(moments: readonly number[], ns: number): number {
  let low = 0
  let high = moments.length
  while (low < high) {
    const middle = (low + high) >>> 1
    if ((moments[middle] ?? 0) <= ns) low = middle + 1
    else high = middle
  }
  return Math.max(0, low - 1)
}

/** Round amounts of bytes, by powers of 1,024: 0, 5 GiB, 10 GiB. */
export function byteTicks(most: number, ticks: (from: number, to: number) => readonly number[]): readonly number[] {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, most)) / 10))
  return ticks(0, most / unit).map((tick) => tick * unit)
}
