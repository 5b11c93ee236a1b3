/** A prediction's verdict, and the one scale on which people read it: gain, maybe, none. */

/** As it stands in every payload and in the JSON of the command line. */
export type Verdict = "gain" | "uncertain" | "no gain"

const WORDS: Readonly<Record<Verdict, string>> = { gain: "gain", uncertain: "maybe", "no gain": "none" }

export function verdictText(verdict: Verdict): string {
  return WORDS[verdict]
}
