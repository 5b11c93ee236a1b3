/**
 * One whole cut into its largest parts, side by side: what a pie would show, in one line that can be read. The table
 * below it holds the same numbers.
 */
import type { JSX } from "preact"
import { fixed, shorten } from "../base/format"
import "./share_strip.css"

export interface Share {
  readonly label: string
  readonly pct: number
  readonly colour?: string
}

const SMALLEST_PCT = 1.2
const NARROW_PCT = 3 // no room for words

export function ShareStrip(props: { readonly title: string; readonly shares: readonly Share[]; readonly most?: number }): JSX.Element | null {
  const shown = largestShares(props.shares, props.most ?? 10)
  if (shown.length === 0) return null
  const rest = Math.max(0, 100 - shown.reduce((sum, share) => sum + share.pct, 0))
  return (
    <figure class="share-strip">
      <figcaption>{props.title}</figcaption>
      <div aria-hidden="true">
        {shown.map((share, index) => (
          <span key={index} title={`${shorten(share.label, 300)}: ${fixed(share.pct, 1)} %`} class={share.colour ? "coloured" : ""} style={{ width: `${share.pct}%` }}>
            {share.colour && <i style={{ background: share.colour }} />}
            {share.pct >= NARROW_PCT && `${shorten(share.label, 80)} ${fixed(share.pct, 0)} %`}
          </span>
        ))}
        {rest > 0.5 && <span class="rest" title={`all others: ${fixed(rest, 1)} %`} style={{ width: `${rest}%` }} />}
      </div>
    </figure>
  )
}

/** The largest parts, none too narrow to see. */
export function largestShares(shares: readonly Share[], most: number): readonly Share[] {
  return shares.filter((share) => share.pct >= SMALLEST_PCT).sort((a, b) => b.pct - a.pct).slice(0, most)
}
