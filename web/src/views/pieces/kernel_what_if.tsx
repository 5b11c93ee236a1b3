/** Kernels whose duration may be changed by hand, with what the step would then be. */
import type { JSX } from "preact"
import { useEffect, useState } from "preact/hooks"
import { type Resource, source } from "../../data/state"
import type { WhatIfKernels } from "../../data/types"
import { fixed, formatNs, shorten, timeScale } from "../../base/format"
import { Loaded, Swatch } from "../../components/parts"
import type { Scaled } from "./what_if"

const SETTLE_MS = 200

interface KernelWhatIfProps {
  readonly known: Resource<WhatIfKernels>
  readonly scaled: Scaled | null
  readonly step_ms: number | null
  readonly onScale: (scaled: Scaled | null) => void
}

export function KernelWhatIf(props: KernelWhatIfProps): JSX.Element {
  return (
    <section class="kernel-what-if">
      <h2>What if a kernel were faster or slower?</h2>
      <p class="caption">Each number is the step time, replayed with the kernel at that multiple of its duration. ×0 shows the most that any change to it could save.</p>
      <Loaded resource={props.known} what="kernels that can be changed">
        {(known) => (known.kernels.length === 0 ? <p class="caption">No kernel of this run can be replayed.</p> : <KernelTable {...props} kernels={known} />)}
      </Loaded>
    </section>
  )
}

function KernelTable(props: KernelWhatIfProps & { readonly kernels: WhatIfKernels }): JSX.Element {
  const { kernels, scaled } = props
  const live = source.value?.live ?? false
  return (
    <div class="wide">
      <table>
        <thead>
          <tr>
            <th scope="col">Kernel</th>
            <th scope="col" class="number">
              Per step
            </th>
            {kernels.factors.map((factor) => (
              <th key={factor} scope="col" class="number">
                {timesText(factor)}
              </th>
            ))}
            {live && <th scope="col">Custom</th>}
          </tr>
        </thead>
        <tbody>
          {kernels.kernels.map((kernel) => (
            <tr key={kernel.name} class={scaled?.kernel === kernel.name ? "chosen" : ""}>
              <th scope="row" title={shorten(kernel.name, 1200)}>
                <Swatch kind={kernel.kind} /> {shorten(kernel.title, 44)}
              </th>
              <td class="number">{formatNs(kernel.per_step_ns)}</td>
              {kernels.factors.map((factor, at) => (
                <td key={factor} class="number">
                  <StepButton after={kernel.after_ms[at] ?? null} step_ms={props.step_ms} pressed={scaled?.kernel === kernel.name && scaled.factor === factor}
                    label={`${kernel.title} at ${timesText(factor)}`}
                    onPress={(on) => props.onScale(on ? { kernel: kernel.name, factor } : null)} />
                </td>
              ))}
              {live && (
                <td>
                  <FactorSlider title={kernel.title} factor={scaled?.kernel === kernel.name ? scaled.factor : 1}
                    onFactor={(factor) => props.onScale(factor === 1 ? null : { kernel: kernel.name, factor })} />
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  )
}

interface StepButtonProps {
  readonly after: number | null
  readonly step_ms: number | null
  readonly pressed: boolean
  readonly label: string
  readonly onPress: (on: boolean) => void
}

function StepButton(props: StepButtonProps): JSX.Element {
  const { after, step_ms: step } = props
  const scale = timeScale(step ?? after ?? 1)
  const text = after === null ? "–" : `${scale.text(after)} ${scale.unit}`
  const colour = after === null || step === null ? "" : after < step * 0.995 ? "gain" : ""
  return (
    <button type="button" class={`step ${colour}`} disabled={after === null} aria-pressed={props.pressed} aria-label={`${props.label}: step ${text}`}
      onClick={() => props.onPress(!props.pressed)}>
      {text}
    </button>
  )
}

/** The number moves at once; the step is asked for when the hand rests. */
function FactorSlider(props: { readonly title: string; readonly factor: number; readonly onFactor: (factor: number) => void }): JSX.Element {
  const [shown, setShown] = useState(props.factor)
  useEffect(() => setShown(props.factor), [props.factor])
  useEffect(() => {
    if (shown === props.factor) return
    const timer = setTimeout(() => props.onFactor(shown), SETTLE_MS)
    return () => clearTimeout(timer)
  }, [shown])
  return (
    <label class="factor">
      <span class="unseen">{props.title}, times</span>
      <input type="range" min="0" max="3" step="0.05" value={shown} aria-valuetext={timesText(shown)}
        onInput={(event) => setShown(Number(event.currentTarget.value))} />
      <output>{timesText(shown)}</output>
    </label>
  )
}

export function timesText(factor: number): string {
  return `×${fixed(factor, 2).replace(/\.?0+$/, "")}`
}
