/** Timeline: everything that happened, on one clock; an area adds up to a table, a span opens its details. */
import type { JSX } from "preact"
import { useEffect, useMemo, useState } from "preact/hooks"
import type { TimelinePayload } from "../data/payload"
import { diagnosed, go, overview, place, runId, said, search, source, valueOf } from "../data/state"
import type { Occurrences, SpanColumns, StepRange } from "../data/types"
import { choose } from "../data/choice"
import { fixed, formatCount, formatNs, shorten, visible } from "../base/format"
import { useKeys } from "../base/keys"
import { Empty, Key, LinkButton, Loaded } from "../components/parts"
import { Board } from "../components/timeline/board"
import type { View } from "../components/timeline/interaction"
import type { Focus } from "../components/timeline/focus"
import { isWhole, makeModel, withColumns } from "../components/timeline/model"
import { leftHeavy, type Mode, stepsAligned } from "../components/timeline/modes"
import { Panel } from "../components/timeline/panel"
import { currentStop, firstView, fit, makeState, panBy, step, stepLane, type TimelineState, toggleMark, zoomBy } from "../components/timeline/state"
import { followWithWindows } from "../components/timeline/tiles"
import "../components/timeline/timeline.css"
import { useResource } from "../data/use_resource"

const CLOSER = 0.6
const PAN = 0.2

export function Timeline(): JSX.Element {
  // A server has the spans long before the diagnosis of a large trace: the findings then follow.
  const [quick] = useState(() => source.peek()?.live === true && !diagnosed.peek())
  const timeline = useResource<TimelinePayload>(quick ? "timeline?findings=no" : "timeline", (from, run) => from.timeline(run, quick))
  return (
    <Loaded resource={timeline} what="timeline">
      {(payload) => (payload.timeline.spans_count > 0 ? <TimelinePage payload={payload} quick={quick} /> : <NoSpans />)}
    </Loaded>
  )
}

function NoSpans(): JSX.Element {
  const missing = valueOf(overview.value)?.missing["timeline"]
  return <Empty title="Timeline" says={missing ?? "This recording has no spans. Record with activities=[CPU, CUDA] to fill the timeline."} />
}

function TimelinePage(props: { readonly payload: TimelinePayload; readonly quick: boolean }): JSX.Element {
  const { payload, quick } = props
  const time = useMemo(() => makeState(makeModel(payload)), [payload])
  useRest(time, payload)
  // Other layouts are made from names.
  const mode = isWhole(time.model.columns) ? modeOf(place.value.rest["mode"]) : "time"
  const state = useMemo(() => inMode(mode, time), [mode, time])
  useEffect(() => time.dispose, [time])
  const hasFindings = (valueOf(overview.value)?.findings.length ?? 0) > 0
  useEffect(() => {
    const run = runId.peek()
    const from = source.peek()
    if (!payload.timeline.tiled || run === null || from === null) return
    // Windows do not wait for the findings either, and are asked for again when those are there.
    return followWithWindows(time, (low, high, px) => from.window(run, low, high, px, !hasFindings), () => innerWidth)
  }, [time, hasFindings])
  useEffect(() => {
    if (quick && hasFindings && !payload.timeline.tiled) void addFindings(time, payload)
  }, [time, hasFindings])
  useFocus(state)
  useKeys(keysOf(state))
  useSearchField(state)
  return (
    <div class="timeline">
      <h1 class="unseen">Timeline</h1>
      <Toolbar state={state} mode={mode} />
      <Board key={mode} state={state} />
      <Panel key={mode} state={mode === "heavy" ? time : state} />
    </div>
  )
}

/** What a link came for stays in sight, and the rest is dimmed: a finding, or the calls of one name. */
function useFocus(state: TimelineState): void {
  const { finding, name } = place.value.rest
  const asked = finding !== undefined && /^\d+$/.test(finding) ? useResource<Occurrences>(`finding/${finding}`) : null
  const occurrences = asked === null ? null : valueOf(asked)
  useEffect(() => {
    if (occurrences !== null) state.chosen.value = { kind: "finding", occurrences }
    else state.chosen.value = name === undefined ? null : { kind: "name", name }
  }, [state, occurrences, name])
}

/** Names and ids, when they are there. */
function useRest(state: TimelineState, payload: TimelinePayload): void {
  useEffect(() => {
    let current = true
    payload.rest?.then(
      (columns) => current && showRest(state, columns),
      (error: unknown) => (said.value = `The names of the spans could not be loaded: ${error instanceof Error ? error.message : String(error)}`),
    )
    return () => {
      current = false
    }
  }, [state])
}

function showRest(state: TimelineState, columns: SpanColumns): void {
  state.replaceModel(withColumns(state.model, columns))
  performance.mark("timeline:named")
  const { shown, selection, span } = place.peek()
  // A link to a span alone: only now it is known where that is.
  if (span !== null && shown === null && selection === null) state.moveTo(firstView(state.model), "at once")
}

async function addFindings(state: TimelineState, payload: TimelinePayload): Promise<void> {
  const run = runId.peek()
  const from = source.peek()
  if (run === null || from === null) return
  try {
    const [finding] = await Promise.all([from.findingsOf(run), payload.rest])
    const { model } = state
    if (finding.length === model.columns.finding.length) state.replaceModel(withColumns(model, { ...model.columns, finding }))
  } catch {
    // The timeline stays as it is: the Findings page has them all.
  }
}

const MODES: readonly (readonly [Mode, string])[] = [["time", "Time"], ["heavy", "Left heavy"], ["steps", "Steps"]]

function modeOf(text: string | undefined): Mode {
  return MODES.find(([mode]) => mode === text)?.[0] ?? "time"
}

/** Left heavy adds up the area, or what is in view. */
function inMode(mode: Mode, time: TimelineState): TimelineState {
  if (mode === "heavy") return makeState(leftHeavy(time.model, time.area.peek() ?? time.view.peek()), false)
  if (mode === "steps") return makeState(stepsAligned(time.model, formatNs), false)
  return time
}

function setMode(mode: Mode): void {
  const { mode: _, ...rest } = place.peek().rest
  go({ rest: mode === "time" ? rest : { ...rest, mode } })
}

/** Enter in the search field goes to the first hit and gives the keys back to the timeline. */
function useSearchField(state: TimelineState): void {
  const leave = (field: EventTarget | null): boolean => {
    if (!(field instanceof HTMLInputElement) || field.id !== "search" || search.peek().trim() === "") return false
    field.blur()
    return true
  }
  useEffect(() => {
    leave(document.activeElement)
    const entered = (event: KeyboardEvent): void => {
      if (event.key === "Enter" && place.peek().view === "timeline" && leave(event.target)) step(state, 1)
    }
    addEventListener("keydown", entered)
    return () => removeEventListener("keydown", entered)
  }, [state])
}

function keysOf(state: TimelineState): Record<string, () => void> {
  const letters: Record<string, () => void> = {
    w: () => zoomBy(state, CLOSER),
    s: () => zoomBy(state, 1 / CLOSER),
    a: () => panBy(state, -PAN),
    d: () => panBy(state, PAN),
    f: () => fit(state),
    m: () => toggleMark(state),
  }
  const upper = Object.fromEntries(Object.entries(letters).map(([key, action]) => [key.toUpperCase(), action]))
  return {
    ...letters,
    ...upper,
    ",": () => step(state, -1),
    ".": () => step(state, 1),
    ArrowUp: () => stepLane(state, -1),
    ArrowDown: () => stepLane(state, 1),
  }
}

function Toolbar(props: { readonly state: TimelineState; readonly mode: Mode }): JSX.Element {
  const { state } = props
  return (
    <div class="tl-toolbar">
      <div class="tl-modes" role="group" aria-label="Layout">
        {MODES.map(([mode, title]) => (
          <button type="button" key={mode} aria-pressed={mode === props.mode} onClick={() => setMode(mode)}>
            {title}
          </button>
        ))}
      </div>
      <ViewWords state={state} />
      <Stops state={state} />
      <span class="tl-zoom">
        <button type="button" class="button" aria-label="Zoom out" onClick={() => zoomBy(state, 1 / CLOSER)}>−</button>
        <button type="button" class="button" aria-label="Zoom in" onClick={() => zoomBy(state, CLOSER)}>+</button>
        <button type="button" class="button" onClick={() => fit(state)}>Fit</button>
      </span>
      <div class="tl-right">
        <Choice label="Colour" name="colour" options={COLOUR_WORDS} />
        <Choice label="Flows" name="flows" options={FLOW_WORDS} />
        <span class="tl-keys">
          <Key>W</Key><Key>A</Key><Key>S</Key><Key>D</Key> move <Key>F</Key> fit <Key>M</Key> mark
        </span>
      </div>
    </div>
  )
}

const COLOUR_WORDS = [["kind", "kind of work"], ["name", "name"], ["finding", "finding"]] as const
const FLOW_WORDS = [["on", "selection"], ["off", "off"]] as const

/** One of a few, kept in the address; the first is what a timeline begins with. */
function Choice(props: { readonly label: string; readonly name: string; readonly options: readonly (readonly [string, string])[] }): JSX.Element {
  const { label, name, options } = props
  const first = options[0]?.[0] ?? ""
  return (
    <label>
      {label}{" "}
      <select value={place.value.rest[name] ?? first} onChange={(event) => choose({ [name]: event.currentTarget.value === first ? "" : event.currentTarget.value }, { replace: true })}>
        {options.map(([value, words]) => (
          <option key={value} value={value}>{words}</option>
        ))}
      </select>
    </label>
  )
}

function ViewWords(props: { readonly state: TimelineState }): JSX.Element {
  const view = props.state.view.value
  const { whole, timeline } = props.state.model
  const decimals = Math.max(2, Math.min(6, 2 - Math.floor(Math.log10(Math.max((view.to - view.from) / 1e6, 1e-5)))))
  const ms = (ns: number, places: number): string => fixed(ns / 1e6, places)
  const steps = stepWords(timeline.steps, view)
  return (
    <>
      <span>
        View <strong>{ms(view.from, decimals)}–{ms(view.to, decimals)} ms</strong> of {ms(whole.to - whole.from, 1)}
      </span>
      {steps !== "" && <span>Step <strong>{steps}</strong></span>}
    </>
  )
}

/** "10 on GPU, 12 on host": the steps at the middle of the view, which differ when the host runs ahead. */
export function stepWords(steps: readonly StepRange[], view: View): string {
  const middle = (view.from + view.to) / 2
  const inside = (from: number | null, to: number | null): boolean => from !== null && to !== null && middle >= from && middle < to
  const gpu = steps.find((step) => inside(step.gpu_from_ns, step.gpu_to_ns))?.step
  const host = steps.find((step) => inside(step.host_from_ns, step.host_to_ns))?.step
  if (gpu === undefined) return host === undefined ? "" : `${host} on host`
  if (host === undefined) return `${gpu} on GPU`
  return gpu === host ? String(gpu) : `${gpu} on GPU, ${host} on host`
}

/** "3 of 24", with what it is of, and the way to the previous and the next. */
function Stops(props: { readonly state: TimelineState }): JSX.Element | null {
  const { state } = props
  const { focus, hits, stops } = state
  if (focus.value === null || hits.value === null) return null
  const count = stops.value?.length ?? hits.value.length
  const at = currentStop(state)
  return (
    <span class="tl-stops" role="status">
      <span title={whatWords(focus.value, count)}>
        <strong>{count === 0 ? "No matches" : at < 0 ? formatCount(count) : `${formatCount(at + 1)} of ${formatCount(count)}`}</strong> {whatWords(focus.value, count)}
      </span>
      {count > 0 && (
        <>
          <button type="button" class="button" aria-label="Previous" title="Previous (,)" onClick={() => step(state, -1)}>‹</button>
          <button type="button" class="button" aria-label="Next" title="Next (.)" onClick={() => step(state, 1)}>›</button>
        </>
      )}
      <LinkButton onClick={() => showAll()}>show all</LinkButton>
    </span>
  )
}

function whatWords(focus: Focus, count: number): string {
  if (focus.kind === "search") return `${count === 0 ? "" : count === 1 ? "hit " : "hits "}for “${focus.words.trim().slice(0, 40)}”`
  if (focus.kind === "name") return `calls of ${visible(shorten(focus.name, 40))}`
  const finding = valueOf(overview.value)?.findings.find((candidate) => candidate.number === focus.occurrences.number)
  const cut = focus.occurrences.rows_count > count ? ` (the first of ${formatCount(focus.occurrences.rows_count)})` : ""
  return `occurrences${cut} of finding ${focus.occurrences.number}${finding === undefined ? "" : `: ${finding.title}`}`
}

/** Nothing is dimmed any more. */
function showAll(): void {
  search.value = ""
  choose({ finding: "", name: "" })
}
