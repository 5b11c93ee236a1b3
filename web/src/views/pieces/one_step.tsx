/** One step on the GPU, as columns of kinds of work. */
import type { JSX } from "preact"
import { go } from "../../data/state"
import type { OneStep } from "../../data/types"
import { LinkButton, colourOf } from "../../components/parts"

const HEIGHT = 42
const LETTER_PCT = 1 // of the width: a narrower phase has no room for its name

export function OneStepChart(props: { readonly step: OneStep }): JSX.Element {
  const { caption, kinds, columns, phases } = props.step
  return (
    <section class="one-step">
      <h2>
        One step on the GPU <span class="caption">{caption}</span>
        <LinkButton onClick={() => go({ view: "timeline" })}>Timeline</LinkButton>
      </h2>
      <svg width="100%" height={HEIGHT} viewBox={`0 0 ${columns.length} 1`} preserveAspectRatio="none" role="img" aria-label={`Kinds of work over ${caption}`}>
        {kinds.map((kind, index) => (
          <path key={kind} d={pathOf(columns, index)} style={{ fill: colourOf(kind) }} />
        ))}
      </svg>
      <div class="phases">
        {phases.map((phase, index) => (
          <span key={`${phase.label} ${phase.from}`} title={phase.label} style={{ left: `${phase.from * 100}%`, width: `${(phase.to - phase.from) * 100}%` }}>
            {hasRoom(phase, index === phases.length - 1) && <span>{phase.label}</span>}
          </span>
        ))}
      </div>
    </section>
  )
}

/** The last name stands to the left of its end, where a narrow phase before it has left its room. */
function hasRoom(phase: OneStep["phases"][number], last: boolean): boolean {
  return last || (phase.to - phase.from) * 100 >= phase.label.length * LETTER_PCT
}

/** All the boxes of one kind, each standing on the kinds before it. */
function pathOf(columns: OneStep["columns"], kind: number): string {
  const boxes = columns.map((shares, column) => {
    const below = shares.slice(0, kind).reduce((sum, share) => sum + share, 0)
    const share = shares[kind] ?? 0
    return share > 0 ? `M${column} ${(1 - below).toFixed(4)}h0.94v${(-share).toFixed(4)}h-0.94z` : ""
  })
  return boxes.join("")
}
