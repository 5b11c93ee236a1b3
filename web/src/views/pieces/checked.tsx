/** What was looked at and is fine, and what could not be looked at: never the same thing. */
import type { JSX } from "preact"
import type { Checked } from "../../data/types"

const NOTHING = "nothing to gain"

export function CheckedList(props: { readonly checked: readonly Checked[] }): JSX.Element {
  const looked = props.checked.filter((each) => each.looked)
  const told = looked.filter((each) => each.says !== NOTHING)
  const silent = looked.filter((each) => each.says === NOTHING)
  return (
    <section class="checked">
      {looked.length > 0 && <h2>Checked, nothing to gain</h2>}
      <dl>
        {told.map((each) => (
          <div key={each.rule}>
            <dt>{each.label}</dt>
            <dd>{each.says}</dd>
          </div>
        ))}
        {silent.length > 0 && (
          <div>
            <dt>{told.length > 0 ? "Also" : "Rules"}</dt>
            <dd>{labels(silent)}</dd>
          </div>
        )}
      </dl>
      <Unchecked unchecked={props.checked.filter((each) => !each.looked)} alone={looked.length === 0} />
    </section>
  )
}

/** What could not be looked at, together where the reason is the same. */
function Unchecked(props: { readonly unchecked: readonly Checked[]; readonly alone: boolean }): JSX.Element | null {
  const unchecked = props.unchecked.map((each) => ({ ...each, says: each.says.replace(/^not checked: /, "") }))
  const reasons = [...new Set(unchecked.map((each) => each.says))]
  if (reasons.length === 0) return null
  return (
    <>
      {props.alone && <h2>Not checked</h2>}
      <dl>
        {reasons.map((reason) => {
          const same = unchecked.filter((each) => each.says === reason)
          return (
            <div key={reason} class="unchecked">
              <dt>{same.length === 1 ? same[0]?.label : props.alone ? "Rules" : "Not checked"}</dt>
              <dd>
                {same.length === 1 ? `not checked: ${lower(reason)}` : `${reason}: ${labels(same)}`}
              </dd>
            </div>
          )
        })}
      </dl>
    </>
  )
}

function labels(checked: readonly Checked[]): string {
  return checked.map((each) => each.label.toLowerCase()).join(", ")
}

/** A sentence inside a sentence; names such as GPU keep their capitals. */
function lower(text: string): string {
  return /^[A-Z][a-z ]/.test(text) ? text.charAt(0).toLowerCase() + text.slice(1) : text
}
