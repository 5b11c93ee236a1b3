/**
 * The state of the page: plain signals that every view reads. Where the reader is lives in the URL fragment, so that
 * a link shows the same thing and Back undoes a step; `go` is the only way to move.
 */
import { type Signal, computed, effect, signal, untracked } from "@preact/signals"
import { type Place, START, formatFragment, parseFragment } from "../base/router"
import type { Source } from "./source"
import type { Benchmark, Overview, RunEntry, Runs, Snapshot } from "./types"

/** Something that is being fetched: views show all three states, never a blank. */
export type Resource<T> =
  | { readonly state: "loading" }
  | { readonly state: "failed"; readonly says: string }
  | { readonly state: "ready"; readonly value: T }

export type Theme = "system" | "light" | "dark"

export const source = signal<Source | null>(null)
export const runs = signal<Resource<Runs>>({ state: "loading" })
export const place = signal<Place>(START)

/** The run that is shown: the one the address names, or the first. */
export const run = computed<RunEntry | null>(() => {
  if (runs.value.state !== "ready") return null
  const all = runs.value.value.runs
  const named = place.value.run
  if (named !== null) return all.find((entry) => entry.id === named) ?? null
  return all.find((entry) => entry.state === "ready") ?? all[0] ?? null
})

/** Its id, and only that: what depends on it is not redone while the progress of loading moves. */
export const runId = computed(() => run.value?.id ?? null)
export const selection = computed(() => place.value.selection)
export const span = computed(() => place.value.span)
export const search = signal("")
export const help = signal(false)
export const palette = signal(false)
export const navigation = signal(true)
export const theme = signal<Theme>("system")
/** Why the server no longer answers, or null. */
export const lost = signal<string | null>(null)
/** The last thing done, for screen readers: "Copied". */
export const said = signal("")

const cache = new Map<string, Signal<Resource<unknown>>>()

/** A resource of a run, fetched once; `RESOURCE` may hold a query. */
export function resourceOf<T>(id: string, resource: string, get?: (from: Source) => Promise<T>): { readonly value: Resource<T> } {
  const key = `${id}/${resource}`
  const known = cache.get(key)
  if (known) return known as unknown as { readonly value: Resource<T> }
  const fresh = signal<Resource<unknown>>({ state: "loading" })
  cache.set(key, fresh)
  const from = untracked(() => source.value)
  if (from) void fill(fresh, get ? get(from) : from.get<T>(id, resource))
  return fresh as unknown as { readonly value: Resource<T> }
}

async function fill<T>(target: { value: Resource<unknown> }, promise: Promise<T>): Promise<void> {
  try {
    target.value = { state: "ready", value: await promise }
  } catch (error) {
    target.value = { state: "failed", says: error instanceof Error ? error.message : String(error) }
  }
}

/** What failed may succeed at the next look: the server was away, or the run was still loading. */
function forgetFailures(): void {
  for (const [key, resource] of cache) if (resource.peek().state === "failed") cache.delete(key)
}

const NO_RUN: Resource<never> = { state: "loading" }

const SOON_MS = 150
const LATER_MS = 2000

/** What the Overview shows of the run; also names, counts and what is missing for the navigation. */
export const overview = computed<Resource<Overview>>(() => {
  const id = runId.value
  if (id === null || run.value?.state !== "ready" || run.value.sort !== "recording") return NO_RUN
  const whole = resourceOf<Overview>(id, "overview").value
  if (whole.state !== "loading" || source.value?.live !== true) return whole
  const first = resourceOf<Overview>(id, "overview?findings=no", (from) => beforeDiagnosis(from, id)).value
  return first.state === "ready" ? first : whole
})

/** The benchmark, where the run is one. */
export const benchmark = computed<Resource<Benchmark>>(() => {
  const id = runId.value
  if (id === null || run.value?.state !== "ready" || run.value.sort !== "benchmark") return NO_RUN
  return resourceOf<Benchmark>(id, "benchmark").value
})

/** The memory snapshot, where the run is one. */
export const snapshot = computed<Resource<Snapshot>>(() => {
  const id = runId.value
  if (id === null || run.value?.state !== "ready" || run.value.sort !== "snapshot") return NO_RUN
  return resourceOf<Snapshot>(id, "snapshot").value
})

/** What stands at the top of every page of the run. */
export const topOf = computed(() => valueOf(overview.value) ?? valueOf(benchmark.value) ?? valueOf(snapshot.value))

/** What is known before the diagnosis of a large recording; not asked for where the whole is there at once. */
async function beforeDiagnosis(from: Source, id: string): Promise<Overview> {
  // On the timeline it only fills the navigation: the spans go first.
  const later = place.peek().view === "timeline"
  await new Promise((resolve) => setTimeout(resolve, later ? LATER_MS : SOON_MS))
  const whole = resourceOf<Overview>(id, "overview").value
  return whole.state === "ready" ? whole.value : from.get<Overview>(id, "overview?findings=no")
}

/** Whether the findings are there. */
export const diagnosed = computed(() => valueOf(overview.value)?.pending === null)

export interface Move {
  readonly view?: string
  readonly run?: string | null
  readonly shown?: Place["shown"]
  readonly selection?: Place["selection"]
  readonly span?: number | null
  readonly rest?: Place["rest"]
}

/** Moves to another place. `replace` for what is not worth a step back, such as panning. */
export function go(move: Move, options: { readonly replace?: boolean } = {}): void {
  const before = place.value
  const anotherRun = move.run !== undefined && move.run !== before.run
  const kept = anotherRun ? { ...before, shown: null, selection: null, span: null, rest: {} } : before
  const after: Place = { ...kept, ...restOf(move, before), ...move }
  const text = formatFragment(after)
  remember(before, after)
  place.value = after
  if (text === location.hash) return
  if (options.replace) history.replaceState(null, "", text)
  else history.pushState(null, "", text)
}

/** The fragment of a place near this one, for a real link. */
export function linkTo(move: Move): string {
  const here = place.value
  return formatFragment({ ...here, ...restOf(move, here), ...move })
}

/** What each view kept for itself when it was left: its sort, filter and ticks are still there on return. */
const left = new Map<string, Place["rest"]>()

function restOf(move: Move, here: Place): { readonly rest?: Place["rest"] } {
  if (move.view === undefined || move.view === here.view) return {}
  const sameRun = move.run === undefined || move.run === here.run
  return { rest: sameRun ? (left.get(move.view) ?? {}) : {} }
}

function remember(before: Place, after: Place): void {
  if (after.run !== before.run || after.view !== before.view) forgetFailures()
  if (after.run !== before.run) left.clear()
  else if (after.view !== before.view) left.set(before.view, before.rest)
}

/** The whole address of what is shown, to send to someone who can reach it. */
export function addressOf(move: Move = {}): string {
  return `${location.href.split("#")[0]}${linkTo({ run: runId.value, ...move })}`
}

/** Follows the address bar and the Back button, and keeps the theme. */
export function start(from: Source): void {
  source.value = from
  const follow = (): void => {
    const next = parseFragment(location.hash)
    remember(place.value, next)
    place.value = next
  }
  place.value = parseFragment(location.hash)
  addEventListener("popstate", follow)
  addEventListener("hashchange", follow)
  theme.value = storedTheme()
  navigation.value = !matchMedia("(max-width: 900px)").matches
  const dark = matchMedia("(prefers-color-scheme: dark)")
  const system = signal(dark.matches)
  dark.addEventListener("change", () => (system.value = dark.matches))
  effect(() => {
    const shown = theme.value === "system" ? (system.value ? "dark" : "light") : theme.value
    document.documentElement.dataset["theme"] = shown
    shownTheme.value = shown
  })
  void watchRuns(from)
}

/** The theme as it is drawn: canvases redraw when it changes. */
export const shownTheme = signal<"light" | "dark">("light")

export function setTheme(next: Theme): void {
  theme.value = next
  try {
    localStorage.setItem("foretrace-theme", next)
  } catch {
    // A report opened from a file may have no storage: the choice then lasts as long as the page.
  }
}

function storedTheme(): Theme {
  try {
    const stored = localStorage.getItem("foretrace-theme")
    return stored === "light" || stored === "dark" ? stored : "system"
  } catch {
    return "system"
  }
}

const BUSY_MS = 150
const IDLE_MS = 4000

/** Asks for the runs again: often while one is loading, now and then otherwise (a new trace appears by itself). */
async function watchRuns(from: Source): Promise<void> {
  for (;;) {
    if (!document.hidden || runs.value.state === "loading") await askForRuns(from)
    if (!from.live) return
    const busy = valueOf(runs.value)?.runs.some((entry) => entry.state === "waiting" || entry.state === "loading")
    await new Promise((resolve) => setTimeout(resolve, busy ? BUSY_MS : IDLE_MS))
  }
}

async function askForRuns(from: Source): Promise<void> {
  try {
    const next = await from.runs()
    const before = valueOf(runs.value)
    if (next !== before && JSON.stringify(next) !== JSON.stringify(before)) runs.value = { state: "ready", value: next }
    lost.value = null
  } catch (error) {
    const says = error instanceof Error ? error.message : String(error)
    // What is already here stays readable when the server goes away.
    if (runs.value.state === "ready") lost.value = says
    else runs.value = { state: "failed", says }
  }
}

export function valueOf<T>(resource: Resource<T>): T | null {
  return resource.state === "ready" ? resource.value : null
}
