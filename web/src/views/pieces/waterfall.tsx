/** What each fix is worth after the fixes above it: solid is sure, faded is the rest of the range. */
import type { JSX } from "preact"
import type { Range, Waterfall } from "../../data/types"
import { type TimeScale, timeScale } from "../../base/format"
import { linkTo } from "../../data/state"

type Row = Waterfall["rows"][number]

export function WaterfallChart(props: { readonly waterfall: Waterfall; readonly title?: string }): JSX.Element | null {
  const { now_ms: now, rows, together_ms: together, note } = props.waterfall
  if (now === null) return null
  const scale = timeScale(now)
  const most = Math.max(now, ...rows.map((row) => row.after_ms.high), together?.high ?? 0)
  const exact: Range = { point: now, low: now, high: now }
  return (
    <section class="waterfall">
      <h2>{props.title ?? "What each fix is worth"}</h2>
      <table aria-label="The step after each fix, in order">
        <tbody>
          <tr class="total">
            <th scope="row">Now</th>
            <td>
              <Track parts={[{ from: 0, to: now, fill: "var(--c-wait)" }]} most={most} />
            </td>
            <td>
              {scale.text(now)} {scale.unit}
            </td>
          </tr>
          {rows.map((row, index) => (
            <FixRow key={row.finding} row={row} before={rows[index - 1]?.after_ms ?? exact} most={most} scale={scale} />
          ))}
          {together !== null && rows.length > 1 && (
            <tr class="total">
              <th scope="row">{allOf(rows.length)}</th>
              <td>
                <Track most={most} parts={[
                  { from: 0, to: together.low, fill: "var(--c-wait)" },
                  { from: together.low, to: together.high, fill: "var(--gain-weak)" },
                ]} />
              </td>
              <td>
                {scale.range(together)} {scale.unit}
              </td>
            </tr>
          )}
        </tbody>
      </table>
      <p class="caption">{rows.length > 0 ? note : "No fix is predicted to help this run."}</p>
    </section>
  )
}

function FixRow(props: { readonly row: Row; readonly before: Range; readonly most: number; readonly scale: TimeScale }): JSX.Element {
  const { row, before, most, scale } = props
  const after = row.after_ms
  return (
    <tr>
      <th scope="row">
        <a href={linkTo({ view: "findings", rest: { finding: String(row.finding) } })}>
          <span class="quiet">{row.finding}</span> {row.label}
        </a>
      </th>
      <td>
        <Track most={most} link={before.low} parts={[
          { from: after.low, to: after.high, fill: "var(--gain-weak)" },
          { from: after.high, to: before.high, fill: "var(--gain)" },
        ]} />
      </td>
      <td>{worth(before, after, scale)}</td>
    </tr>
  )
}

function worth(before: Range, after: Range, scale: TimeScale): string {
  const ends = [before.high - after.high, before.low - after.low].map((end) => Math.max(0, end)).sort((a, b) => a - b)
  const [low = 0, high = 0] = ends
  const point = Math.min(Math.max(before.point - after.point, low), high)
  const most = Number(scale.text(high).replace(",", ""))
  return most === 0 ? "nothing more" : `− ${scale.range({ point, low, high })} ${scale.unit}`
}

const WORDS = ["", "", "Both", "All three", "All four", "All five", "All six", "All seven", "All eight", "All nine"]

function allOf(count: number): string {
  return WORDS[count] ?? `All ${count}`
}

interface Part {
  readonly from: number
  readonly to: number
  readonly fill: string
}

/** A line of bars on the axis from 0 to `most`; the thin line joins it to the row above. */
function Track(props: { readonly parts: readonly Part[]; readonly most: number; readonly link?: number }): JSX.Element {
  const at = (value: number): string => `${(Math.max(0, value) / props.most) * 100}%`
  return (
    <svg width="100%" height="22" aria-hidden="true" focusable="false">
      {props.link !== undefined && props.link < props.most && <line x1={at(props.link)} x2={at(props.link)} y1="-6" y2="6" class="joint" />}
      {props.parts.filter((part) => part.to > part.from).map((part) => (
        <rect key={part.fill} x={at(part.from)} y="6" width={at(part.to - part.from)} height="11" style={{ fill: part.fill }} />
      ))}
    </svg>
  )
}
