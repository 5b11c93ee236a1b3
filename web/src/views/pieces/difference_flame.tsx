/** Two steps as one flame graph: a frame is as wide as the longer of its sides, and its colour tells which one that is. */
import type { JSX } from "preact"
import { fixed, formatNs } from "../../base/format"
import type { DifferenceFrame } from "../../data/types"
import "./difference_flame.css"

const ROW = 19

export function DifferenceFlame(props: { readonly frames: readonly DifferenceFrame[] }): JSX.Element {
  const { frames } = props
  const depth = frames.reduce((deepest, frame) => Math.max(deepest, frame.depth), 0)
  return (
    <section class="difference-flame" aria-label="Differential flame graph">
      <h2>Where it differs</h2>
      <div role="list" style={{ height: `${(depth + 1) * ROW}px` }}>
        {frames.map((frame, place) => <Frame key={place} frame={frame} />)}
      </div>
      <p class="caption">Width: the longer of both, per step. <span class="swatch less" aria-hidden="true" /> less time in the second <span class="swatch more" aria-hidden="true" /> more</p>
    </section>
  )
}

function Frame(props: { readonly frame: DifferenceFrame }): JSX.Element {
  const { frame } = props
  const larger = Math.max(frame.a_ns, frame.b_ns)
  const change = larger > 0 ? (frame.b_ns - frame.a_ns) / larger : 0
  const says = `${frame.name}: ${side(frame.a_ns)} → ${side(frame.b_ns)}`
  const place = { top: `${frame.depth * ROW}px`, left: percent(frame.start), width: percent(frame.width), "--much": `${fixed(34 * Math.abs(change), 0)}%` }
  return <span role="listitem" class={change < 0 ? "less" : change > 0 ? "more" : ""} style={place} title={says} aria-label={says}>{frame.width > 0.02 ? frame.name : ""}</span>
}

function percent(share: number): string {
  return `${fixed(100 * share, 3)}%`
}

function side(ns: number): string {
  return ns > 0 ? formatNs(ns) : "not there"
}
