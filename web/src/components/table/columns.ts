/** Columns and rows of a table taken apart: what a page shows of an analysis. */
import type { Cell, Table } from "../../data/types"
import { rowCount } from "./rows"

export function columnOf(table: Table, name: string): readonly Cell[] {
  return table.data[table.columns.findIndex((column) => column.name === name)] ?? []
}

/** Names of the columns in which nothing was recorded: all absent, or sizes that are all zero. */
export function unrecorded(table: Table): readonly string[] {
  return table.columns
    .filter((column, at) => (table.data[at] ?? []).every((cell) => cell === null || (column.unit === "bytes" && cell === 0)))
    .map((column) => column.name)
}

/** The rows for which the cell of a column is wanted; `rows_count` is then theirs. */
export function rowsWhere(table: Table, column: string, wanted: (cell: Cell) => boolean): Table {
  const cells = columnOf(table, column)
  const rows = Array.from({ length: rowCount(table) }, (_, row) => row).filter((row) => wanted(cells[row] ?? null))
  if (rows.length === rowCount(table)) return table
  return { ...table, rows_count: rows.length, data: table.data.map((cells) => rows.map((row) => cells[row] ?? null)) }
}

/** The table with these columns first; shares say so in their headings, beside the amounts they are shares of. */
export function arranged(table: Table, first: readonly string[]): Table {
  const rank = (name: string): number => (first.includes(name) ? first.indexOf(name) : first.length)
  const order = [...table.columns.keys()].sort((a, b) => rank(table.columns[a]?.name ?? "") - rank(table.columns[b]?.name ?? ""))
  return {
    ...table,
    columns: order.flatMap((at) => table.columns[at] ?? []).map((column) => (isShareOf(table, column.name) ? { ...column, heading: `${column.heading} %` } : column)),
    data: order.map((at) => table.data[at] ?? []),
  }
}

function isShareOf(table: Table, name: string): boolean {
  const heading = (column: string): string | undefined => table.columns.find((candidate) => candidate.name === column)?.heading
  return name.endsWith("_pct") && table.columns.some((other) => other.name !== name && other.heading === heading(name))
}
