/** A choice that a page keeps in the address: how rows are grouped, which layout is shown, which run is compared. */
import { go, place } from "./state"

export function choice<T extends string>(key: string, options: readonly T[], otherwise: T): T {
  const text = place.value.rest[key]
  return options.find((option) => option === text) ?? otherwise
}

/** Changes choices; an empty one leaves the address. */
export function choose(next: Readonly<Record<string, string>>, options: { readonly replace?: boolean } = {}): void {
  const rest = Object.entries({ ...place.peek().rest, ...next }).filter(([, value]) => value !== "")
  go({ rest: Object.fromEntries(rest) }, options)
}
