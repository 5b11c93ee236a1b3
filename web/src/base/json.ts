/**
 * JSON with the strings of a trace made safe to read: characters that hide, or turn the text around them, are spelled
 * out. A kernel may be called anything.
 */
import { visible } from "./format"

// What could need it: anything hidden as it stands, or written as an escape. Most data has neither, and is read as is.
const SUSPECT = /[\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u007f-\u009f]|\\u/u

export function parseJson<T>(text: string): T {
  return (SUSPECT.test(text) ? JSON.parse(text, (_, value: unknown) => (typeof value === "string" ? readable(value) : value)) : JSON.parse(text)) as T
}

/** Lines and tabs stay: code and manuals have them. */
function readable(text: string): string {
  return text.split(/([\n\t])/).map((part) => (part === "\n" || part === "\t" ? part : visible(part))).join("")
}
