/** A tree as a table: rows open and close; of a large tree only the rows in sight are in the page. */
import type { JSX } from "preact"
import { useEffect, useMemo, useState } from "preact/hooks"
import { containsAll, wordsOf } from "../../base/search_words"
import { search } from "../../data/state"
import type { Table, Tree } from "../../data/types"
import { counted, fixed, formatCount, formatNs, shorten } from "../../base/format"
import { Bar, LinkButton } from "../parts"
import { Spacer, rowAfterKey, useRowsInSight } from "../table/scrolling"
import { CopyButtons } from "../table/table"
import { type TreeRow, openAtFirst, shownTreeRows, wholeOf } from "./tree"

const INDENT_PX = 14
const WIDEST_NAME = 90

export interface TreeTableProps {
  readonly tree: Tree
  readonly onOpen: (node: number) => void // Enter, or a double click
}

export function TreeTable(props: TreeTableProps): JSX.Element {
  const { tree } = props
  const [open, setOpen] = useState<ReadonlySet<number>>(() => openAtFirst(tree))
  useEffect(() => setOpen(openAtFirst(tree)), [tree])
  const words = wordsOf(search.value)
  const all = useMemo(() => shownTreeRows(tree, words.length > 0 ? everyNode(tree) : open), [tree, open, words.length > 0])
  const rows = words.length === 0 ? all : all.filter((row) => containsAll(tree.name[row.node] ?? "", words))
  const whole = wholeOf(tree)
  const setAll = (next: ReadonlySet<number>): void => setOpen(next)
  return (
    <section class="tree-table">
      <header>
        <h2>{tree.title}</h2>
        <p class="quiet">{rows.length === tree.name.length ? counted(rows.length, "row") : `${formatCount(rows.length)} of ${counted(tree.name.length, "row")}`}</p>
        <p class="actions">
          <LinkButton onClick={() => setAll(everyNode(tree))}>Expand all</LinkButton>
          <LinkButton onClick={() => setAll(new Set())}>Collapse all</LinkButton>
          <CopyButtons table={asTable(tree, rows, whole)} order={rows.map((_, index) => index)} />
        </p>
      </header>
      <Grid tree={tree} rows={rows} whole={whole} open={open} setOpen={setOpen} onOpen={props.onOpen} />
    </section>
  )
}

function everyNode(tree: Tree): ReadonlySet<number> {
  return new Set(tree.name.keys())
}

interface GridProps extends TreeTableProps {
  readonly rows: readonly TreeRow[]
  readonly whole: number
  readonly open: ReadonlySet<number>
  readonly setOpen: (open: ReadonlySet<number>) => void
}

function Grid(props: GridProps): JSX.Element {
  const { tree, rows, open } = props
  const { scroller, look, first, last, active, moveTo, page } = useRowsInSight(rows.length)
  const toggle = (node: number): void => {
    const next = new Set(open)
    if (!next.delete(node)) next.add(node)
    props.setOpen(next)
  }
  return (
    <div class="scroller" ref={scroller} tabIndex={0} role="region" aria-label={`${tree.title}: arrow keys move, right expands, left collapses`} onScroll={look}
      onKeyDown={(event) => onTreeKey(event, { tree, rows, active, open, toggle, move: moveTo, page, enter: props.onOpen })}>
      <table role="treegrid" aria-label={tree.title} aria-rowcount={rows.length + 1}>
        <colgroup>
          <col />
          <col style={{ width: "96px" }} />
          <col style={{ width: "176px" }} />
          <col style={{ width: "96px" }} />
          <col style={{ width: "80px" }} />
          <col style={{ width: "80px" }} />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col" class="number">Total</th>
            <th scope="col">Share</th>
            <th scope="col" class="number">Self</th>
            <th scope="col" class="number">Self %</th>
            <th scope="col" class="number">Calls</th>
          </tr>
        </thead>
        <tbody>
          <Spacer rows={first} />
          {rows.slice(first, last).map((row, index) => (
            <TreeRowLine key={row.node} tree={tree} row={row} at={first + index} whole={props.whole} open={open.has(row.node)} active={first + index === active}
              onPick={() => moveTo(first + index)} onToggle={() => toggle(row.node)} onOpen={() => props.onOpen(row.node)} />
          ))}
          <Spacer rows={rows.length - last} />
        </tbody>
      </table>
    </div>
  )
}

interface LineProps {
  readonly tree: Tree
  readonly row: TreeRow
  readonly at: number
  readonly whole: number
  readonly open: boolean
  readonly active: boolean
  readonly onPick: () => void
  readonly onToggle: () => void
  readonly onOpen: () => void
}

function TreeRowLine(props: LineProps): JSX.Element {
  const { tree, row, whole } = props
  const name = tree.name[row.node] ?? ""
  const total = tree.total[row.node] ?? 0
  const own = tree.self[row.node] ?? 0
  const calls = tree.calls[row.node] ?? null
  const share = whole > 0 ? total / whole : 0
  return (
    <tr aria-level={row.depth + 1} aria-expanded={row.children > 0 ? props.open : undefined} aria-rowindex={props.at + 2} aria-current={props.active ? "true" : undefined}
      onClick={props.onPick} onDblClick={props.onOpen}>
      <td class="code" style={{ paddingLeft: `${8 + row.depth * INDENT_PX}px` }} title={shorten(name, 600)}>
        {row.children > 0 ? (
          <button type="button" tabIndex={-1} class={props.open ? "twist open" : "twist"} aria-label={props.open ? "collapse" : "expand"} onClick={props.onToggle}>
            ›
          </button>
        ) : (
          <span class="twist" />
        )}
        {shorten(name, WIDEST_NAME)}
      </td>
      <td class="number">{formatNs(total)}</td>
      <td class="share">
        {fixed(share * 100, 1)} %<Bar share={share} colour="var(--c-wait)" />
      </td>
      <td class="number">{formatNs(own)}</td>
      <td class="number quiet">{whole > 0 ? fixed((100 * own) / whole, 1) : "0"} %</td>
      <td class="number">{calls === null ? "–" : formatCount(calls)}</td>
    </tr>
  )
}

interface TreeKeys {
  readonly tree: Tree
  readonly rows: readonly TreeRow[]
  readonly active: number
  readonly open: ReadonlySet<number>
  readonly page: number
  readonly toggle: (node: number) => void
  readonly move: (to: number) => void
  readonly enter: (node: number) => void
}

function onTreeKey(event: KeyboardEvent, keys: TreeKeys): void {
  if (event.target instanceof HTMLButtonElement) return
  const { rows, active, move, page } = keys
  const row = rows[active]
  const to = rowAfterKey(event.key, active, rows.length, page)
  if (to !== undefined) move(to)
  else if (row && event.key === "Enter") keys.enter(row.node)
  else if (row && event.key === "ArrowRight") openOrEnter(row, keys)
  else if (row && event.key === "ArrowLeft") closeOrLeave(row, keys)
  else return
  event.preventDefault()
}

function openOrEnter(row: TreeRow, keys: TreeKeys): void {
  if (row.children === 0) return
  if (keys.open.has(row.node)) keys.move(keys.active + 1)
  else keys.toggle(row.node)
}

function closeOrLeave(row: TreeRow, keys: TreeKeys): void {
  if (row.children > 0 && keys.open.has(row.node)) keys.toggle(row.node)
  else {
    const parent = keys.rows.findIndex((candidate) => candidate.node === keys.tree.parent[row.node])
    if (parent >= 0) keys.move(parent)
  }
}

/** The rows in sight as a table, to paste. */
export function asTable(tree: Tree, rows: readonly TreeRow[], whole: number): Table {
  const column = (name: string, heading: string, unit: "text" | "ns" | "pct" | "count") => ({ name, heading, unit, says: "", code: unit === "text" })
  const pct = (ns: number | undefined): number => (whole > 0 ? (100 * (ns ?? 0)) / whole : 0)
  return {
    name: tree.title, says: "", rows_count: rows.length, values: [], notes: [],
    columns: [column("name", "name", "text"), column("total_ns", "total", "ns"), column("total_pct", "share", "pct"), column("self_ns", "self", "ns"), column("self_pct", "self share", "pct"), column("calls_count", "calls", "count")],
    data: [
      rows.map((row) => `${"  ".repeat(row.depth)}${tree.name[row.node] ?? ""}`),
      rows.map((row) => tree.total[row.node] ?? 0),
      rows.map((row) => pct(tree.total[row.node])),
      rows.map((row) => tree.self[row.node] ?? 0),
      rows.map((row) => pct(tree.self[row.node])),
      rows.map((row) => tree.calls[row.node] ?? null),
    ],
  }
}
