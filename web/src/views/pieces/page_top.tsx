/** The top of a page: what it shows in one sentence, its totals, and its choices. */
import type { ComponentChildren, JSX } from "preact"
import { capitalised, shorten } from "../../base/format"
import "./page_top.css"

const LONGEST = 320

export interface Total {
  readonly heading: string
  readonly text: string
  readonly says?: string
}

export function PageTop(props: { readonly says: string; readonly totals?: readonly Total[]; readonly children?: ComponentChildren }): JSX.Element {
  const { says, totals = [] } = props
  return (
    <header class="page-top">
      <p class="says">{sentence(shorten(says, LONGEST))}</p>
      {totals.length > 0 && (
        <dl aria-label="Totals">
          {totals.map((total) => (
            <div key={total.heading} title={total.says}>
              <dt>{sentence(total.heading)}</dt>
              <dd>{total.text}</dd>
            </div>
          ))}
        </dl>
      )}
      {props.children && <div class="choices-line">{props.children}</div>}
    </header>
  )
}

/** A name at the beginning, such as cuda:0, stays as it is. */
function sentence(text: string): string {
  return /^[a-z]+[^\w\s]\w/.test(text) ? text : capitalised(text)
}
