/** Which rows of a table are shown, in which order, and what fills their bars. */
import { containsAll, wordsOf } from "../../base/search_words"
import type { Cell, Table } from "../../data/types"
import { isNumeric } from "./markdown"

export interface Sort {
  readonly column: string
  readonly descending: boolean
}

/** "total_ns" rises, "-total_ns" falls: as it stands in the address. */
export function parseSort(text: string | undefined): Sort | null {
  if (!text) return null
  return text.startsWith("-") ? { column: text.slice(1), descending: true } : { column: text, descending: false }
}

export function formatSort(sort: Sort): string {
  return sort.descending ? `-${sort.column}` : sort.column
}

/** What a click on a heading does: numbers begin with the largest, text with A. */
export function nextSort(table: Table, column: string, now: Sort | null): Sort {
  if (now?.column === column) return { column, descending: !now.descending }
  const unit = table.columns.find((candidate) => candidate.name === column)?.unit ?? "text"
  return { column, descending: isNumeric(unit) }
}

export function rowCount(table: Table): number {
  return table.data[0]?.length ?? 0
}

/** Numbers of the rows that contain every word of the filter, sorted; what is absent comes last either way. */
export function shownRows(table: Table, filter: string, sort: Sort | null): readonly number[] {
  const words = wordsOf(filter)
  const texts = table.data.filter((_, at) => table.columns[at]?.unit === "text")
  const rows = Array.from({ length: rowCount(table) }, (_, row) => row)
  const kept = words.length === 0 ? rows : rows.filter((row) => containsAll(texts.map((cells) => String(cells[row] ?? "")).join("\n"), words))
  const at = table.columns.findIndex((column) => column.name === sort?.column)
  const cells = table.data[at]
  if (!sort || !cells) return kept
  return [...kept].sort((a, b) => compareCells(cells[a], cells[b], sort.descending) || a - b)
}

function compareCells(a: Cell | undefined, b: Cell | undefined, descending: boolean): number {
  const aMissing = a === null || a === undefined
  const bMissing = b === null || b === undefined
  if (aMissing || bMissing) return Number(aMissing) - Number(bMissing)
  const order = typeof a === "string" || typeof b === "string" ? textOrder.compare(String(a), String(b)) : Number(a) - Number(b)
  return descending ? -order : order
}

const textOrder = new Intl.Collator("en", { numeric: true })

/**
 * What fills a bar: where rows are parts of one whole, and most of it, the largest of them; else all of it. Small shares, each of
 * something else, must not look large.
 */
export function fullBar(cells: readonly Cell[]): number {
  const shares = cells.filter((cell): cell is number => typeof cell === "number")
  const whole = shares.reduce((total, share) => total + share, 0)
  return shares.length > 1 && whole >= 50 && whole <= 100.5 ? Math.max(...shares) : 100
}
