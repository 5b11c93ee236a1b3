/** The cell of a difference between two runs: a number, and a bar. */
import type { JSX } from "preact"
import type { Cell, TableColumn } from "../../data/types"
import { fixed, formatValue } from "../../base/format"

/** A difference also as a bar from the middle: left is less. */
export function differenceCell(column: TableColumn, value: Cell, most: number): JSX.Element | undefined {
  if ((column.name !== "difference_ns" && column.name !== "change_bytes") || typeof value !== "number") return undefined
  const share = most > 0 ? (50 * Math.abs(value)) / most : 0
  const left = value < 0 ? 50 - share : 50
  return (
    <span class="difference">
      <span aria-hidden="true">
        <i class={value < 0 ? "less" : "more"} style={{ left: `${fixed(left, 1)}%`, width: `${fixed(share, 1)}%` }} />
      </span>
      {value > 0 ? "+ " : value < 0 ? "− " : ""}
      {formatValue(column.name, Math.abs(value))}
    </span>
  )
}
