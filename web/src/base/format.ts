/**
 * The suffix of a name is its unit: values as text for people. The same value has the same text as in the terminal
 * (`src/foretrace/units.py`); `test/format.json` holds both to it.
 */

/** What a cell of a table may hold; null is "not recorded". */
export type Value = string | number | boolean | null

/** The ends of a range: what is predicted lies between them, and most likely at the point, where there is one. */
export interface Ends {
  readonly point?: number
  readonly low: number
  readonly high: number
}

export const ABSENT = "–"
const SUFFIXES = ["_ns", "_bytes", "_flops", "_pct", "_count", "_per_s", "_flops_per_byte"] as const
type Suffix = (typeof SUFFIXES)[number] | ""
type Steps = readonly (readonly [factor: number, unit: string])[]

const PREFIXES = ["", "k", "M", "G", "T", "P", "E"]
const TIMES: Steps = [[1, "ns"], [1e3, "µs"], [1e6, "ms"], [1e9, "s"]]
const BYTES: Steps = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].map((unit, power) => [1024 ** power, unit] as const)
const FLOPS: Steps = PREFIXES.map((unit, power) => [1000 ** power, `${unit}FLOP`] as const)
const PLAIN: Steps = PREFIXES.map((unit, power) => [1000 ** power, unit] as const)
const SCALES: Readonly<Record<string, Steps>> = { _ns: TIMES, _bytes: BYTES, _flops: FLOPS }

export function suffixOf(name: string): Suffix {
  return SUFFIXES.find((suffix) => name.endsWith(suffix)) ?? ""
}

/** A value as text in the unit that its name says; absent values as a dash. */
export function formatValue(name: string, value: Value | undefined): string {
  if (value === null || value === undefined) return ABSENT
  if (typeof value === "boolean") return value ? "yes" : "no"
  if (typeof value === "string") return visible(value)
  return Number.isFinite(value) ? formatNumber(name, value) : ABSENT
}

/** The text of a cell: by the suffix of its column, or by the unit when the name has none. */
export function formatCell(column: { readonly name: string; readonly unit: string }, value: Value | undefined): string {
  const named = suffixOf(column.name) !== "" || column.unit === "text" || column.unit === "number" || column.unit === "bool"
  return formatValue(named ? column.name : `${column.name}_${column.unit}`, value)
}

function formatNumber(name: string, value: number): string {
  const unit = suffixOf(name)
  const scale = SCALES[unit]
  if (scale) return scaled(value, scale)
  if (unit === "_pct") return `${fixed(value, 1)} %`
  if (unit === "_flops_per_byte") return value === 0 ? "0" : `${digits(value)} FLOP/B`
  if (unit === "_per_s") return `${scaled(value, SCALES[suffixOf(name.slice(0, -"_per_s".length))] ?? PLAIN).trimEnd()}/s`
  if (!Number.isInteger(value)) return digits(value)
  // Ids, ranks and step numbers are names, not amounts: only a count gets separators.
  return unit === "_count" ? separated(String(value)) : String(value)
}

/** Three significant digits in the largest unit that keeps the number at 1 or more. */
function scaled(value: number, scale: Steps): string {
  if (value === 0) return "0"
  // 999.6 µs would show as 1,000 µs: it belongs to the next unit already.
  const [factor, unit] = scale.findLast(([least]) => Math.abs(value) >= least * 0.9995) ?? scale[0] ?? [1, ""]
  const number = factor === 1 && Number.isInteger(value) ? separated(String(value)) : digits(value / factor)
  return `${number} ${unit}`.trimEnd()
}

function digits(value: number): string {
  const size = Math.abs(value)
  if (size >= 99.95) return separated(fixed(value, 0))
  if (size >= 9.995) return fixed(value, 1)
  if (size >= 0.9995) return fixed(value, 2)
  return general(value)
}

/** Like Python's `.3g`. */
function general(value: number): string {
  if (value === 0) return "0"
  const text = value.toExponential(2)
  const exponent = Number(text.slice(text.indexOf("e") + 1))
  if (exponent >= -4) return trimZeros(value.toFixed(2 - exponent))
  const mantissa = trimZeros(text.slice(0, text.indexOf("e")))
  return `${mantissa}e-${String(-exponent).padStart(2, "0")}`
}

function trimZeros(text: string): string {
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text
}

/** Like Python's `.Nf`: a true tie goes to the even digit, where toFixed goes up. */
export function fixed(value: number, decimals: number): string {
  const exact = Math.abs(value).toFixed(decimals + 24)
  const cut = exact.length - 24
  const rest = exact.slice(cut)
  const kept = exact.slice(0, cut).replace(/\.$/, "")
  const tieToEven = /^50*$/.test(rest) && Number(kept.at(-1)) % 2 === 0
  if (!tieToEven) return value.toFixed(decimals)
  return (value < 0 ? "-" : "") + kept
}

function separated(text: string): string {
  return text.replace(/\B(?=(\d{3})+(?!\d))/g, ",")
}

export function formatCount(count: number): string {
  return separated(String(count))
}

/** A count and its noun: 1 step, 1,024 steps. */
export function counted(count: number, noun: string): string {
  return `${formatCount(count)} ${noun}${count === 1 ? "" : "s"}`
}

export function capitalised(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1)
}

const UNSEEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu

/** The text with every character that could hide, or turn the text around, spelled out. */
export function visible(text: string): string {
  return text.replace(UNSEEN, spelled)
}

function spelled(character: string): string {
  const code = character.codePointAt(0) ?? 0
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`
}

const PARAMETERS = /\((?:[^()]|\([^()]*\))*\)$/
const SCOPES = /\(anonymous namespace\)::|\b(?:at::native|at::cuda|at_cuda_detail|c10|std)::/g

/** The text in at most `most` characters: first without C++ noise, then cut in the middle. */
export function shorten(text: string, most: number): string {
  if (text.length <= most) return text
  let short = text.length > 4096 ? `${text.slice(0, 2048)}…${text.slice(-2048)}` : text
  if (short.startsWith("void ")) short = short.slice("void ".length).replace(PARAMETERS, "")
  if (short.length > most) short = short.replace(SCOPES, "")
  if (short.length <= most) return short
  // The beginning says what it is; the end tells variants apart.
  const tail = Math.floor((most - 1) / 3)
  return `${short.slice(0, most - 1 - tail)}…${short.slice(short.length - tail)}`
}

export function formatNs(ns: number | null): string {
  return formatValue("_ns", ns)
}

/** Milliseconds with one decimal, as a step time is shown in lists. */
export function formatMs(ms: number | null): string {
  if (ms === null) return ABSENT
  const scale = timeScale(ms)
  return `${scale.text(ms)} ${scale.unit}`
}

/** One unit and one precision for times that are read side by side, chosen by the largest. */
export interface TimeScale {
  readonly unit: string
  text(ms: number): string
  range(range: Ends): string
}

export function timeScale(largestMs: number): TimeScale {
  const size = Math.abs(largestMs)
  const [factor, unit] = size >= 10_000 ? [1e-3, "s"] : size < 1 ? [1e3, "µs"] : [1, "ms"]
  const shown = size * factor
  const decimals = shown >= 1000 ? 0 : shown >= 10 ? 1 : 2
  const text = (ms: number): string => separated(fixed(ms * factor, decimals).replace(/^-(0(\.0+)?)$/, "$1"))
  return { unit, text, range: (range) => pointed(range, text) }
}

/** 3.00× (2.90–3.10), with the decimals of the terminal; 1.02× when all read the same. */
export function formatSpeedup(range: Ends): string {
  const text = (times: number): string => fixed(times, times < 100 ? 2 : 0)
  const ends = joined(text(range.low), text(range.high))
  if (range.point === undefined) return `${ends}×`
  const point = text(range.point)
  return point === ends ? `${point}×` : `${point}× (${ends})`
}

/** 12.9 (9.2–15.5); the ends alone where there is no point. */
function pointed(range: Ends, text: (value: number) => string): string {
  const ends = joined(text(range.low), text(range.high))
  if (range.point === undefined || text(range.point) === ends) return ends
  return `${text(range.point)} (${ends})`
}

function joined(low: string, high: string): string {
  return low === high ? low : `${low}–${high}`
}
