/** The legend of a memory curve: each category at the cursor and at the peak. */
import type { ComponentChildren, JSX } from "preact"
import { fixed, formatValue } from "../../base/format"
import type { Series } from "../../components/curve/stack"

/** Categories borrow the palette of the kinds of work, which stays apart for every sight; each has its label beside it. */
const COLOURS: Readonly<Record<string, string>> = {
  "before-the-recording": "--c-wait", activation: "--c-gemm", gradient: "--c-copy", "optimizer-state": "--c-optim", autograd: "--c-elem",
  intermediate: "--c-comm", temporary: "--c-attn", input: "--c-transfer", parameter: "--c-reduce", unknown: "--c-wait",
}

export interface CategorySeries {
  readonly label: string
  readonly kind: string
  readonly bytes: readonly number[]
}

export function seriesOf(categories: readonly CategorySeries[]): readonly Series[] {
  return categories.map((category) => ({ label: category.label, colour: COLOURS[category.kind] ?? "--c-wait", values: category.bytes }))
}

export const bytes = (value: number): string => formatValue("_bytes", value)
const LONG_NS = 1e10 // a history may be of hours

/** 317.20 ms; 256.545 s. */
export function milliseconds(ns: number): string {
  return Math.abs(ns) < LONG_NS ? `${fixed(ns / 1e6, 2)} ms` : `${fixed(ns / 1e9, 3)} s`
}

/** How a moment of a history is written: as a time, or as the number of an event where there are no times. */
export function momentOf(timed: boolean): (at: number) => string {
  return timed ? milliseconds : (event) => `event ${Math.round(event)}`
}

export function totalAt(series: readonly Series[], point: number): number {
  return series.reduce((sum, category) => sum + (category.values[point] ?? 0), 0)
}

/** The last value holds a little longer, to be seen. */
export function untilOf(moments: readonly number[]): number {
  const first = moments[0] ?? 0
  const last = moments.at(-1) ?? 0
  return last + Math.max(1, (last - first) / 200)
}

export function formatTick(ns: number): string {
  return Math.abs(ns) < LONG_NS ? `${Number(fixed(ns / 1e6, 3))} ms` : `${Number(fixed(ns / 1e9, 3))} s`
}

interface PartsProps {
  readonly series: readonly Series[]
  readonly cursor: number
  readonly at: number
  readonly moment?: (at: number) => string
  readonly peak: { readonly bytes: number; readonly parts: readonly { readonly label: string; readonly bytes: number; readonly pct: number }[] }
  readonly reserved?: { readonly at: number; readonly peak: number }
  readonly children?: ComponentChildren
}

export function CategoryParts(props: PartsProps): JSX.Element {
  const { series, cursor, peak, reserved } = props
  const parts = new Map(peak.parts.map((part) => [part.label, part]))
  return (
    <div class="memory-parts">
      <table aria-label="Memory by category">
        <thead>
          <tr>
            <th scope="col">Category</th>
            <th scope="col" class="number">{(props.moment ?? milliseconds)(props.at)}</th>
            <th scope="col" class="number">Peak</th>
            <th scope="col" class="number">Share</th>
          </tr>
        </thead>
        <tbody>
          {[...series].reverse().map((category) => (
            <tr key={category.label}>
              <th scope="row">
                <span class="swatch" aria-hidden="true" style={{ background: `var(${category.colour})` }} /> {category.label}
              </th>
              <td class="number">{bytes(category.values[cursor] ?? 0)}</td>
              <td class="number">{bytes(parts.get(category.label)?.bytes ?? 0)}</td>
              <td class="number quiet">{fixed(parts.get(category.label)?.pct ?? 0, 1)} %</td>
            </tr>
          ))}
        </tbody>
        <tfoot>
          <tr>
            <th scope="row">{reserved ? "Allocated" : "Total"}</th>
            <td class="number">{bytes(totalAt(series, cursor))}</td>
            <td class="number">{bytes(peak.bytes)}</td>
            <td />
          </tr>
          {reserved && (
            <tr class="reserved">
              <th scope="row"><span class="line-key" aria-hidden="true" /> Reserved</th>
              <td class="number">{bytes(reserved.at)}</td>
              <td class="number">{bytes(reserved.peak)}</td>
              <td />
            </tr>
          )}
        </tfoot>
      </table>
      {props.children}
    </div>
  )
}
