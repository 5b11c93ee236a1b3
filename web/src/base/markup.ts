/** Text of a trace in documents that would take some of it for markup: as src/foretrace/present/text/markup.py does it. */
import { visible } from "./format"

/** The text as Markdown that shows it as it is: no markup, no links. */
export function escaped(text: string): string {
  return visible(text)
    .replace(/[\\`*_[\]<>|~#&$]/g, "\\$&")
    .replace(/(?<=[A-Za-z]):(?=\/\/)|(?<=\bwww)\.|(?<=\bmailto):/gi, "\\$&")
}

/** The text as a code span, whatever backticks it holds. */
export function code(text: string): string {
  const shown = visible(text)
  const fence = "`".repeat(longestRun(shown) + 1)
  const pad = /^$|^[` ]|[` ]$/.test(shown) ? " " : ""
  return `${fence}${pad}${shown}${pad}${fence}`
}

/** A fenced block that nothing in the text can end. */
export function codeBlock(text: string): string {
  const shown = text.split("\n").map(visible).join("\n")
  const fence = "`".repeat(Math.max(longestRun(shown) + 1, 3))
  return `${fence}\n${shown}\n${fence}`
}

/** A text cell that a spreadsheet shows as text: a formula gets an apostrophe before it, a number stays one. */
export function csvText(text: string): string {
  const shown = visible(text)
  const formula = /^[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(shown) && !/^[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?$/i.test(shown)
  return formula ? `'${shown}` : shown
}

function longestRun(text: string): number {
  return Math.max(0, ...(text.match(/`+/g) ?? []).map((run) => run.length))
}
