/** What a finding rests on, and what to change. */
import type { JSX } from "preact"
import { addressOf, linkTo } from "../../data/state"
import type { Alternative, Finding } from "../../data/types"
import { copyText } from "../../components/copy"
import { formatNs } from "../../base/format"
import { LinkButton, colourOf } from "../../components/parts"
import { alternativeText, findingMarkdown } from "./finding_text"

export function Evidence(props: { readonly finding: Finding; readonly barsOnly?: boolean }): JSX.Element {
  const { bars, facts, says, why, of } = props.finding
  const most = Math.max(1, ...bars.map((bar) => bar.ns))
  return (
    <div class="evidence">
      <p class="label">Evidence, {of}</p>
      {bars.length > 0 && (
        <table aria-label={`Time ${of}`}>
          <tbody>
            {bars.map((bar) => (
              <tr key={bar.label}>
                <th scope="row" title={bar.label}>{bar.label}</th>
                <td aria-hidden="true">
                  <span class="evidence-bar" style={{ width: `${(bar.ns / most) * 100}%`, background: barColour(bar.kind) }} />
                </td>
                <td>{formatNs(bar.ns)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {bars.length === 0 && (
        <dl class="facts">
          {facts.map((fact, index) => (
            <div key={index}>
              <dt>{fact.label}</dt>
              <dd>{fact.value}</dd>
            </div>
          ))}
        </dl>
      )}
      {!props.barsOnly && <p>{bars.length > 0 ? why : says}</p>}
    </div>
  )
}

/** Host work is pale in the timeline, where its name stands on it; a bar alone must be seen. */
function barColour(kind: Finding["bars"][number]["kind"]): string {
  return kind === "op" || kind === "py" || kind === "rt" || kind === "note" ? "var(--c-wait)" : colourOf(kind)
}

export function Change(props: { readonly finding: Finding; readonly manualLink?: boolean }): JSX.Element {
  const { finding } = props
  return (
    <div class="change">
      <p class="label">Change</p>
      {finding.fix ? (
        <>
          <Code code={finding.fix.code} />
          <p>{finding.fix.says}</p>
        </>
      ) : (
        <p>No known change would help here.</p>
      )}
      {finding.alternatives.map((other) => (
        <Other key={other.label} other={other} />
      ))}
      <p class="links">
        {finding.from_ns !== null && <a href={timelineLink(finding)}>Show on timeline</a>}
        {props.manualLink && <a href={linkTo({ view: "findings", rest: { finding: String(finding.number), manual: "open" } })}>About this rule</a>}
        <LinkButton onClick={() => copyText(findingMarkdown(finding), `finding ${finding.number} as Markdown`)}>Copy</LinkButton>
        <LinkButton onClick={() => copyText(findingAddress(finding), `a link to finding ${finding.number}`)}>Link</LinkButton>
      </p>
    </div>
  )
}

/** Another fix of the same cause, closed: the best one is shown. */
function Other(props: { readonly other: Alternative }): JSX.Element {
  const { label, fix, unless } = props.other
  return (
    <details class="alternative">
      <summary>
        or <code>{label}</code>: {alternativeText(props.other)}
      </summary>
      <Code code={fix.code} />
      <p>
        {fix.says}
        {unless && ` Unless ${unless}`}
      </p>
    </details>
  )
}

function findingAddress(finding: Finding): string {
  return addressOf({ view: "findings", rest: { finding: String(finding.number) } })
}

/** The timeline where the finding is seen best, with a span of a middle step selected and the rest dimmed. */
export function timelineLink(finding: Finding): string {
  const from = finding.from_ns ?? 0
  const to = finding.to_ns ?? from + 1
  const margin = (to - from) * 0.05
  return linkTo({ view: "timeline", shown: { from: Math.max(0, from - margin), to: to + margin }, selection: null, span: finding.span, rest: { finding: String(finding.number) } })
}

const DIFF_LINE = /^(\s*\d*\s*)([-+])(\s.*|)$/

/** Code to change: lines taken out and put in are told apart by sign and colour. Plain code is all put in. */
export function Code(props: { readonly code: string }): JSX.Element {
  const lines = props.code.replace(/\n+$/, "").split("\n")
  const isDiff = lines.some((line) => DIFF_LINE.test(line))
  return (
    <pre class="code-block" tabIndex={0} aria-label="Code">
      {lines.map((line, index) => {
        const sign = isDiff ? DIFF_LINE.exec(line)?.[2] : "+"
        return (
          <code key={index} class={sign === "+" ? "put-in" : sign === "-" ? "taken-out" : ""}>
            {isDiff ? line : `+ ${line}`}
            {"\n"}
          </code>
        )
      })}
    </pre>
  )
}

export function Where(props: { readonly finding: Finding }): JSX.Element {
  return <>{props.finding.where.map(placeText).join(", ")}</>
}

export function placeText(place: Finding["where"][number]): string {
  return place.file === null ? place.text : place.text.slice(place.file.lastIndexOf("/") + 1)
}
