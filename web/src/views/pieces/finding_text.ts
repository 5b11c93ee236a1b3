/** Findings as text: what a prediction says, and the finding as Markdown. */
import { verdictText } from "../../base/verdict"
import type { Alternative, Finding, Predicted } from "../../data/types"
import { code, codeBlock, escaped } from "../../base/markup"
import { formatNs, formatSpeedup, timeScale } from "../../base/format"

/** What was assumed, in a few words; the whole basis is shown where there is room. */
export function shortBasis(predicted: Predicted | null): string {
  if (!predicted) return "not predicted"
  if (predicted.not_promised) return `not promised: ${predicted.not_promised}`
  const first = predicted.basis.split(/\. (?=[A-Z])/, 1)[0] ?? ""
  return first.replace(/^replayed with: /, "").replace(/\.$/, "")
}

/** What a fix frees: "frees 9.20 (8.74 to 9.66) GiB of memory". */
export function freedText(freed: string): string {
  return `frees ${freed} of memory`
}

/** The saving as it is shown in a list. */
export function savingText(predicted: Predicted): string {
  const scale = timeScale(predicted.step_ms)
  const { point, low, high } = predicted.saved_ms
  const minus = (ms: number): string => scale.text(ms).replace("-", "−")
  const text = low < 0 ? `${minus(point)} (${minus(low)} to ${minus(high)})` : scale.range(predicted.saved_ms)
  return `${text} ${scale.unit}`
}

/** What another fix is worth: "1.40× (1.20–1.60), gain". */
export function alternativeText(other: Alternative): string {
  const { predicted } = other
  return predicted ? `${formatSpeedup(predicted.speedup)}, ${verdictText(predicted.verdict)}` : "not predicted"
}

export function findingMarkdown(finding: Finding): string {
  const { predicted, fix } = finding
  const where = finding.where.map((place) => place.text)
  const worth = predicted ? `Predicted: ${savingText(predicted)} of ${timeScale(predicted.step_ms).text(predicted.step_ms)} ${timeScale(predicted.step_ms).unit} ${finding.of} (${formatSpeedup(predicted.speedup)}, verdict: ${verdictText(predicted.verdict)}); ${escaped(predicted.basis)}` : "Not predicted."
  const lines = [
    `### ${finding.number}. ${escaped(finding.title)} (${finding.rule})`,
    escaped(`${finding.says} ${finding.why}`),
    ...(where.length ? [`Where: ${where.map(code).join(", ")}`] : []),
    worth,
    ...(finding.freed === undefined ? [] : [`Memory: ${freedText(finding.freed)} at the peak.`]),
    ...finding.bars.map((bar) => `- ${escaped(bar.label)}: ${formatNs(bar.ns)}`),
    ...finding.facts.map((fact) => `- ${escaped(fact.label)}: ${escaped(fact.value)}`),
    ...(fix ? [`Change: ${escaped(fix.says)}`, codeBlock(fix.code)] : []),
    ...finding.alternatives.map((other) => `- or ${other.label} (${alternativeText(other)}): ${escaped(other.fix.says)}`),
  ]
  return `${lines.join("\n\n").replaceAll("\n\n- ", "\n- ")}\n`
}
