/** Where the time of each step goes. */
import type { JSX } from "preact"
import type { OddStep, StepTime } from "../../data/types"
import { linkTo } from "../../data/state"
import { fixed, formatCount, timeScale } from "../../base/format"
import { MarkGlyph, Swatch, colourOf } from "../../components/parts"

export function StepTimeBlock(props: { readonly stepTime: StepTime }): JSX.Element {
  const { caption, odd, steps, steps_count: count, parts } = props.stepTime
  const longest = Math.max(1, ...steps.map((step) => step.total_ns))
  const scale = timeScale(longest / 1e6)
  const isOdd = (step: number): boolean => odd.some((other) => other.step === step)
  return (
    <section class="step-time">
      <h2>Step time</h2>
      <p class="caption">{caption}</p>
      <table class={steps.some((step) => step.kind !== undefined) ? "steps of-kinds" : "steps"} aria-label="Step times">
        <tbody>
          {steps.map((step) => (
            <tr key={step.step} class={isOdd(step.step) ? "odd" : undefined}>
              <th scope="row">
                {isOdd(step.step) && <MarkGlyph mark="note" />}
                {step.kind === undefined ? step.step : `${step.step} ${step.kind}`}
              </th>
              <td>
                <StackedBar parts={step.parts_ns.map((ns, index) => ({ ns, kind: parts[index]?.kind ?? "idle" }))} longest={longest} />
              </td>
              <td>
                {scale.text(step.total_ns / 1e6)} {scale.unit}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {count > steps.length && <p class="caption">{`and ${formatCount(count - steps.length)} more steps`}</p>}
      {odd.map((step) => (
        <OddStepLine key={step.step} step={step} />
      ))}
      <PartList parts={parts} />
    </section>
  )
}

/** Which step is odd, and why; one click away on the timeline. */
function OddStepLine(props: { readonly step: OddStep }): JSX.Element {
  const { step, says, from_ns: from, to_ns: to } = props.step
  const margin = (to - from) * 0.05
  const link = linkTo({ view: "timeline", shown: { from: Math.max(0, from - margin), to: to + margin }, selection: { from, to }, span: null, rest: {} })
  return (
    <p class="odd-step">
      <MarkGlyph mark="note" /> <strong>Step {step}</strong> is {says}. <a href={link}>Show on timeline</a>
    </p>
  )
}

function PartList(props: { readonly parts: StepTime["parts"] }): JSX.Element {
  const scale = timeScale(Math.max(1, ...props.parts.map((part) => part.ns / 1e6)))
  return (
    <table class="parts" aria-label="Parts of the mean step">
      <tbody>
        {props.parts.map((part) => (
          <tr key={part.label}>
            <th scope="row">
              <Swatch kind={part.kind} /> {part.label}
            </th>
            <td>
              {scale.unit === "ms" ? fixed(part.ns / 1e6, 2) : scale.text(part.ns / 1e6)} {scale.unit}
            </td>
            <td class="quiet">{fixed(part.pct, 1)} %</td>
          </tr>
        ))}
      </tbody>
    </table>
  )
}

interface StackedBarProps {
  readonly parts: readonly { readonly ns: number; readonly kind: StepTime["parts"][number]["kind"] }[]
  readonly longest: number
}

function StackedBar(props: StackedBarProps): JSX.Element {
  return (
    <span class="stacked" aria-hidden="true">
      {props.parts.map((part, index) => (
        <span key={index} style={{ width: `${(part.ns / props.longest) * 100}%`, background: colourOf(part.kind) }} />
      ))}
    </span>
  )
}
