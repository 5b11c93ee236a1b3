/** What the page is given of benchmarks: part of the contract with Python that types.ts begins. */
import type { Table, Trust } from "./table_types"

/** `benchmark`: a sweep of `foretrace bench`, without its samples. */
export interface Benchmark {
  readonly name: string
  readonly says: string
  readonly facts: readonly string[] // as Overview.facts
  readonly about: readonly { readonly label: string; readonly value: string; readonly code: boolean }[] // device, torch, date, command
  readonly trust: Trust
  readonly parts: readonly BenchPart[] // most kinds have one
  readonly notes: readonly string[]
  readonly markdown: string
}

/** Rows that make one table; every list has one value per row. */
export interface BenchPart {
  readonly name: string
  readonly says: string // what all rows share
  readonly table: Table
  readonly labels: readonly string[] // what each row timed
  readonly statuses: readonly string[] // OK, OOM, ERROR, TIMEOUT
  readonly slowed: readonly (string | null)[] // what held the clock back
  readonly x: BenchAxis | null // the field that rows lie along; null: they do not lie along any
  readonly panels: readonly string[] // what chooses among several pictures, where there are too many lines for one
  readonly series: readonly BenchLine[]
  readonly plots: readonly BenchPlot[]
}

export interface BenchAxis {
  readonly title: string
  readonly log: boolean
  readonly values: readonly number[]
}

export interface BenchLine {
  readonly label: string
  readonly panel: number
  readonly colour: number
  readonly rows: readonly number[] // by x
}

/** One measure; its name's suffix is the unit. `low` and `high` are the ends of its interval. */
export interface BenchPlot {
  readonly name: string
  readonly title: string
  readonly log: boolean
  readonly values: readonly (number | null)[]
  readonly low: readonly (number | null)[]
  readonly high: readonly (number | null)[]
}

/** `compare/OTHER` of a benchmark */
export interface BenchComparison {
  readonly verdict: "faster" | "slower" | "same" | "inconclusive"
  readonly says: string
  readonly shared: string // what all cases of the first share
  readonly a: BenchSide
  readonly b: BenchSide
  readonly table: Table | null // null: no case was timed in both
  readonly speedups: readonly BenchSpeedup[] // the largest difference first
  readonly notes: readonly string[]
}

export interface BenchSide {
  readonly name: string
  readonly device: string
  readonly torch: string
}

export interface BenchSpeedup {
  readonly label: string
  readonly verdict: BenchComparison["verdict"]
  readonly point: number
  readonly low: number
  readonly high: number
}
