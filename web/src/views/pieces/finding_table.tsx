/** Findings in the order of what they are worth; one may be open. */
import type { JSX } from "preact"
import { useState } from "preact/hooks"
import { verdictText } from "../../base/verdict"
import type { Finding, Predicted } from "../../data/types"
import { formatSpeedup } from "../../base/format"
import { Change, Evidence, Where } from "./finding_detail"
import { freedText, savingText, shortBasis } from "./finding_text"

export function FindingTable(props: { readonly findings: readonly Finding[] }): JSX.Element {
  const [open, setOpen] = useState<number | null>(props.findings[0]?.number ?? null)
  if (props.findings.length === 0) return <p class="no-findings">No rule found an issue.</p>
  const most = Math.max(...props.findings.map((finding) => finding.predicted?.saved_ms.high ?? 0))
  return (
    <table class="finding-table" aria-label="Findings">
      <thead>
        <tr>
          <th scope="col">
            <span class="unseen">Number</span>
          </th>
          <th scope="col">Finding</th>
          <th scope="col" colSpan={2}>
            Predicted saving {props.findings[0]?.of}
          </th>
          <th scope="col" class="number">
            Speedup
          </th>
          <th scope="col">Confidence, basis</th>
        </tr>
      </thead>
      {props.findings.map((finding) => (
        <FindingRow key={finding.number} finding={finding} most={most} open={open === finding.number}
          onToggle={() => setOpen(open === finding.number ? null : finding.number)} />
      ))}
    </table>
  )
}

interface FindingRowProps {
  readonly finding: Finding
  readonly most: number
  readonly open: boolean
  readonly onToggle: () => void
}

function FindingRow(props: FindingRowProps): JSX.Element {
  const { finding, open } = props
  return (
    <tbody class={open ? "open" : ""}>
      <tr onClick={props.onToggle}>
        <td class="quiet">{finding.number}</td>
        <th scope="row">
          <button type="button" aria-expanded={open} onClick={(event) => (event.stopPropagation(), props.onToggle())}>
            {finding.title}
          </button>
          <p class="code quiet">
            <Where finding={finding} />
          </p>
        </th>
        <Worth predicted={finding.predicted} most={props.most} />
        <td class="basis">
          <p>{finding.severity === "unchecked" ? "Not checked" : finding.confidence}</p>
          <p class="small quiet" title={finding.predicted?.basis}>
            {shortBasis(finding.predicted)}
          </p>
          {finding.freed !== undefined && (
            <p class="small" title={freedText(finding.freed)}>
              frees {finding.freed.replace(/ \(.*?\)/, "")}
            </p>
          )}
        </td>
      </tr>
      {open && (
        <tr class="detail">
          <td />
          <td colSpan={5}>
            <div class="evidence-and-change">
              <Evidence finding={finding} />
              <Change finding={finding} manualLink />
            </div>
          </td>
        </tr>
      )}
    </tbody>
  )
}

/** Bar, saving and speed-up of one prediction: three cells. */
function Worth(props: { readonly predicted: Predicted | null; readonly most: number }): JSX.Element {
  const { predicted } = props
  if (!predicted || predicted.verdict !== "gain") return <NoGain predicted={predicted} />
  return (
    <>
      <td>
        <RangeBar predicted={predicted} most={props.most} />
      </td>
      <td class="number">
        <PointAndEnds text={savingText(predicted)} strong />
      </td>
      <td class="number">
        <PointAndEnds text={formatSpeedup(predicted.speedup)} />
      </td>
    </>
  )
}

function NoGain(props: { readonly predicted: Predicted | null }): JSX.Element {
  const { predicted } = props
  return (
    <>
      <td class="quiet">{predicted === null ? "" : verdictText(predicted.verdict)}</td>
      <td class="number quiet">{predicted !== null && <PointAndEnds text={savingText(predicted)} />}</td>
      <td class="number quiet">{predicted !== null && <PointAndEnds text={formatSpeedup(predicted.speedup)} />}</td>
    </>
  )
}

/** "34.6 (31.9–38.9) ms" as a point, and its range below. */
function PointAndEnds(props: { readonly text: string; readonly strong?: boolean }): JSX.Element {
  const [, point = props.text, ends, unit = ""] = /^(.*?) \((.*)\)( \S+)?$/.exec(props.text) ?? []
  return (
    <>
      {props.strong ? <strong>{point}</strong> : point}
      {unit}
      {ends !== undefined && <p class="small quiet">{ends}</p>}
    </>
  )
}

export function RangeBar(props: { readonly predicted: Predicted; readonly most: number }): JSX.Element {
  const { low, high } = props.predicted.saved_ms
  const share = (value: number): string => `${(Math.max(0, value) / Math.max(props.most, 1e-9)) * 100}%`
  return (
    <span class="range-bar" aria-hidden="true">
      <span style={{ width: share(low), background: "var(--gain)" }} />
      <span style={{ width: share(high - Math.max(0, low)), background: "var(--gain-weak)" }} />
    </span>
  )
}
