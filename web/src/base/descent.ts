/** From one step to another, part by part: each bar begins where the one before it ended. */
export interface Part<T> {
  readonly part: T
  readonly before: number
  readonly after: number
}

export interface Amounts {
  readonly a_ns: number
  readonly b_ns: number
}

/** The parts in their order, each with the sum before and after it; `most` is the largest sum on the way. */
export function descent<T extends Amounts>(rows: readonly T[]): { readonly from: number; readonly to: number; readonly most: number; readonly parts: readonly Part<T>[] } {
  const from = rows.reduce((sum, row) => sum + row.a_ns, 0)
  let at = from
  const parts = rows.map((part) => {
    const before = at
    at += part.b_ns - part.a_ns
    return { part, before, after: at }
  })
  const most = parts.reduce((largest, part) => Math.max(largest, part.before, part.after), from)
  return { from, to: at, most, parts }
}
