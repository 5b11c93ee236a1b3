/** Where the time of each step goes. */
import type { JSX } from "preact"
import type { StepTime } from "../../data/types"
import { fixed, timeScale } from "../../base/format"
import { Swatch, colourOf } from "../../components/parts"

const MOST_STEPS = 12

export function StepTimeBlock(props: { readonly stepTime: StepTime }): JSX.Element {
  const { caption, steps, parts } = props.stepTime
  const longest = Math.max(1, ...steps.map((step) => step.total_ns))
  const scale = timeScale(longest / 1e6)
  return (
    <section class="step-time">
      <h2>Step time</h2>
      <p class="caption">{caption}</p>
      <table class={steps.some((step) => step.kind !== undefined) ? "steps of-kinds" : "steps"} aria-label="Step times">
        <tbody>
          {steps.slice(0, MOST_STEPS).map((step) => (
            <tr key={step.step}>
              <th scope="row">{step.kind === undefined ? step.step : `${step.step} ${step.kind}`}</th>
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
      {steps.length > MOST_STEPS && <p class="caption">{`and ${steps.length - MOST_STEPS} more steps`}</p>}
      <PartList parts={parts} />
    </section>
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
