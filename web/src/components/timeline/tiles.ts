/**
 * Windows of a timeline that is too large to send whole: the server gives what the view needs and a margin on both
 * sides, and again when the view has left it or come much closer.
 */

import { effect } from "@preact/signals"
import type { TimelinePayload } from "../../data/payload"
import { clamp, type View } from "./interaction"
import { makeModel, type Model } from "./model"
import type { TimelineState } from "./state"

const MARGIN = 1 // lengths of the view on either side
const CLOSER = 3 // a window is coarse once the view is this much shorter than when it was asked for
const WAIT_MS = 60

export type AskWindow = (from: number, to: number, px: number) => Promise<TimelinePayload>

/** A window that serves a view. */
export interface Asked {
  readonly window: View
  readonly view: View
}

/** Whether what was asked for still shows the view well. */
export function serves(asked: Asked | null, view: View): boolean {
  if (asked === null) return false
  const length = view.to - view.from
  const inside = view.from >= asked.window.from && view.to <= asked.window.to
  return inside && length * CLOSER > asked.view.to - asked.view.from
}

export function windowAround(view: View, whole: View): View {
  const margin = (view.to - view.from) * MARGIN
  const wide = clamp({ from: view.from - margin, to: view.to + margin }, whole)
  return { from: Math.floor(wide.from), to: Math.ceil(wide.to) }
}

/** The window's spans in place of the model's; counters, steps and the minimap stay those of the whole. */
function withWindow(first: Model, payload: TimelinePayload): Model {
  const { timeline } = payload
  const model = makeModel({ ...payload, counters: [] })
  const kept = { ...first.timeline, names: timeline.names, tracks: timeline.tracks }
  return { ...first, timeline: kept, columns: model.columns, index: model.index }
}

/** Keeps the model's spans fitting to the view; call the result to stop. */
export function followWithWindows(state: TimelineState, ask: AskWindow, width: () => number): () => void {
  const first = state.model
  let asked: Asked | null = null
  let timer = 0
  let newest = 0
  const request = async (): Promise<void> => {
    const view = state.view.peek()
    if (serves(asked, view)) return
    const window = windowAround(view, first.whole)
    const number = ++newest
    asked = { window, view }
    const scale = (window.to - window.from) / (view.to - view.from)
    try {
      const payload = await ask(window.from, window.to, Math.ceil(width() * scale))
      if (number === newest) state.replaceModel(withWindow(first, payload))
    } catch {
      if (number === newest) asked = null // the next move asks again
    }
  }
  const stop = effect(() => {
    void state.view.value
    clearTimeout(timer)
    timer = globalThis.setTimeout(() => void request(), asked === null ? 0 : WAIT_MS) as unknown as number
  })
  return () => {
    stop()
    clearTimeout(timer)
    newest++
  }
}
