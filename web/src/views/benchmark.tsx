/** Benchmark: a sweep of `foretrace bench`: where it was timed, whether to believe it, its measures as lines, its rows. */
import type { JSX } from "preact"
import { useMemo } from "preact/hooks"
import { benchmark, place } from "../data/state"
import { choose } from "../data/choice"
import type { BenchPart, BenchPlot, Benchmark, Cell, Kind, TableColumn } from "../data/types"
import { formatValue } from "../base/format"
import { linear, log } from "../base/scale"
import { type Line, LineKey, Lines, type Mark } from "../components/chart/lines"
import { Whiskers } from "../components/chart/whiskers"
import { Loaded, MarkGlyph, colourOf } from "../components/parts"
import { Segments } from "../components/segments"
import { DataTable } from "../components/table/table"
import { PageTop } from "./pieces/page_top"
import { TrustStrip } from "./pieces/trust"
import "./benchmark.css"
import "./overview.css"

/** The palette, in an order in which neighbours differ most. */
const COLOURS: readonly Kind[] = ["gemm", "copy", "reduce", "optim", "elem", "attn", "transfer", "comm"]

export function BenchmarkPage(): JSX.Element {
  return (
    <Loaded resource={benchmark.value} what="benchmark">
      {(value) => <Whole value={value} />}
    </Loaded>
  )
}

function Whole(props: { readonly value: Benchmark }): JSX.Element {
  const { value } = props
  return (
    <div class="benchmark">
      <div class="page">
        <PageTop says={value.says} />
        <About value={value} />
      </div>
      <TrustStrip trust={value.trust} leftOut={[]} what="benchmark" />
      <div class="page">
        {value.notes.map((note) => (
          <p key={note} class="note-line">
            {note}
          </p>
        ))}
        {value.parts.map((part, index) => <Part key={index} part={part} id={value.parts.length > 1 ? `part${index + 1}-` : ""} />)}
      </div>
    </div>
  )
}

function About(props: { readonly value: Benchmark }): JSX.Element {
  return (
    <dl class="about">
      {props.value.about.map((fact) => (
        <div key={fact.label}>
          <dt>{fact.label}</dt>
          <dd class={fact.code ? "code" : ""}>{fact.value}</dd>
        </div>
      ))}
    </dl>
  )
}

function Part(props: { readonly part: BenchPart; readonly id: string }): JSX.Element {
  const { part, id } = props
  return (
    <section class="bench-part">
      {(part.name || part.says) && (
        <div class="section-title">
          {part.name && <h2>{part.name}</h2>}
          {part.says && <span class="caption">{part.says}</span>}
        </div>
      )}
      {part.x === null ? <RowCharts part={part} /> : <LineCharts part={part} id={id} />}
      <DataTable {...(id ? { id } : {})} table={part.table} title="Rows" cell={statusCell} height="max(300px, calc(100vh - 420px))" />
    </section>
  )
}

function statusCell(column: TableColumn, _: number, value: Cell): JSX.Element | undefined {
  if (column.name !== "status") return undefined
  return (
    <>
      <MarkGlyph mark={value === "OK" ? "good" : "bad"} /> {value}
    </>
  )
}

/** One picture per measure; the lines of all are named once. */
function LineCharts(props: { readonly part: BenchPart; readonly id: string }): JSX.Element {
  const { part } = props
  const key = `${props.id}panel`
  const panel = Math.max(0, part.panels.indexOf(place.value.rest[key] ?? part.panels[0] ?? ""))
  const shown = part.series.filter((line) => line.panel === panel)
  return (
    <>
      <div class="line-choices">
        {part.panels.length > 1 && (
          <Segments label="Show" options={part.panels.map((name) => ({ value: name, label: name }))} chosen={part.panels[panel] ?? ""}
            onChoose={(name) => choose({ [key]: name === part.panels[0] ? "" : name }, { replace: true })} />
        )}
        {shown.length > 1 && (
          <ul class="legend">
            {shown.map((line) => (
              <li key={line.label}>
                <LineKey line={{ colour: colourAt(line.colour), shape: line.colour }} /> {line.label}
              </li>
            ))}
          </ul>
        )}
      </div>
      <div class="charts" style={{ "--columns": part.plots.length % 3 === 0 ? "3" : "2" }}>
        {part.plots.map((plot) => <PlotLines key={plot.name} part={part} plot={plot} panel={panel} />)}
      </div>
    </>
  )
}

function colourAt(index: number): string {
  return colourOf(COLOURS[index % COLOURS.length] ?? "gemm")
}

function PlotLines(props: { readonly part: BenchPart; readonly plot: BenchPlot; readonly panel: number }): JSX.Element {
  const { part, plot, panel } = props
  const lines = useMemo(() => linesOf(part, plot, panel), [part, plot, panel])
  return (
    <Lines title={`${plot.title}${plot.log ? " (log)" : ""}`} xTitle={part.x?.title ?? ""} xLog={part.x?.log ?? false} yLog={plot.log} bytes={plot.name.endsWith("_bytes")}
      lines={lines} formatY={(value) => formatValue(plot.name, value).replace(/\.0+(?= |$)/, "")} />
  )
}

/** The lines of one panel, with every value in words. */
export function linesOf(part: BenchPart, plot: BenchPlot, panel: number): readonly Line[] {
  return part.series.filter((line) => line.panel === panel).map((line) => ({
    label: line.label, colour: colourAt(line.colour), shape: line.colour,
    marks: line.rows.map((row): Mark => ({
      x: part.x?.values[row] ?? 0, y: plot.values[row] ?? null, low: plot.low[row] ?? null, high: plot.high[row] ?? null,
      failed: part.statuses[row] === "OK" ? "" : (part.statuses[row] ?? ""), words: wordsOf(part, plot, row),
    })),
  }))
}

/** 12.3 ms (12.1–12.6), held back by power cap; or why there is no value. */
export function wordsOf(part: BenchPart, plot: BenchPlot, row: number): string {
  const [value, low, high] = [plot.values[row] ?? null, plot.low[row] ?? null, plot.high[row] ?? null]
  if (value === null) return part.statuses[row] === "OK" ? "not measured" : (part.statuses[row] ?? "")
  const text = (amount: number): string => formatValue(plot.name, amount)
  const ends = low === null || high === null || text(low) === text(high) ? "" : ` (${ended(text(low), text(high), text(value))})`
  const slowed = part.slowed[row]
  return `${text(value)}${ends}${slowed ? `, held back by ${slowed}` : ""}`
}

/** The ends of an interval; their unit is said once where it is the value's. */
function ended(low: string, high: string, value: string): string {
  const unit = value.slice(value.indexOf(" "))
  return [low, high, value].every((text) => text.endsWith(unit)) ? `${low.slice(0, -unit.length)}–${high.slice(0, -unit.length)}` : `${low} – ${high}`
}

/** Rows that lie along nothing: one picture per measure, a row each. */
function RowCharts(props: { readonly part: BenchPart }): JSX.Element {
  const { part } = props
  return (
    <div class="charts" style={{ "--columns": part.plots.length === 1 ? "1" : "2" }}>
      {part.plots.map((plot) => (
        <figure key={plot.name} class="chart">
          <figcaption>{plot.title}{plot.log && " (log)"}</figcaption>
          <Whiskers title={plot.title} scale={rowScale(plot)}
            rows={part.labels.map((label, row) => ({ label, point: plot.values[row] ?? null, low: plot.low[row] ?? null, high: plot.high[row] ?? null, words: wordsOf({ ...part, slowed: [] }, plot, row) }))} />
        </figure>
      ))}
    </div>
  )
}

function rowScale(plot: BenchPlot): ReturnType<typeof linear> {
  const values = [...plot.values, ...plot.low, ...plot.high].filter((value): value is number => value !== null)
  const most = Math.max(...values)
  return plot.log ? log([Math.min(...values.filter((value) => value > 0)) / 1.5, most * 1.05], [0, 100]) : linear([0, most * 1.02], [0, 100])
}
