/** One row per value: its label, a dot with its interval on a common scale, and the value in words. */
import type { JSX } from "preact"
import type { Scale } from "../../base/scale"
import "./chart.css"

export interface WhiskerRow {
  readonly label: string
  readonly point: number | null // null: not measured, and the words say why
  readonly low: number | null
  readonly high: number | null
  readonly words: string
  readonly tone?: "less" | "more" | ""
}

export interface WhiskersProps {
  readonly title: string
  readonly rows: readonly WhiskerRow[]
  readonly scale: Scale // onto 0 to 100
  readonly reference?: number // a line to read the others by
}

export function Whiskers(props: WhiskersProps): JSX.Element {
  const { scale, reference } = props
  const at = (value: number): string => `${Math.max(0, Math.min(100, scale(value)))}%`
  return (
    <table class="whiskers" aria-label={props.title}>
      <tbody>
        {props.rows.map((row, index) => (
          <tr key={index}>
            <th scope="row" title={row.label}>{row.label}</th>
            <td>
              <svg width="100%" height="20" aria-hidden="true" class={row.tone ?? ""}>
                {reference !== undefined && <line class="reference" x1={at(reference)} x2={at(reference)} y1="0" y2="20" />}
                {row.point !== null && row.low !== null && row.high !== null && <line class="whisker" x1={at(row.low)} x2={at(row.high)} y1="10" y2="10" />}
                {row.point !== null && <circle class="mark" cx={at(row.point)} cy="10" r="4" />}
              </svg>
            </td>
            <td class="number">{row.words}</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}
