/** The step as it would be with what is ticked and changed by hand. */
import type { ComponentChildren, JSX } from "preact"
import { verdictText } from "../../base/verdict"
import type { Resource } from "../../data/state"
import { LinkButton } from "../../components/parts"
import { Hero } from "./headline"
import type { Answer } from "./what_if"

interface WhatIfPanelProps {
  readonly answer: Resource<Answer> | null
  readonly step_ms: number | null
  readonly changes: readonly string[] // in words: "finding 1", "masked_fill at half"
  readonly onClear: () => void
}

export function WhatIfPanel(props: WhatIfPanelProps): JSX.Element {
  const { answer, changes } = props
  return (
    <section class="what-if" aria-label="What if">
      <div aria-live="polite">
        <p class="caption">{changes.length > 0 ? `Step time, replayed with ${changes.join(" and ")}` : "Step time now. Tick findings or change a kernel to see what the step time would be."}</p>
        <Answered answer={answer} step_ms={props.step_ms} />
        <p class="caption says">{saysOf(answer)}</p>
      </div>
      {changes.length > 0 && <LinkButton onClick={props.onClear}>Clear</LinkButton>}
    </section>
  )
}

function saysOf(answer: Resource<Answer> | null): ComponentChildren {
  if (answer === null) return "Changes are replayed together: savings stop adding up once another limit is reached."
  if (answer.state === "loading") return "Replaying the step …"
  if (answer.state === "failed") return <span class="bad">✕ {answer.says}</span>
  return `${answer.value.verdict && answer.value.verdict !== "gain" ? `Verdict: ${verdictText(answer.value.verdict)}. ` : ""}${answer.value.says}`
}

function Answered(props: { readonly answer: Resource<Answer> | null; readonly step_ms: number | null }): JSX.Element | null {
  const value = props.answer?.state === "ready" ? props.answer.value : null
  const before = value?.before_ms ?? props.step_ms
  if (before === null) return null
  const after = value?.after_ms ?? null
  return (
    <>
      <Hero before={before} after={after} speedup={value?.speedup ?? null} />
      <StepBars before={before} after={after} />
    </>
  )
}

function StepBars(props: { readonly before: number; readonly after: Answer["after_ms"] }): JSX.Element {
  const { before, after } = props
  const most = Math.max(before, after?.high ?? 0)
  const share = (value: number): string => `${(value / most) * 100}%`
  return (
    <div class="step-bars" aria-hidden="true">
      <span style={{ width: share(before), background: "var(--c-wait)" }} />
      <div>
        <span style={{ width: share(after?.low ?? 0), background: "var(--gain)" }} />
        <span style={{ width: share(after ? after.high - after.low : 0), background: "var(--gain-weak)" }} />
      </div>
    </div>
  )
}
