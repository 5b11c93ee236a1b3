/**
 * The state of one timeline: what is in view, which lanes are open, what is found, and the moves a reader can make.
 * What is worth a link (view, area, span, marks) is mirrored in the address through data/state.
 */

import { computed, effect, signal, untracked, type ReadonlySignal, type Signal } from "@preact/signals"
import { go, place, search } from "../../data/state"
import type { SpanDetail } from "../../data/types"
import { area as areaOf, around, between, clamp, pan, reveal, type View, zoom } from "./interaction"
import { lanesInView, layOut, type Layout, type TrackChoice, trackOf } from "./layout"
import { isWhole, type Model, NO_SPAN, positionOf } from "./model"
import { COLOURINGS, coloursOf } from "./colours"
import { type Focus, nextStop, spansInFocus, type Stop, stopAt, stopsOf } from "./focus"
import { neighbour, parentOrChild, stepHit } from "./search"

const ZOOM_MS = 120
const SETTLE_MS = 160

export interface TimelineState {
  readonly model: Model // follows the view when the timeline comes in windows
  readonly replaceModel: (model: Model) => void
  readonly view: Signal<View>
  readonly layout: ReadonlySignal<Layout>
  readonly choices: Signal<ReadonlyMap<number, TrackChoice>>
  readonly linked: boolean
  readonly area: ReadonlySignal<View | null>
  readonly setArea: (area: View | null) => void
  readonly dragged: Signal<View | null> // an area that is still being drawn
  readonly selected: ReadonlySignal<number | null> // position in the columns
  readonly picked: Signal<number | null> // position of a selected mark that has no id, hence no link
  readonly detail: Signal<SpanDetail | null>
  readonly chosen: Signal<Focus | null> // what a link came for; a search goes first
  readonly focus: ReadonlySignal<Focus | null>
  readonly hits: ReadonlySignal<Uint32Array | null> // what is not dimmed
  readonly stops: ReadonlySignal<readonly Stop[] | null>
  readonly marks: ReadonlySignal<readonly number[]>
  readonly colours: ReadonlySignal<Uint8Array>
  readonly flows: ReadonlySignal<boolean>
  readonly pointer: Signal<number | null> // the moment under the pointer
  readonly moveTo: (view: View, how?: "glide" | "at once" | "step") => void
  readonly goal: () => View // where the view is going, or is
  readonly dispose: () => void
}

/** What this timeline wrote into the address last: not to be followed. */
interface Own {
  shown: View | null
}

/** What the address says, else the selected thing, else the whole capture. */
export function firstView(model: Model): View {
  const { shown, selection, span } = untracked(() => place.value)
  if (shown !== null) return clamp(shown, model.whole)
  if (selection !== null) return around(selection.from, selection.to, model.whole)
  const position = span === null ? null : positionOf(model.columns, span)
  if (position === null) return model.whole
  const from = model.columns.start[position]!
  return around(from, from + model.columns.dur[position]!, model.whole, 5)
}

/** `linked`: its view and area are those of the address. Other layouts have a clock of their own, which no link can name. */
export function makeState(first: Model, linked = true): TimelineState {
  const held = signal(first)
  const { whole } = first
  const view = signal(linked ? firstView(first) : whole)
  const ownArea = signal<View | null>(null)
  const choices = signal<ReadonlyMap<number, TrackChoice>>(new Map())
  const used = signal<readonly number[]>([])
  const look = (): void => {
    const { timeline, columns } = held.peek()
    const next = timeline.tracks.map((track) => lanesInView(track, columns, view.peek()))
    if (next.join() !== used.peek().join()) used.value = next
  }
  look()
  const picked = signal<number | null>(null)
  const chosen = signal<Focus | null>(null)
  const focus = computed<Focus | null>(() => (search.value.trim() === "" ? chosen.value : { kind: "search", words: search.value }))
  const hits = computed(() => spansInFocus(held.value, focus.value))
  const own: Own = { shown: place.peek().shown }
  const { moveTo, goal, stop } = mover(whole, view, look, own, linked)
  const follow = linked ? followAddress(whole, view, look, own) : () => undefined
  return {
    get model() {
      return held.value
    },
    replaceModel: (model) => {
      picked.value = null
      held.value = model
      look()
    },
    view,
    choices,
    layout: computed(() => layOut(held.value.timeline, used.value, choices.value)),
    linked,
    area: computed(() => (linked ? place.value.selection : ownArea.value)),
    setArea: (area) => {
      if (linked) go({ selection: area })
      else ownArea.value = area
    },
    dragged: signal<View | null>(null),
    selected: computed(() => (place.value.span === null ? picked.value : positionOf(held.value.columns, place.value.span))),
    picked,
    detail: signal<SpanDetail | null>(null),
    chosen,
    focus,
    hits,
    stops: computed(() => stopsOf(held.value.columns, focus.value, hits.value)),
    marks: computed(() => (linked ? parseMarks(place.value.rest["marks"]) : [])),
    colours: computed(() => coloursOf(held.value.columns, COLOURINGS.find((by) => by === place.value.rest["colour"]) ?? "kind")),
    flows: computed(() => place.value.rest["flows"] !== "off"),
    pointer: signal<number | null>(null),
    moveTo,
    goal,
    dispose: () => {
      stop()
      follow()
    },
  }
}

interface Mover {
  readonly moveTo: TimelineState["moveTo"]
  readonly goal: () => View
  readonly stop: () => void
}

/** Moves the view, gliding when the reader does not mind motion, and writes the address once it rests. */
function mover(whole: View, view: Signal<View>, look: () => void, own: Own, linked: boolean): Mover {
  const still = matchMedia("(prefers-reduced-motion: reduce)")
  let goal: View | null = null
  let frame = 0
  let timer = 0
  const write = (shown: View, replace: boolean): void => {
    if (!linked) return
    own.shown = { from: Math.round(shown.from), to: Math.round(shown.to) }
    go({ shown: own.shown }, { replace })
  }
  const settle = (): void => {
    goal = null
    look()
    write(view.peek(), true)
  }
  const moveTo: TimelineState["moveTo"] = (wanted, how = "glide") => {
    const target = clamp(wanted, whole)
    stop()
    goal = target
    if (how === "at once" || still.matches) view.value = target
    else frame = glide(view, target, (next) => (frame = next))
    if (how === "step") write(target, false)
    timer = window.setTimeout(settle, how === "at once" ? SETTLE_MS : ZOOM_MS + SETTLE_MS)
  }
  const stop = (): void => {
    goal = null
    cancelAnimationFrame(frame)
    clearTimeout(timer)
  }
  return { moveTo, goal: () => goal ?? view.peek(), stop }
}

function glide(view: Signal<View>, target: View, remember: (frame: number) => void): number {
  const from = view.peek()
  const began = performance.now()
  const move = (now: number): void => {
    const share = Math.max(0, (now - began) / ZOOM_MS)
    view.value = between(from, target, share)
    if (share < 1) remember(requestAnimationFrame(move))
  }
  return requestAnimationFrame(move)
}

/** A link, or the Back button, moves the view. */
function followAddress(whole: View, view: Signal<View>, look: () => void, own: Own): () => void {
  return effect(() => {
    const { shown, view: page } = place.value
    if (page !== "timeline" || shown === own.shown) return
    own.shown = shown
    view.value = shown === null ? whole : clamp(shown, whole)
    look()
  })
}

function parseMarks(text: string | undefined): readonly number[] {
  return (text ?? "").split(",").filter((part) => part !== "" && Number.isFinite(Number(part))).map((part) => Number(part) * 1e6)
}

/** The moment that keys act on: under the pointer, else the middle of the view. */
export function focusNs(state: TimelineState): number {
  const view = state.view.peek()
  const pointer = state.pointer.peek()
  return pointer !== null && pointer >= view.from && pointer <= view.to ? pointer : (view.from + view.to) / 2
}

export function zoomBy(state: TimelineState, factor: number): void {
  state.moveTo(zoom(state.goal(), state.model.whole, focusNs(state), factor))
}

export function panBy(state: TimelineState, share: number): void {
  state.moveTo(pan(state.goal(), state.model.whole, share))
}

/** Fits the selected span, then the area, then the whole capture; again: the next of them. */
export function fit(state: TimelineState): void {
  const { columns, whole } = state.model
  const choices: View[] = []
  const position = state.selected.peek()
  if (position !== null) choices.push(around(columns.start[position]!, columns.start[position]! + columns.dur[position]!, whole))
  const area = state.area.peek()
  if (area !== null) choices.push(around(area.from, area.to, whole, 0.05))
  choices.push(whole)
  const now = state.goal()
  const same = choices.findIndex((choice) => Math.abs(choice.from - now.from) < 2 && Math.abs(choice.to - now.to) < 2)
  state.moveTo(choices[(same + 1) % choices.length]!, "step")
}

export function selectSpan(state: TimelineState, position: number | null): void {
  if (!isWhole(state.model.columns)) return
  const id = position === null ? NO_SPAN : state.model.columns.id.at(position)!
  state.picked.value = id === NO_SPAN ? position : null
  const span = id === NO_SPAN ? null : id
  if (span !== place.peek().span) go({ span })
}

/** Selects and brings it on screen, opening its track. */
export function showSpan(state: TimelineState, position: number): void {
  const { columns, timeline, whole } = state.model
  const from = columns.start[position]!
  const track = trackOf(timeline.tracks, position)
  const choice = state.choices.peek().get(track)
  if (choice === "collapsed") setChoice(state, track, undefined)
  selectSpan(state, position)
  const now = state.goal()
  const target = reveal(now, whole, from, from + columns.dur[position]!)
  if (target !== now) state.moveTo(target)
}

/** Selects a span by its id, which may be in no window that is loaded, and brings it on screen. */
export function openSpan(state: TimelineState, { span, from, to }: Stop): void {
  const position = positionOf(state.model.columns, span)
  if (position !== null) return showSpan(state, position)
  go({ span })
  state.moveTo(around(from, to, state.model.whole, 10), "step")
}

export function selectArea(state: TimelineState, area: View | null): void {
  state.setArea(area === null ? null : { from: Math.round(area.from), to: Math.max(Math.round(area.to), Math.round(area.from) + 1) })
}

/** Shift and click: the area grows to hold the span. */
export function addToArea(state: TimelineState, position: number): void {
  const { columns, whole } = state.model
  const from = columns.start[position]!
  const to = from + columns.dur[position]!
  const area = state.area.peek()
  selectArea(state, areaOf(Math.min(area?.from ?? from, from), Math.max(area?.to ?? to, to), whole))
}

export function setChoice(state: TimelineState, track: number, choice: TrackChoice | undefined): void {
  const next = new Map(state.choices.peek())
  if (choice === undefined) next.delete(track)
  else next.set(track, choice)
  state.choices.value = next
}

/** The previous or next: of what a search found, else of the selected span's row, else of all. */
export function step(state: TimelineState, by: 1 | -1): void {
  const { columns, timeline } = state.model
  const selected = state.selected.peek()
  const stops = state.stops.peek()
  if (stops !== null) {
    const next = stops[nextStop(stops, currentStop(state), state.view.peek().from, by)]
    if (next !== undefined) openSpan(state, next)
    return
  }
  const hits = state.hits.peek()
  if (hits !== null) {
    const current = selected !== null && hits.includes(selected) ? selected : null
    const next = stepHit(columns, hits, state.view.peek().from, current, by > 0)
    if (next !== null) showSpan(state, next)
    return
  }
  const next = selected === null ? firstInView(state) : neighbour(timeline, selected, by)
  if (next !== null) showSpan(state, next)
}

/** Which of the stops is selected; -1: none. */
export function currentStop(state: TimelineState): number {
  const selected = state.selected.value
  const from = selected === null ? null : state.model.columns.start[selected]!
  return stopAt(state.stops.value ?? [], place.value.span, from)
}

function firstInView(state: TimelineState): number | null {
  const view = state.view.peek()
  const { start, dur } = state.model.columns
  for (const box of state.layout.peek().tracks) {
    for (const { offset, count } of box.lanes) {
      for (let at = offset; at < offset + count; at++) if (start[at]! + dur[at]! > view.from) return start[at]! < view.to ? at : null
    }
  }
  return null
}

/** Up and down through the nesting of a thread. */
export function stepLane(state: TimelineState, by: 1 | -1): void {
  const selected = state.selected.peek()
  if (selected === null) return step(state, 1)
  const next = parentOrChild(state.model.timeline, state.model.columns, selected, by)
  if (next !== null) showSpan(state, next)
}

/** Sets a mark where the pointer or the selected span is, or takes away the one that is there. */
export function toggleMark(state: TimelineState): void {
  if (!state.linked) return
  const selected = state.selected.peek()
  const at = state.pointer.peek() !== null || selected === null ? focusNs(state) : state.model.columns.start[selected]!
  const view = state.view.peek()
  const near = (view.to - view.from) / 200
  const marks = state.marks.peek()
  const kept = marks.filter((mark) => Math.abs(mark - at) > near)
  const next = kept.length < marks.length ? kept : [...marks, at].sort((a, b) => a - b)
  const { marks: _, ...rest } = place.peek().rest
  go({ rest: next.length === 0 ? rest : { ...rest, marks: next.map((mark) => (mark / 1e6).toFixed(6).replace(/\.?0+$/, "")).join(",") } })
}
