/** Two benchmarks side by side: each case's speed-up with its interval, and the cases as a table. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import type { BenchComparison, BenchSpeedup } from "../../data/types"
import { formatSpeedup } from "../../base/format"
import { log } from "../../base/scale"
import { Whiskers } from "../../components/chart/whiskers"
import { columnOf } from "../../components/table/columns"
import { DataTable } from "../../components/table/table"
import { differenceCell } from "./difference_cell"
import { PageTop } from "./page_top"

const DRAWN = 20
const TONES: Readonly<Record<BenchSpeedup["verdict"], "less" | "more" | "">> = { faster: "less", slower: "more", same: "", inconclusive: "" }

export function BenchComparisonBlock(props: { readonly value: BenchComparison }): JSX.Element {
  const { value } = props
  const { a, b, table } = value
  const differences = useMemo(() => (table === null ? [] : columnOf(table, "difference_ns").map((ns) => Math.abs(Number(ns ?? 0)))), [table])
  const most = Math.max(0, ...differences)
  return (
    <>
      <PageTop says={`${value.verdict}: ${value.says}`} totals={[a, b].map((side, index) => ({ heading: `${index === 0 ? "first" : "second"}: ${side.name}`, text: `${side.device}, torch ${side.torch}` }))} />
      {value.notes.map((note) => (
        <p key={note} class="note-line">
          {note}
        </p>
      ))}
      {value.speedups.length > 0 && <Speedups value={value} />}
      {table !== null && <DataTable table={table} title="Cases" height="max(300px, calc(100vh - 420px))" cell={(column, _, cell) => differenceCell(column, cell, most)} />}
    </>
  )
}

function Speedups(props: { readonly value: BenchComparison }): JSX.Element {
  const { speedups, shared } = props.value
  const drawn = speedups.slice(0, DRAWN)
  const scale = log([Math.min(0.8, ...drawn.map((row) => row.low)), Math.max(1.25, ...drawn.map((row) => row.high))], [0, 100])
  return (
    <section class="speedups">
      <div class="section-title">
        <h2>How many times as fast the second is</h2>
        <span class="caption">{drawn.length < speedups.length ? `the ${DRAWN} largest differences; ` : ""}right of the line, which is 1×, the second is faster; a log scale{shared && `. All cases: ${shared}`}</span>
      </div>
      <Whiskers title="How many times as fast the second is" scale={scale} reference={1}
        rows={drawn.map((row) => ({ label: row.label, point: row.point, low: row.low, high: row.high, words: `${formatSpeedup(row)} ${row.verdict}`, tone: TONES[row.verdict] }))} />
    </section>
  )
}
