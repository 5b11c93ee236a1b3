/** The pointer on the board: click, drag an area, drag the view, drag the box of the minimap, wheel, and hovering. */

import { useEffect } from "preact/hooks"
import { formatNs, visible } from "../../base/format"
import type { Canvases } from "./canvases"
import { viewBox } from "./draw_strips"
import { area, CLICK_SLACK, type Drag, pan, type View, zoom } from "./interaction"
import { laneAt, spanAt } from "./layout"
import { isWhole } from "./model"
import { addToArea, selectArea, selectSpan, type TimelineState } from "./state"

export function usePointer(state: TimelineState, canvases: Canvases): void {
  useEffect(() => {
    const { minimap, ruler, tracks } = canvases
    const parts = [
      minimap.current && dragging(minimap.current, minimapDrag(state, minimap.current)),
      ruler.current && dragging(ruler.current, areaDrag(state, ruler.current, canvases)),
      tracks.current && dragging(tracks.current, areaDrag(state, tracks.current, canvases)),
      tracks.current && hovering(state, tracks.current, canvases),
      tracks.current && wheeling(state, tracks.current),
      ruler.current && wheeling(state, ruler.current),
    ]
    return () => {
      for (const part of parts) if (part) part()
    }
  }, [state])
}

interface Dragging {
  readonly press: (event: PointerEvent) => Drag | null
  readonly move: (event: PointerEvent, drag: Drag) => Drag
  readonly release: (event: PointerEvent, drag: Drag) => void
}

/** From press to release, also outside the canvas. */
function dragging(canvas: HTMLCanvasElement, how: Dragging): () => void {
  let drag: Drag | null = null
  const down = (event: PointerEvent): void => {
    if (event.button > 1) return
    drag = how.press(event)
    if (drag !== null) canvas.setPointerCapture(event.pointerId)
  }
  const move = (event: PointerEvent): void => {
    if (drag !== null) drag = how.move(event, drag)
  }
  const up = (event: PointerEvent): void => {
    if (drag !== null) how.release(event, drag)
    drag = null
  }
  const listeners = [["pointerdown", down], ["pointermove", move], ["pointerup", up], ["pointercancel", up]] as const
  for (const [name, listener] of listeners) canvas.addEventListener(name, listener)
  return () => {
    for (const [name, listener] of listeners) canvas.removeEventListener(name, listener)
  }
}

function offsetX(canvas: HTMLCanvasElement, event: MouseEvent): number {
  return event.clientX - canvas.getBoundingClientRect().left
}

function nsAt(state: TimelineState, canvas: HTMLCanvasElement, event: MouseEvent): number {
  const view = state.view.peek()
  return view.from + (offsetX(canvas, event) / Math.max(1, canvas.clientWidth)) * (view.to - view.from)
}

/** The span under the pointer. */
export function hitSpan(state: TimelineState, canvas: HTMLCanvasElement, event: MouseEvent): number | null {
  if (!isWhole(state.model.columns)) return null
  const view = state.view.peek()
  const scroller = canvas.closest(".tl-scroller")
  const y = event.clientY - canvas.getBoundingClientRect().top + (scroller?.scrollTop ?? 0)
  const lane = laneAt(state.layout.peek(), y)?.lane
  if (lane === undefined) return null
  const slack = ((view.to - view.from) / Math.max(1, canvas.clientWidth)) * 3
  return spanAt(state.model.columns, lane, nsAt(state, canvas, event), slack)
}

/** Drag: an area. With Shift or the middle button: the view. Without moving: a click. */
function areaDrag(state: TimelineState, canvas: HTMLCanvasElement, canvases: Canvases): Dragging {
  return {
    press: (event) => {
      const x = event.clientX
      if (event.button === 1) return { kind: "pan", x, view: state.view.peek() }
      return { kind: "area", anchor: nsAt(state, canvas, event), x, moved: false, adds: event.shiftKey }
    },
    move: (event, drag) => {
      if (drag.kind === "pan") {
        const share = (drag.x - event.clientX) / Math.max(1, canvas.clientWidth)
        state.moveTo(pan(drag.view, state.model.whole, share), "at once")
        return drag
      }
      if (drag.kind !== "area" || (!drag.moved && Math.abs(event.clientX - drag.x) < CLICK_SLACK)) return drag
      if (drag.adds) return { kind: "pan", x: drag.x, view: state.view.peek() }
      state.dragged.value = area(drag.anchor, nsAt(state, canvas, event), state.model.whole)
      return { ...drag, moved: true }
    },
    release: (event, drag) => {
      if (drag.kind !== "area") return
      const drawn = state.dragged.peek()
      state.dragged.value = null
      if (drag.moved) selectArea(state, drawn)
      else if (canvas === canvases.tracks.current) click(state, hitSpan(state, canvas, event), drag.adds)
    },
  }
}

function click(state: TimelineState, position: number | null, adds: boolean): void {
  if (adds && position !== null) addToArea(state, position)
  else if (!adds) selectSpan(state, position)
}

/** The box is dragged by where it was grabbed; elsewhere the view jumps under the pointer first. */
function minimapDrag(state: TimelineState, canvas: HTMLCanvasElement): Dragging {
  const { whole } = state.model
  const at = (event: MouseEvent): number => whole.from + (offsetX(canvas, event) / Math.max(1, canvas.clientWidth)) * (whole.to - whole.from)
  const move = (view: View, middle: number): void => {
    const half = (view.to - view.from) / 2
    state.moveTo({ from: middle - half, to: middle + half }, "at once")
  }
  return {
    press: (event) => {
      const view = state.view.peek()
      const middle = (view.from + view.to) / 2
      const box = viewBox({ model: state.model, view, width: canvas.clientWidth })
      const x = offsetX(canvas, event)
      if (x >= box.from && x <= box.to) return { kind: "minimap", grab: at(event) - middle }
      move(view, at(event))
      return { kind: "minimap", grab: 0 }
    },
    move: (event, drag) => {
      if (drag.kind === "minimap") move(state.view.peek(), at(event) - drag.grab)
      return drag
    },
    release: () => undefined,
  }
}

/** Ctrl and wheel zooms at the pointer, sideways pans, up and down scrolls the tracks as everywhere. */
function wheeling(state: TimelineState, canvas: HTMLCanvasElement): () => void {
  const wheel = (event: WheelEvent): void => {
    const sideways = event.shiftKey ? event.deltaY : event.deltaX
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault()
      const factor = Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008)
      state.moveTo(zoom(state.goal(), state.model.whole, nsAt(state, canvas, event), factor), "at once")
    } else if (event.shiftKey || Math.abs(sideways) > Math.abs(event.deltaY)) {
      event.preventDefault()
      state.moveTo(pan(state.goal(), state.model.whole, sideways / Math.max(1, canvas.clientWidth)), "at once")
    }
  }
  canvas.addEventListener("wheel", wheel, { passive: false })
  return () => canvas.removeEventListener("wheel", wheel)
}

function hovering(state: TimelineState, canvas: HTMLCanvasElement, canvases: Canvases): () => void {
  const move = (event: PointerEvent): void => {
    state.pointer.value = nsAt(state, canvas, event)
    showTip(state, canvases.tip.current, event, event.buttons === 0 ? hitSpan(state, canvas, event) : null)
  }
  const leave = (): void => {
    state.pointer.value = null
    if (canvases.tip.current !== null) canvases.tip.current.hidden = true
  }
  canvas.addEventListener("pointermove", move)
  canvas.addEventListener("pointerleave", leave)
  return () => {
    canvas.removeEventListener("pointermove", move)
    canvas.removeEventListener("pointerleave", leave)
  }
}

function showTip(state: TimelineState, tip: HTMLElement | null, event: PointerEvent, position: number | null): void {
  if (tip === null) return
  tip.hidden = position === null
  if (position === null) return
  const { columns, timeline } = state.model
  const name = visible((timeline.names[columns.name[position]!] ?? "").slice(0, 200))
  tip.textContent = `${name}  ${formatNs(columns.dur[position]!)}`
  const board = tip.parentElement?.getBoundingClientRect()
  if (board === undefined) return
  const x = Math.min(event.clientX - board.left + 12, board.width - tip.offsetWidth - 8)
  tip.style.left = `${Math.max(0, x)}px`
  tip.style.top = `${event.clientY - board.top + 16}px`
}
