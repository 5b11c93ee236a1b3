/** Ten thousand ranks in four hundred rows: in each row and step the rank that was latest stands for those that share the row. */
import type { Ranks } from "../../data/types"

export interface LateRows {
  readonly rows: number
  readonly steps: number
  readonly latest: Int32Array // row, step: the place of a rank; -1: nothing recorded
  readonly most_ns: number // of all, at least 1
}

export function lateRows(late: Ranks["late_ns"], steps: number, mostRows: number): LateRows {
  const rows = Math.max(1, Math.min(late.length, mostRows))
  const latest = new Int32Array(rows * steps).fill(-1)
  const highest = new Float64Array(rows * steps)
  let most = 1
  late.forEach((ofRank, rank) => {
    const first = rowOf(rank, late.length, rows) * steps
    for (let step = 0; step < steps; step++) {
      const ns = ofRank[step] ?? null
      if (ns === null || (latest[first + step] !== -1 && ns <= (highest[first + step] ?? 0))) continue
      latest[first + step] = rank
      highest[first + step] = ns
      if (ns > most) most = ns
    }
  })
  return { rows, steps, latest, most_ns: most }
}

function rowOf(rank: number, ranks: number, rows: number): number {
  return Math.floor((rank * rows) / ranks)
}

/** The places of the first rank of a row and of the last. */
export function ranksOfRow(row: number, ranks: number, rows: number): readonly [number, number] {
  return [Math.ceil((row * ranks) / rows), Math.ceil(((row + 1) * ranks) / rows) - 1]
}
