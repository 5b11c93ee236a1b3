/** The board: minimap, ruler and tracks as canvases, with the names of the tracks beside them as text. */

import { effect } from "@preact/signals"
import type { JSX, RefObject } from "preact"
import { useEffect, useMemo, useRef } from "preact/hooks"
import { shownTheme } from "../../data/state"
import type { Counter } from "../../data/types"
import { fixed, formatCount, formatNs, formatValue, visible } from "../../base/format"
import { type CounterCurve, meanInView, mostInView } from "./counters"
import { type Canvases, fitCanvas } from "./canvases"
import { drawMinimap, drawRuler } from "./draw_strips"
import { TracksCanvas } from "./draw_tracks"
import type { View } from "./interaction"
import { COUNTER_HEIGHT, type TrackBox } from "./layout"
import { usePointer } from "./pointer"
import type { Scene } from "./scene"
import { setChoice, type TimelineState } from "./state"
import { readTheme } from "./theme"

export function Board(props: { readonly state: TimelineState }): JSX.Element {
  const { state } = props
  const canvases: Canvases = {
    minimap: useRef<HTMLCanvasElement>(null),
    ruler: useRef<HTMLCanvasElement>(null),
    tracks: useRef<HTMLCanvasElement>(null),
    scroller: useRef<HTMLDivElement>(null),
    tip: useRef<HTMLDivElement>(null),
  }
  useDrawing(state, canvases)
  usePointer(state, canvases)
  const { whole } = state.model
  return (
    <div class="tl-board">
      <div class="tl-strip tl-minimap">
        <div class="tl-label">
          <span>{state.linked ? "Capture" : "All"}, {formatNs(whole.to - whole.from)}</span>
          {state.linked && <span>{state.model.timeline.tracks.some((track) => track.group === "gpu") ? "GPU work" : "host work"}</span>}
        </div>
        <div class="tl-canvas">
          <canvas ref={canvases.minimap} aria-hidden="true" />
        </div>
      </div>
      <div class="tl-strip tl-ruler">
        <div class="tl-label" />
        <div class="tl-canvas">
          <canvas ref={canvases.ruler} aria-hidden="true" />
        </div>
      </div>
      <div class="tl-scroller" ref={canvases.scroller}>
        <Content state={state} canvas={canvases.tracks} />
      </div>
      <div class="tl-tip" ref={canvases.tip} hidden aria-hidden="true" />
    </div>
  )
}

/** As high as all tracks; the canvas stays in sight and draws the part that is scrolled to. */
function Content(props: { readonly state: TimelineState; readonly canvas: RefObject<HTMLCanvasElement | null> }): JSX.Element {
  const { state } = props
  const layout = state.layout.value
  return (
    <div class="tl-content" style={{ height: `${layout.height}px` }}>
      <div class="tl-labels">
        {state.model.timeline.counters.map((counter, number) => (
          <div class="tl-label" key={`counter ${number}`} style={{ top: `${number * COUNTER_HEIGHT}px`, height: `${COUNTER_HEIGHT}px` }} title={counter.says}>
            <span>{counter.title}</span>
            <CounterNow counter={counter} curve={state.model.curves[number]} view={state.view} />
          </div>
        ))}
        {layout.tracks.map((box) => (
          <TrackLabel key={box.number} box={box} state={state} />
        ))}
      </div>
      <canvas class="tl-tracks" ref={props.canvas} aria-hidden="true" />
    </div>
  )
}

function CounterNow(props: { readonly counter: Counter; readonly curve: CounterCurve | undefined; readonly view: TimelineState["view"] }): JSX.Element {
  const text = props.curve === undefined ? "" : counterText(props.counter, props.curve, props.view.value)
  return <span>{text}</span>
}

export function counterText(counter: Counter, curve: CounterCurve, view: View): string {
  if (counter.unit === "pct") {
    const mean = meanInView(curve, view)
    return mean === null ? "not recorded here" : `${fixed(mean, 1)} % in view`
  }
  const most = mostInView(curve, view)
  if (most === null) return "not recorded here"
  if (counter.unit === "bytes") return `${formatValue("_bytes", most)} in use`
  return `${formatCount(Math.round(most))} queued${most >= 1000 && most >= counter.most ? ", full" : ""}`
}

function TrackLabel(props: { readonly box: TrackBox; readonly state: TimelineState }): JSX.Element {
  const { box, state } = props
  const { track, number } = box
  const slim = box.state !== "open"
  const words = `${visible(track.title)} ${visible(track.subtitle)}`
  const toggle = (): void => setChoice(state, number, box.state === "collapsed" ? undefined : "collapsed")
  const style = { top: `${box.y}px`, height: `${box.height}px` }
  if (box.state === "empty") {
    return (
      <div class="tl-label slim" style={style}>
        <strong>{visible(track.title)}</strong> <span>{visible(track.subtitle)}</span> <span class="quiet">nothing in view</span>
      </div>
    )
  }
  return (
    <div class={slim ? "tl-label slim" : "tl-label"} style={style}>
      <button type="button" class="tl-fold" aria-expanded={!slim} aria-label={words} title={slim ? "Expand" : "Collapse"} onClick={toggle}>
        <strong>{visible(track.title)}</strong> <span>{visible(track.subtitle)}</span>
      </button>
      {!slim && box.hidden > 0 && (
        <button type="button" class="tl-more" onClick={() => setChoice(state, number, "all")}>
          {box.hidden} more levels
        </button>
      )}
      {!slim && box.hidden === 0 && state.choices.value.get(number) === "all" && (
        <button type="button" class="tl-more" onClick={() => setChoice(state, number, undefined)}>
          fewer levels
        </button>
      )}
    </div>
  )
}

/** Redraws in the next frame whenever something that is drawn has changed, and only then. */
function useDrawing(state: TimelineState, canvases: Canvases): void {
  const tracks = useMemo(() => new TracksCanvas(), [])
  useEffect(() => {
    let frame = 0
    let theme = readTheme(document.documentElement)
    const draw = (): void => {
      frame = 0
      drawAll(state, canvases, tracks, theme)
    }
    const ask = (): void => {
      if (frame === 0) frame = requestAnimationFrame(draw)
    }
    const unwatch = [
      effect(() => {
        void [state.model, state.view.value, state.layout.value, state.area.value, state.dragged.value, state.selected.value]
        void [state.detail.value, state.hits.value, state.marks.value, state.colours.value, state.flows.value]
        ask()
      }),
      effect(() => {
        void shownTheme.value
        theme = readTheme(document.documentElement)
        ask()
      }),
      watchSize(canvases, ask),
    ]
    // The first picture does not wait for a frame.
    draw()
    return () => {
      cancelAnimationFrame(frame)
      for (const stop of unwatch) stop()
    }
  }, [state])
}

/** Calls back when the board is resized, scrolled, or moved to a screen of another density. */
function watchSize(canvases: Canvases, changed: () => void): () => void {
  const scroller = canvases.scroller.current
  const observer = new ResizeObserver(changed)
  if (scroller !== null) observer.observe(scroller)
  scroller?.addEventListener("scroll", changed, { passive: true })
  addEventListener("resize", changed)
  return () => {
    observer.disconnect()
    scroller?.removeEventListener("scroll", changed)
    removeEventListener("resize", changed)
  }
}

function drawAll(state: TimelineState, canvases: Canvases, tracks: TracksCanvas, theme: Scene["theme"]): void {
  const scroller = canvases.scroller.current
  const ratio = window.devicePixelRatio || 1
  if (scroller === null) return
  const common = {
    model: state.model,
    layout: state.layout.peek(),
    theme,
    view: state.view.peek(),
    ratio,
    area: state.dragged.peek() ?? state.area.peek(),
    marks: state.marks.peek(),
    selected: state.selected.peek(),
    detail: state.linked ? state.detail.peek() : null,
    hits: state.hits.peek(),
    colours: state.colours.peek(),
    flows: state.flows.peek(),
  }
  const on = (canvas: HTMLCanvasElement | null, height: number | null, scrollTop: number, paint: (context: CanvasRenderingContext2D, scene: Scene) => void): void => {
    const host = canvas?.parentElement
    if (!canvas || !host) return
    const box = canvas.getBoundingClientRect()
    const size = { width: Math.max(1, Math.round(box.width)), height: height ?? Math.max(1, Math.round(box.height)) }
    fitCanvas(canvas, size.width, size.height, ratio)
    const context = canvas.getContext("2d", { alpha: false })
    if (context !== null) paint(context, { ...common, ...size, scrollTop })
  }
  on(canvases.minimap.current, null, 0, drawMinimap)
  on(canvases.ruler.current, null, 0, drawRuler)
  on(canvases.tracks.current, scroller.clientHeight, scroller.scrollTop, (context, scene) => tracks.draw(context, scene))
  if (!performance.getEntriesByName("timeline:painted").length) performance.mark("timeline:painted")
}
