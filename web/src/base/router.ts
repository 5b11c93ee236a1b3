/**
 * A place in the page, and its text in the URL fragment: `#/timeline?t=101.35-108.35ms&sel=102.17-104.47&span=8123&run=ID`.
 *
 * Times are nanoseconds in a Place and milliseconds in the text.
 */
/** A stretch of time, in ns. */
export interface Interval {
  readonly from: number
  readonly to: number
}

export interface Place {
  readonly view: string
  readonly run: string | null
  readonly shown: Interval | null // what the timeline shows
  readonly selection: Interval | null
  readonly span: number | null
  readonly rest: Readonly<Record<string, string>> // what one view keeps for itself: finding=2, sort=..., other=RUN
}

export const START: Place = { view: "overview", run: null, shown: null, selection: null, span: null, rest: {} }

export function parseFragment(fragment: string): Place {
  const [path = "", query = ""] = fragment.replace(/^#?\/?/, "").split("?", 2)
  const params = new URLSearchParams(query)
  const { t, sel, span, run, ...rest } = Object.fromEntries(params)
  return {
    view: path || START.view,
    run: run ?? null,
    shown: parseInterval(t),
    selection: parseInterval(sel),
    span: span !== undefined && /^\d+$/.test(span) ? Number(span) : null,
    rest,
  }
}

export function formatFragment(place: Place): string {
  const params: string[] = []
  if (place.shown) params.push(`t=${formatInterval(place.shown)}ms`)
  if (place.selection) params.push(`sel=${formatInterval(place.selection)}`)
  if (place.span !== null) params.push(`span=${place.span}`)
  for (const [name, value] of Object.entries(place.rest)) params.push(`${encodeURIComponent(name)}=${encodeURIComponent(value)}`)
  if (place.run !== null) params.push(`run=${encodeURIComponent(place.run)}`)
  return `#/${place.view}${params.length ? `?${params.join("&")}` : ""}`
}

function parseInterval(text: string | undefined): Interval | null {
  const match = /^(-?\d+(?:\.\d+)?)-(-?\d+(?:\.\d+)?)(?:ms)?$/.exec(text ?? "")
  if (!match) return null
  const from = Math.round(Number(match[1]) * 1e6)
  const to = Math.round(Number(match[2]) * 1e6)
  return to > from ? { from, to } : null
}

function formatInterval(interval: Interval): string {
  return `${milliseconds(interval.from)}-${milliseconds(interval.to)}`
}

function milliseconds(ns: number): string {
  return (Math.round(ns) / 1e6).toFixed(6).replace(/\.?0+$/, "")
}
