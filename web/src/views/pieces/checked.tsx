/** Which rules saw what is not worth it here, found no issue, or could not be checked: never the same thing. */
import type { JSX } from "preact"
import { capitalised } from "../../base/format"
import type { Checked } from "../../data/types"

export function CheckedList(props: { readonly checked: readonly Checked[] }): JSX.Element {
  const seen = props.checked.filter((rule) => rule.seen)
  const checked = props.checked.filter((rule) => rule.looked && !rule.seen)
  return (
    <section class="checked">
      {seen.length > 0 && <Seen seen={seen} />}
      {checked.length > 0 && <h2>Checked, no issue</h2>}
      <dl>
        {bySentence(checked).map(([says, rules]) => (
          <div key={says}>
            <dt>{rules.length === 1 ? rules[0]?.label : capitalised(says)}</dt>
            <dd>{rules.length === 1 ? says : labels(rules)}</dd>
          </div>
        ))}
      </dl>
      <Unchecked unchecked={props.checked.filter((rule) => !rule.looked)} alone={checked.length === 0} />
    </section>
  )
}

/** What is there, but not worth a finding in this recording. */
function Seen(props: { readonly seen: readonly Checked[] }): JSX.Element {
  return (
    <>
      <h2>Seen, not worth it here</h2>
      <dl>
        {props.seen.map((rule) => (
          <div key={rule.rule + rule.says}>
            <dt>{rule.label}</dt>
            <dd>{rule.says}</dd>
          </div>
        ))}
      </dl>
    </>
  )
}

/** Rules with the same words together, those with words of their own first. */
function bySentence(rules: readonly Checked[]): readonly (readonly [says: string, rules: readonly Checked[]])[] {
  const sentences = [...new Set(rules.map((rule) => rule.says))]
  const groups = sentences.map((says) => [says, rules.filter((rule) => rule.says === says)] as const)
  return [...groups.filter(([, same]) => same.length === 1), ...groups.filter(([, same]) => same.length > 1)]
}

/** Rules that could not be checked, together where the reason is the same. */
function Unchecked(props: { readonly unchecked: readonly Checked[]; readonly alone: boolean }): JSX.Element | null {
  const unchecked = props.unchecked.map((rule) => ({ ...rule, says: rule.says.replace(/^not checked: /, "") }))
  if (unchecked.length === 0) return null
  return (
    <>
      {props.alone && <h2>Not checked</h2>}
      <dl>
        {bySentence(unchecked).map(([reason, rules]) => (
          <div key={reason} class="unchecked">
            <dt>{rules.length === 1 ? rules[0]?.label : props.alone ? "Rules" : "Not checked"}</dt>
            <dd>{rules.length === 1 ? `not checked: ${uncapitalised(reason)}` : `${reason}: ${labels(rules)}`}</dd>
          </div>
        ))}
      </dl>
    </>
  )
}

function labels(rules: readonly Checked[]): string {
  return rules.map((rule) => rule.label.toLowerCase()).join(", ")
}

/** A sentence inside a sentence; names such as GPU keep their capitals. */
function uncapitalised(text: string): string {
  return /^[A-Z][a-z ]/.test(text) ? text.charAt(0).toLowerCase() + text.slice(1) : text
}
