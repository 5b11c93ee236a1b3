/** Findings: each with its evidence, change and manual, and what several changes together would bring. */
import type { JSX } from "preact"
import { choose } from "../data/choice"
import { go, overview, place, runId, source, valueOf } from "../data/state"
import type { Finding, Overview, WhatIfKernels } from "../data/types"
import { formatSpeedup, shorten } from "../base/format"
import { useKeys } from "../base/keys"
import { verdictText } from "../base/verdict"
import { Empty, Loaded, Loading } from "../components/parts"
import { useResource } from "../data/use_resource"
import "./findings.css"
import { Change, Evidence, Where, placeText } from "./pieces/finding_detail"
import { RangeBar } from "./pieces/finding_table"
import { freedText, savingText } from "./pieces/finding_text"
import { KernelWhatIf, timesText } from "./pieces/kernel_what_if"
import { Manual } from "./pieces/manual"
import { type Scaled, answerFor } from "./pieces/what_if"
import { WhatIfPanel } from "./pieces/what_if_panel"

export function Findings(): JSX.Element {
  return (
    <Loaded resource={overview.value} what="findings">
      {(value) => (value.pending === null ? <FindingsPage value={value} /> : <Loading what={`${value.pending} …`} />)}
    </Loaded>
  )
}

function FindingsPage(props: { readonly value: Overview }): JSX.Element {
  const { findings, headline, missing } = props.value
  const known = useResource<WhatIfKernels>("whatif")
  const chosen = findings.find((finding) => String(finding.number) === place.value.rest["finding"]) ?? findings[0]
  const ticked = tickedFindings(findings)
  const scaled = scaledKernel()
  useKeys(findingKeys(findings, chosen))
  const answer = answerFor(runId.value ?? "", ticked, scaled, known, headline.before_ms)
  return (
    <div class="page findings">
      <WhatIfPanel answer={answer} step_ms={headline.before_ms} changes={inWords(ticked, scaled, valueOf(known))} onClear={() => choose({ tick: "", kernel: "", factor: "" })} />
      {chosen ? (
        <div class="list-and-one">
          <FindingList findings={findings} chosen={chosen} ticked={ticked} />
          <OneFinding finding={chosen} />
        </div>
      ) : (
        <Empty title="No findings" says={missing["findings"] ?? "No rule that could be checked found an issue."} />
      )}
      <KernelWhatIf known={known} scaled={scaled} step_ms={headline.before_ms}
        onScale={(next) => choose({ kernel: next?.kernel ?? "", factor: next ? String(next.factor) : "", ...alone("tick") })} />
    </div>
  )
}

/** A report holds answers for findings together and for each kernel alone: choosing one there lets go of the other. */
function alone(...others: readonly string[]): Readonly<Record<string, string>> {
  return source.value?.live ? {} : Object.fromEntries(others.map((key) => [key, ""]))
}

function tickedFindings(findings: readonly Finding[]): readonly number[] {
  const numbers = (place.value.rest["tick"] ?? "").split(",").map(Number)
  return findings.filter((finding) => finding.predicted !== null && numbers.includes(finding.number)).map((finding) => finding.number)
}

function scaledKernel(): Scaled | null {
  const { kernel, factor } = place.value.rest
  const number = Number(factor)
  return kernel && factor !== undefined && number >= 0 ? { kernel, factor: number } : null
}

function inWords(ticked: readonly number[], scaled: Scaled | null, known: WhatIfKernels | null): readonly string[] {
  const findings = ticked.length === 0 ? [] : [`${ticked.length === 1 ? "finding" : "findings"} ${ticked.join(", ")} fixed`]
  if (!scaled) return findings
  const title = known?.kernels.find((kernel) => kernel.name === scaled.kernel)?.title ?? scaled.kernel
  return [...findings, `${shorten(title, 44)} at ${timesText(scaled.factor)}`]
}

function findingKeys(findings: readonly Finding[], chosen: Finding | undefined): Record<string, () => void | boolean> {
  const at = chosen ? findings.indexOf(chosen) : -1
  const to = (index: number): void => {
    const next = findings[index]
    if (next) go({ rest: { ...place.value.rest, finding: String(next.number) } }, { replace: true })
  }
  return { ",": () => to(at - 1), ".": () => to(at + 1) }
}

interface FindingListProps {
  readonly findings: readonly Finding[]
  readonly chosen: Finding
  readonly ticked: readonly number[]
}

function FindingList(props: FindingListProps): JSX.Element {
  const { findings, chosen, ticked } = props
  const most = Math.max(...findings.map((finding) => finding.predicted?.saved_ms.high ?? 0))
  const tick = (number: number, on: boolean): void => {
    const next = on ? [...ticked, number].sort((a, b) => a - b) : ticked.filter((other) => other !== number)
    choose({ tick: next.join(","), ...alone("kernel", "factor") })
  }
  return (
    <ul class="finding-list" aria-label="Findings">
      {findings.map((finding) => (
        <li key={finding.number} class={finding === chosen ? "chosen" : ""} onClick={() => choose({ finding: String(finding.number) })}>
          <input type="checkbox" checked={ticked.includes(finding.number)} disabled={finding.predicted === null}
            aria-label={`Combine finding ${finding.number}: ${finding.title}`} title={finding.predicted === null ? "This change cannot be replayed" : "Combine"}
            onClick={(event) => event.stopPropagation()} onChange={(event) => tick(finding.number, event.currentTarget.checked)} />
          <button type="button" aria-current={finding === chosen ? "true" : undefined}>
            <strong>
              <span class="quiet">{finding.number}</span> {finding.title}
            </strong>
            <span class="code quiet">
              <Where finding={finding} />
            </span>
          </button>
          <FindingWorth finding={finding} most={most} />
        </li>
      ))}
    </ul>
  )
}

function FindingWorth(props: { readonly finding: Finding; readonly most: number }): JSX.Element {
  const { predicted, freed } = props.finding
  if (!predicted) return <p class="worth quiet">{freed === undefined ? "not predicted" : freedText(freed)}</p>
  const gain = predicted.verdict === "gain"
  return (
    <>
      <div class={gain ? "worth" : "worth quiet"}>
        {gain && <RangeBar predicted={predicted} most={props.most} />}
        <p>
          {gain ? <strong>{savingText(predicted)}</strong> : savingText(predicted)}
          <span class="quiet">{gain ? ` ${formatSpeedup(predicted.speedup)}` : ` ${verdictText(predicted.verdict)}`}</span>
        </p>
      </div>
      {freed !== undefined && <p class="worth quiet">{freedText(freed)}</p>}
    </>
  )
}

function OneFinding(props: { readonly finding: Finding }): JSX.Element {
  const { finding } = props
  return (
    <article class="one-finding" aria-label={`Finding ${finding.number}`}>
      <h2>{finding.title}</h2>
      <p class="caption">
        <code>{finding.rule}</code> · {finding.severity === "unchecked" ? "not checked" : `${finding.severity} severity`} · {finding.confidence.toLowerCase()} confidence
      </p>
      <p>{finding.says}</p>
      <p>{finding.why}</p>
      <div class="evidence-and-change">
        <Evidence finding={finding} barsOnly />
        <Change finding={finding} />
      </div>
      <dl class="facts">
        {finding.where.map((where, index) => (
          <div key={index}>
            <dt>{index === 0 ? "Where" : ""}</dt>
            <dd class="code" title={where.file ?? undefined}>
              {placeText(where)}
            </dd>
          </div>
        ))}
        {finding.bars.length > 0 && finding.facts.map((fact, index) => (
          <div key={`fact ${index}`}>
            <dt>{fact.label}</dt>
            <dd title={fact.value.length > 160 ? fact.value : undefined}>{shorten(fact.value, 160)}</dd>
          </div>
        ))}
        <Basis finding={finding} />
        {finding.unless && (
          <div>
            <dt>Unless</dt>
            <dd>{finding.unless}</dd>
          </div>
        )}
      </dl>
      <details open={place.value.rest["manual"] === "open"}>
        <summary>About this rule</summary>
        <Manual text={finding.manual} />
      </details>
    </article>
  )
}

function Basis(props: { readonly finding: Finding }): JSX.Element | null {
  const { predicted } = props.finding
  if (!predicted) return null
  return (
    <div>
      <dt>Prediction</dt>
      <dd>
        {savingText(predicted)} saved, {formatSpeedup(predicted.speedup)}, verdict: {verdictText(predicted.verdict)}; {predicted.basis}
      </dd>
    </div>
  )
}
