/** Tables as text to paste elsewhere. */
import type { Cell, Table } from "../../data/types"
import { formatCell } from "../../base/format"
import { code, csvText, escaped } from "../../base/markup"

/** The rows of a table, in this order, as a Markdown table with the units that the page shows. */
export function tableMarkdown(table: Table, order: readonly number[]): string {
  const line = (cells: readonly string[]): string => `| ${cells.join(" | ")} |`
  const rule = table.columns.map((column) => (isNumeric(column.unit) ? "---:" : "---"))
  const rows = order.map((row) => line(table.columns.map((column, at) => markdownText(formatCell(column, table.data[at]?.[row]), column.code))))
  return [line(table.columns.map((column) => markdownText(column.heading, false))), line(rule), ...rows].join("\n")
}

/** The same rows as CSV with plain values, for another program. */
export function tableCsv(table: Table, order: readonly number[]): string {
  const rows = order.map((row) => table.columns.map((_, at) => csvCell(table.data[at]?.[row] ?? null)).join(","))
  return `${[table.columns.map((column) => csvCell(column.name)).join(","), ...rows].join("\n")}\n`
}

export function isNumeric(unit: Table["columns"][number]["unit"]): boolean {
  return unit !== "text" && unit !== "bool"
}

export function markdownText(text: string, isCode: boolean): string {
  return isCode && text && !text.includes("`") ? code(text).replaceAll("|", "\\|") : escaped(text)
}

function csvCell(value: Cell): string {
  if (value === null) return ""
  if (typeof value !== "string") return String(value)
  const safe = csvText(value)
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe
}
