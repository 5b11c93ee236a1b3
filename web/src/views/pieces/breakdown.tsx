/** The run in one table: a block of rows for each part, in the order given. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { capitalised, fixed, formatCount, formatNs, shorten } from "../../base/format"
import { Bar } from "../../components/parts"
import { columnOf } from "../../components/table/columns"
import type { Cell, Table } from "../../data/types"
import "./breakdown.css"

const LONGEST = 400

export interface BreakdownRow {
  readonly metric: string
  readonly total: number | null
  readonly perStep: number | null
  readonly share: number | null
  readonly of: string | null
  readonly calls: number | null
}

export interface BreakdownBlock {
  readonly part: string
  readonly rows: readonly BreakdownRow[]
}

/** The rows of a table in blocks: as long as the part stays the same. */
export function blocksOf(table: Table): readonly BreakdownBlock[] {
  const [part, metric, total, perStep, share, of, calls] = ["part", "metric", "total_ns", "per_step_ns", "share_pct", "share_of", "calls_count"].map((name) => columnOf(table, name))
  const blocks: { part: string; rows: BreakdownRow[] }[] = []
  for (const [at, name] of (part ?? []).entries()) {
    const text = String(name ?? "")
    if (blocks.at(-1)?.part !== text) blocks.push({ part: text, rows: [] })
    blocks.at(-1)?.rows.push({
      metric: String(metric?.[at] ?? ""), total: number(total?.[at]), perStep: number(perStep?.[at]), share: number(share?.[at]),
      of: typeof of?.[at] === "string" ? of[at] : null, calls: number(calls?.[at]),
    })
  }
  return blocks
}

function number(cell: Cell | undefined): number | null {
  return typeof cell === "number" ? cell : null
}

export function Breakdown(props: { readonly table: Table }): JSX.Element {
  const blocks = useMemo(() => blocksOf(props.table), [props.table])
  return (
    <div class="breakdown">
      <table aria-label={`Breakdown of the run. ${props.table.says}`}>
        <thead>
          <tr>
            <th scope="col">What</th>
            <th scope="col">Total</th>
            <th scope="col" class="per-step">Per step</th>
            <th scope="col" class="share">Share</th>
            <th scope="col" class="of">Of</th>
            <th scope="col">Calls</th>
          </tr>
        </thead>
        {blocks.map((block, at) => (
          <tbody key={`${at} ${block.part}`}>
            <tr class="part">
              <th colSpan={6} scope="rowgroup">{shorten(capitalised(block.part), LONGEST)}</th>
            </tr>
            {block.rows.map((row, index) => <Row key={index} row={row} whole={row.metric === block.part} />)}
          </tbody>
        ))}
      </table>
    </div>
  )
}

function Row(props: { readonly row: BreakdownRow; readonly whole: boolean }): JSX.Element {
  const { row } = props
  return (
    <tr class={props.whole ? "whole" : undefined}>
      <th scope="row" title={shorten(row.metric, LONGEST)}>{shorten(row.metric, LONGEST)}</th>
      <td>{row.total === null ? "–" : formatNs(row.total)}</td>
      <td class="per-step">{row.perStep === null ? "–" : formatNs(row.perStep)}</td>
      <td class="share">
        {row.share === null ? "–" : `${fixed(row.share, 1)} %`}
        <Bar share={(row.share ?? 0) / 100} colour="var(--c-wait)" />
        {row.of !== null && <small aria-hidden="true">of {shorten(row.of, 60)}</small>}
      </td>
      <td class="of">{row.of === null ? "–" : shorten(row.of, 60)}</td>
      <td>{row.calls === null ? "–" : formatCount(row.calls)}</td>
    </tr>
  )
}
