/** What the colour of a span stands for: the kind of its work, its name, or the finding that it belongs to. */

import { KINDS, type SpanColumns } from "../../data/types"

export const COLOURINGS = ["kind", "name", "finding"] as const
export type Colouring = (typeof COLOURINGS)[number]

/** Colours that tell things apart: those of work, before those of waiting. */
const APART = KINDS.indexOf("idle")
const NONE = KINDS.indexOf("idle")

/** For each span the number of its colour, in the palette of kinds. */
export function coloursOf(columns: SpanColumns, by: Colouring): Uint8Array {
  const { kind, name, finding } = columns
  if (by === "kind") return kind
  const colours = new Uint8Array(kind.length)
  if (by === "finding") for (let at = 0; at < colours.length; at++) colours[at] = (finding[at] ?? 0) === 0 ? NONE : (finding[at]! - 1) % APART
  else for (let at = 0; at < colours.length; at++) colours[at] = Math.imul(name[at]! + 1, 0x9e3779b1) >>> 29
  return colours
}
