/** Whether a recording or a benchmark can be trusted, and what that rests on. */
import type { JSX } from "preact"
import { useState } from "preact/hooks"
import type { Trust } from "../../data/types"
import { counted } from "../../base/format"
import { LinkButton, MarkGlyph } from "../../components/parts"

const COLOURS: Readonly<Record<Trust["verdict"], string>> = { yes: "good", "with care": "note", no: "bad" }

export function TrustStrip(props: { readonly trust: Trust; readonly leftOut: readonly string[]; readonly what?: string }): JSX.Element {
  const { trust, leftOut } = props
  const question = `Can this ${props.what ?? "capture"} be trusted?`
  const [open, setOpen] = useState(false)
  const noted = trust.facts.some((fact) => fact.mark === "note")
  const colour = trust.verdict === "yes" && noted ? "note" : COLOURS[trust.verdict]
  const more = trust.notes.length + leftOut.length
  return (
    <section class="trust" aria-label={question}>
      <dl style={{ "--facts": String(Math.max(5, trust.facts.length)) }}>
        <div>
          <dt>{question}</dt>
          <dd class={`value ${colour}`}>{trust.says}</dd>
          <dd class="detail">
            {trust.detail}{" "}
            {more > 0 && (
              <LinkButton expanded={open} onClick={() => setOpen(!open)}>
                {open ? "Hide notes" : counted(more, "note")}
              </LinkButton>
            )}
          </dd>
        </div>
        {trust.facts.map((fact) => (
          <div key={fact.label}>
            <dt>
              <MarkGlyph mark={fact.mark} /> {fact.label}
            </dt>
            <dd class="value">{fact.value}</dd>
            <dd class="detail">{fact.detail}</dd>
          </div>
        ))}
      </dl>
      {leftOut.length > 0 && !open && <p class="left-out">Left out of this file: {leftOut.join("; ")}</p>}
      {open && (
        <ul>
          {leftOut.map((item) => (
            <li key={item}>Left out of this file: {item}</li>
          ))}
          {trust.notes.map((note) => (
            <li key={note.code}>
              {note.weight !== "info" && <strong class="note">{note.weight}: </strong>}
              {note.says}
            </li>
          ))}
        </ul>
      )}
    </section>
  )
}
