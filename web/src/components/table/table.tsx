/**
 * A table of any analysis: a real <table> of which only the rows in sight are in the page. Sort and filter live in the
 * address; arrow keys move through the rows.
 */
import type { ComponentChildren, JSX } from "preact"
import { useEffect, useMemo } from "preact/hooks"
import { addressOf, go, place, search } from "../../data/state"
import type { Cell, Kind, Table, TableColumn } from "../../data/types"
import { KINDS } from "../../data/types"
import { copyText } from "../copy"
import { capitalised, counted, formatCell, formatCount, shorten } from "../../base/format"
import { isNumeric, tableCsv, tableMarkdown } from "./markdown"
import { Bar, LinkButton, Swatch, colourOf } from "../parts"
import { type Sort, formatSort, fullBar, nextSort, parseSort, rowCount, shownRows } from "./rows"
import { Spacer, rowAfterKey, useRowsInSight } from "./scrolling"
import "./table.css"

const SAMPLE_ROWS = 400
const WIDEST_TEXT = 56
const LONGEST_TITLE = 1200

export interface DataTableProps {
  readonly table: Table
  readonly title?: string
  readonly id?: string // tells the tables of one page apart in the address
  readonly sort?: string // at first: "-total_ns"
  readonly hide?: readonly string[] // columns that are not shown
  readonly kinds?: readonly (Kind | null)[] // per row, drawn as a swatch before the first column
  readonly cell?: (column: TableColumn, row: number, value: Cell) => ComponentChildren | undefined
  readonly onOpen?: (row: number) => void // Enter, or a double click
  readonly onPoint?: (row: number | null) => void // the row that the keys are on
  readonly height?: string // of the scrolling part; all of the page's when absent
  readonly actions?: ComponentChildren
  readonly unfiltered?: boolean // for a few rows: no field to filter by
}

export function DataTable(props: DataTableProps): JSX.Element {
  const table = useMemo(() => without(props.table, props.hide ?? []), [props.table, props.hide?.join()])
  const keys = { sort: `${props.id ?? ""}sort`, filter: `${props.id ?? ""}q` }
  const rest = place.value.rest
  const sort = parseSort(rest[keys.sort] ?? props.sort)
  const filter = props.unfiltered ? "" : (rest[keys.filter] ?? search.value)
  const order = useMemo(() => shownRows(table, filter, sort), [table, filter, sort?.column, sort?.descending])
  const remember = (key: string, value: string): void => go({ rest: { ...place.value.rest, [key]: value } }, { replace: true })
  return (
    <section class="data-table">
      <header>
        {props.title && <h2>{props.title}</h2>}
        <p class="quiet">{howMany(props.table, order.length)}</p>
        {!props.unfiltered && rowCount(table) > 8 && (
          <label class="filter">
            <span class="unseen">Filter {props.title ?? table.name}</span>
            <input type="text" placeholder="Filter" value={filter} spellcheck={false}
              onInput={(event) => remember(keys.filter, event.currentTarget.value)} />
          </label>
        )}
        <p class="actions">
          {props.actions}
          <CopyButtons table={table} order={order} />
        </p>
      </header>
      <Grid {...props} table={table} order={order} sort={sort} filter={filter} onSort={(column) => remember(keys.sort, formatSort(nextSort(table, column, sort)))} />
      {props.table.notes.map((note) => (
        <p key={note} class="note-line">
          {note}
        </p>
      ))}
    </section>
  )
}

/** Copies the rows that are shown, in the order in which they are shown. */
export function CopyButtons(props: { readonly table: Table; readonly order: readonly number[] }): JSX.Element {
  const { table, order } = props
  return (
    <>
      <span class="quiet">Copy as</span>
      <LinkButton onClick={() => copyText(tableMarkdown(table, order), `${counted(order.length, "row")} as Markdown`)}>Markdown</LinkButton>
      <LinkButton onClick={() => copyText(tableCsv(table, order), `${counted(order.length, "row")} as CSV`)}>CSV</LinkButton>
      <LinkButton onClick={() => copyText(addressOf(), "a link to this table")}>link</LinkButton>
    </>
  )
}

function howMany(table: Table, shown: number): string {
  const held = rowCount(table)
  const all = table.rows_count > held ? `the first ${formatCount(held)} of ${formatCount(table.rows_count)} rows` : counted(held, "row")
  return shown === held ? all : `${formatCount(shown)} of ${all}`
}

function without(table: Table, hidden: readonly string[]): Table {
  if (hidden.length === 0) return table
  const kept = table.columns.map((column, at) => ({ column, cells: table.data[at] ?? [] })).filter((pair) => !hidden.includes(pair.column.name))
  return { ...table, columns: kept.map((pair) => pair.column), data: kept.map((pair) => pair.cells) }
}

interface GridProps extends Omit<DataTableProps, "sort"> {
  readonly order: readonly number[]
  readonly sort: Sort | null
  readonly filter: string
  readonly onSort: (column: string) => void
}

function Grid(props: GridProps): JSX.Element {
  const { table, order } = props
  const { scroller, look, first, last, active, moveTo, leave, page } = useRowsInSight(order.length)
  const widths = useMemo(() => table.columns.map((column, at) => widthOf(column, table.data[at] ?? [])), [table])
  const fullest = useMemo(() => table.columns.map((column, at) => (isShare(column) ? fullBar(table.data[at] ?? []) : 100)), [table])
  useEffect(leave, [order])
  const move = (to: number): void => {
    const row = order[moveTo(to)] ?? null
    props.onPoint?.(row)
  }
  return (
    <div class="scroller" ref={scroller} tabIndex={0} role="region" aria-label={props.title ?? table.name} onScroll={look}
      style={props.height === undefined ? {} : { maxHeight: props.height }}
      onKeyDown={(event) => onTableKey(event, { active, page, count: order.length, move, open: () => openRow(props, order[active]), copy: () => copyRow(table, order[active]) })}>
      <table aria-label={`${props.title ?? table.name}. ${table.says}`} aria-rowcount={order.length + 1} style={{ minWidth: `${sum(widths)}px` }}>
        <Widths table={table} widths={widths} />
        <Head table={table} sort={props.sort} onSort={props.onSort} />
        <tbody>
          <Spacer rows={first} />
          {order.slice(first, last).map((row, index) => (
            <Row key={row} grid={props} fullest={fullest} row={row} at={first + index} active={first + index === active} onPick={() => move(first + index)} />
          ))}
          <Spacer rows={order.length - last} />
        </tbody>
      </table>
      {order.length === 0 && <p class="nothing">{rowCount(table) === 0 ? "Nothing was recorded for this table." : `No matches for “${shorten(props.filter, 60)}”.`}</p>}
    </div>
  )
}

function openRow(props: GridProps, row: number | undefined): void {
  if (row !== undefined) props.onOpen?.(row)
}

function copyRow(table: Table, row: number | undefined): void {
  if (row !== undefined) copyText(tableMarkdown(table, [row]), "the row as Markdown")
}

interface TableKeys {
  readonly active: number
  readonly page: number
  readonly count: number
  readonly move: (to: number) => void
  readonly open: () => void
  readonly copy: () => void
}

function onTableKey(event: KeyboardEvent, keys: TableKeys): void {
  const { active, move } = keys
  if (event.target instanceof HTMLButtonElement || event.target instanceof HTMLAnchorElement) return
  const to = rowAfterKey(event.key, active, keys.count, keys.page)
  const copying = event.key === "c" && (event.ctrlKey || event.metaKey) && String(getSelection()) === "" && active >= 0
  if (to !== undefined) move(to)
  else if (event.key === "Enter" && active >= 0) keys.open()
  else if (copying) keys.copy()
  else return
  event.preventDefault()
}

function Head(props: { readonly table: Table; readonly sort: Sort | null; readonly onSort: (column: string) => void }): JSX.Element {
  const { sort } = props
  return (
    <thead>
      <tr>
        {props.table.columns.map((column) => {
          const sorted = sort?.column === column.name
          return (
            <th key={column.name} scope="col" class={isNumeric(column.unit) ? "number" : ""} title={column.says}
              aria-sort={sorted ? (sort.descending ? "descending" : "ascending") : undefined}>
              <button type="button" onClick={() => props.onSort(column.name)}>
                {column.heading.includes("_") ? column.heading : capitalised(column.heading)}
                <span aria-hidden="true">{sorted ? (sort.descending ? " ↓" : " ↑") : ""}</span>
              </button>
            </th>
          )
        })}
      </tr>
    </thead>
  )
}

interface RowProps {
  readonly grid: GridProps
  readonly fullest: readonly number[]
  readonly row: number
  readonly at: number
  readonly active: boolean
  readonly onPick: () => void
}

function Row(props: RowProps): JSX.Element {
  const { grid, row } = props
  const kind = grid.kinds?.[row] ?? null
  return (
    <tr aria-rowindex={props.at + 2} aria-current={props.active ? "true" : undefined} onClick={props.onPick} onDblClick={() => grid.onOpen?.(row)}>
      {grid.table.columns.map((column, at) => {
        const value = grid.table.data[at]?.[row] ?? null
        const own = grid.cell?.(column, row, value)
        return (
          <td key={column.name} class={classOf(column)} title={column.unit === "text" ? shorten(formatCell(column, value), LONGEST_TITLE) : undefined}>
            {at === 0 && kind !== null && <Swatch kind={kind} />}
            {own ?? <CellText column={column} value={value} kind={kind} full={props.fullest[at] ?? 100} />}
          </td>
        )
      })}
    </tr>
  )
}

function classOf(column: TableColumn): string {
  return `${isNumeric(column.unit) ? "number" : ""}${column.code ? " code" : ""}${isShare(column) ? " share" : ""}`.trim()
}

/** Percentages are also drawn. */
function isShare(column: TableColumn): boolean {
  return column.unit === "pct"
}

function CellText(props: { readonly column: TableColumn; readonly value: Cell; readonly kind: Kind | null; readonly full: number }): JSX.Element {
  const { column, value } = props
  const text = column.unit === "text" ? shorten(formatCell(column, value), WIDEST_TEXT) : formatCell(column, value)
  if (!isShare(column) || typeof value !== "number") return <>{text}</>
  return (
    <>
      <span>{text}</span>
      <Bar share={value / props.full} colour={props.kind === null ? "var(--c-wait)" : colourOf(props.kind)} />
    </>
  )
}

/**
 * Widths are fixed, from the longest text of each column: rows that come into sight must not move the columns. The
 * first text column takes the room that is left.
 */
function Widths(props: { readonly table: Table; readonly widths: readonly number[] }): JSX.Element {
  const loose = props.table.columns.findIndex((column) => column.unit === "text")
  return (
    <colgroup>
      {props.widths.map((width, at) => (
        <col key={at} class={at === loose ? "loose" : undefined} style={at === loose ? {} : { width: `${width}px` }} />
      ))}
    </colgroup>
  )
}

function sum(values: readonly number[]): number {
  return Math.ceil(values.reduce((total, value) => total + value, 0))
}

function widthOf(column: TableColumn, cells: readonly Cell[]): number {
  const step = Math.max(1, Math.floor(cells.length / SAMPLE_ROWS))
  let longest = column.heading.length + 2
  for (let row = 0; row < cells.length; row += step) longest = Math.max(longest, formatCell(column, cells[row]).length)
  const characters = column.unit === "text" ? Math.min(longest, WIDEST_TEXT) : longest
  return characters * (column.code ? 7.4 : 6.9) + 26 + (isShare(column) || column.name === "change_bytes" ? 56 : 0) // both with a bar
}

/** The kinds of the rows, when a column of the table holds them. */
export function kindsOf(table: Table, column = "kind"): readonly (Kind | null)[] {
  const at = table.columns.findIndex((candidate) => candidate.name === column)
  return (table.data[at] ?? []).map((cell) => (KINDS as readonly Cell[]).includes(cell) ? (cell as Kind) : null)
}
