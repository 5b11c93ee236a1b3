/** What the step would be with changes together: asked of the server, or looked up in a report. */
import type { Verdict } from "../../base/verdict"
import { type Resource, resourceOf, source, valueOf } from "../../data/state"
import type { Range, WhatIf, WhatIfKernels } from "../../data/types"

export interface Scaled {
  readonly kernel: string
  readonly factor: number
}

export interface Answer {
  readonly before_ms: number | null
  readonly after_ms: Range | null
  readonly speedup: Range | null
  readonly verdict: Verdict | null // null: not judged
  readonly says: string
}

const ONLY_SERVED: Resource<never> = {
  state: "failed",
  says: "A report can combine findings or change one kernel. foretrace serve replays any combination.",
}

/** The answer for these findings and this kernel, or null when nothing is changed. */
export function answerFor(
  run: string, findings: readonly number[], scaled: Scaled | null, known: Resource<WhatIfKernels>, step_ms: number | null,
): Resource<Answer> | null {
  if (findings.length === 0 && scaled === null) return null
  const ready = valueOf(known)
  const together = scaled === null ? ready?.combinations[findings.join(",")] : undefined
  if (together) return { state: "ready", value: answerOf(together) }
  const alone = findings.length === 0 && scaled !== null && ready ? kernelAnswer(ready, scaled, step_ms) : null
  if (alone) return { state: "ready", value: alone }
  if (!source.value?.live) return known.state === "ready" ? ONLY_SERVED : known
  const predicted = resourceOf<WhatIf>(run, predictResource(findings, scaled)).value
  return predicted.state === "ready" ? { state: "ready", value: answerOf(predicted.value) } : predicted
}

export function predictResource(findings: readonly number[], scaled: Scaled | null): string {
  const query = new URLSearchParams()
  if (findings.length > 0) query.set("findings", findings.join(","))
  if (scaled) query.set("scale", `${scaled.kernel}:${scaled.factor}`)
  return `predict?${query}`
}

function answerOf(whatIf: WhatIf): Answer {
  const { predicted, says } = whatIf
  return {
    before_ms: predicted?.step_ms ?? null,
    after_ms: predicted?.after_ms ?? null,
    speedup: predicted?.speedup ?? null,
    verdict: predicted?.verdict ?? null,
    says,
  }
}

function kernelAnswer(known: WhatIfKernels, scaled: Scaled, step_ms: number | null): Answer | null {
  const at = known.factors.indexOf(scaled.factor)
  const after = known.kernels.find((kernel) => kernel.name === scaled.kernel)?.after_ms[at]
  if (after === undefined || after === null) return null
  const exact = (value: number): Range => ({ point: value, low: value, high: value })
  return {
    before_ms: step_ms,
    after_ms: exact(after),
    speedup: step_ms === null || after <= 0 ? null : exact(step_ms / after),
    verdict: null,
    says: "Replayed with only this kernel's duration changed; everything that waits for it moves with it.",
  }
}
