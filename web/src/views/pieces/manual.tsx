/** A rule's manual page: paragraphs, with a heading where a block begins with a short line of its own. */
import type { JSX } from "preact"

export function Manual(props: { readonly text: string }): JSX.Element {
  const blocks = props.text.trim().split(/\n\s*\n/)
  return (
    <div class="manual">
      {blocks.map((block, index) => (
        <Block key={index} text={block} />
      ))}
    </div>
  )
}

function Block(props: { readonly text: string }): JSX.Element {
  const [first = "", ...rest] = props.text.split("\n")
  const headed = rest.length > 0 && first.length < 40 && !/[.,:;]$/.test(first)
  const body = headed ? rest : [first, ...rest]
  const code = isCode(body, first)
  return (
    <>
      {headed && <h3>{first.replace(/^#+\s*/, "")}</h3>}
      {code ? (
        <pre class="code-block">
          <code>{body.join("\n")}</code>
        </pre>
      ) : (
        <p>{body.join(" ")}</p>
      )}
    </>
  )
}

function isCode(lines: readonly string[], heading: string): boolean {
  const indented = lines.every((line) => /^( {4}|\t)/.test(line))
  return indented || (heading === "Use instead" || heading === "Example") && lines.some((line) => /[()=]/.test(line))
}
