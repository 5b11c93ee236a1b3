/** What many resources hold: tables with their columns, and what a recording can be trusted with. Part of the contract that types.ts begins. */
import type { Value } from "../base/format"

export type Mark = "good" | "note" | "bad" | "unknown"

export interface Trust {
  readonly verdict: "yes" | "with care" | "no"
  readonly says: string // "Yes, with one note"
  readonly detail: string // "Numbers below use steps 10–12 only."
  readonly facts: readonly { readonly mark: Mark; readonly label: string; readonly value: string; readonly detail: string }[]
  readonly notes: readonly { readonly code: string; readonly weight: string; readonly says: string }[]
}

/** `table/NAME`: one analysis; shown with no code of its own. */
export interface Table {
  readonly name: string
  readonly says: string
  readonly columns: readonly TableColumn[]
  readonly data: readonly (readonly Cell[])[] // one array per column
  readonly rows_count: number // before any limit
  readonly values: readonly { readonly name: string; readonly heading: string; readonly text: string }[]
  readonly notes: readonly string[]
}

export interface TableColumn {
  readonly name: string
  readonly heading: string
  readonly unit: "ns" | "bytes" | "flops" | "pct" | "count" | "per_s" | "flops_per_byte" | "text" | "number" | "bool"
  readonly says: string
  readonly code: boolean // monospace
}

export type Cell = Value
