/** A rule's manual page: paragraphs, with a heading where a block begins with a short line of its own. */
import type { JSX } from "preact"

const INDENT = "    " // of code

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
  const code = isCode(body)
  return (
    <>
      {headed && <h3>{first.replace(/^#+\s*/, "")}</h3>}
      {code ? (
        <pre class="code-block">
          <code>{body.map((line) => line.slice(INDENT.length)).join("\n")}</code>
        </pre>
      ) : (
        <p>{body.join(" ")}</p>
      )}
    </>
  )
}

function isCode(lines: readonly string[]): boolean {
  return lines.every((line) => line.startsWith(INDENT))
}
