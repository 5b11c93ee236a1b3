/**
 * A stacked curve over time on a canvas, with a line above it where there is one. A cursor moves over its points with the
 * pointer or the keys; a drag selects an area. Where the page can zoom, the keys of the timeline do: W, S, A, D, F.
 */
import type { JSX } from "preact"
import { useEffect, useMemo, useRef, useState } from "preact/hooks"
import { shownTheme } from "../../data/state"
import type { Interval } from "../../base/router"
import { type Scale, linear, linearTicks } from "../../base/scale"
import { contextOf, useWidth } from "../canvas"
import "./curve.css"
import { type Series, byteTicks, pointAt, stacked } from "./stack"

const HEIGHT = 260
const LEFT = 64
const FOOT = 22
const HEAD = 8
const SMALLEST_DRAG_PX = 4

export interface CurveProps {
  readonly label: string
  readonly moments: readonly number[]
  readonly until: number // where the last value ends
  readonly series: readonly Series[]
  readonly line?: Series // not stacked
  readonly shown?: Interval // all of it when absent
  readonly marked: number // a point with a mark of its own: the peak; -1 where it is not among them
  readonly cursor: number // a point
  readonly words: string // the cursor as text
  readonly selection: Interval | null
  readonly formatX: (ns: number) => string
  readonly formatY: (value: number) => string
  readonly onCursor: (point: number) => void
  readonly onSelect: (area: Interval | null, growing: boolean) => void
  readonly onOpen: () => void // Enter
  readonly opens?: string // what Enter does
  readonly onZoom?: (zoom: Zoom) => void
}

/** A step of zooming or moving: `factor` of the width shown, about `at`, moved by `by` of it; null shows all. */
export type Zoom = { readonly factor: number; readonly by: number; readonly at: number | null } | null

const ZOOMS: Readonly<Record<string, Zoom>> = {
  w: { factor: 0.5, by: 0, at: null }, s: { factor: 2, by: 0, at: null }, a: { factor: 1, by: -0.25, at: null }, d: { factor: 1, by: 0.25, at: null }, f: null,
}

export function Curve(props: CurveProps): JSX.Element {
  const { moments, series } = props
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const [drag, setDrag] = useState<Interval | null>(null)
  const tops = useMemo(() => stacked(series, moments.length), [series, moments])
  const most = useMemo(() => highest(tops, props.line), [tops, props.line])
  const x = linear([props.shown?.from ?? moments[0] ?? 0, props.shown?.to ?? props.until], [LEFT, Math.max(LEFT + 1, width)])
  const y = linear([0, most], [HEIGHT - FOOT, HEAD])
  const theme = shownTheme.value
  useEffect(() => paint(canvas.current, width, { props, tops, x, y, most, area: drag ?? props.selection }), [props, width, tops, drag, theme])
  const timeOf = (event: PointerEvent): number => x.invert(event.clientX - (canvas.current?.getBoundingClientRect().left ?? 0))
  const onDown = (event: PointerEvent): void => {
    if (event.button !== 0) return
    canvas.current?.setPointerCapture(event.pointerId)
    setDrag({ from: timeOf(event), to: timeOf(event) })
  }
  const onMove = (event: PointerEvent): void => {
    props.onCursor(pointAt(moments, timeOf(event)))
    if (drag) setDrag({ from: drag.from, to: timeOf(event) })
  }
  const onUp = (): void => {
    if (!drag) return
    const area = { from: Math.min(drag.from, drag.to), to: Math.max(drag.from, drag.to) }
    props.onSelect(x(area.to) - x(area.from) >= SMALLEST_DRAG_PX ? area : null, false)
    setDrag(null)
  }
  return (
    <div class="curve" tabIndex={0} role="slider" aria-label={`${props.label}. Left and right move, with Shift they select, P goes to the peak, ${props.onZoom ? "W and S zoom, A and D move, F shows all, " : ""}Enter ${props.opens ?? "shows the moment on the timeline"}.`}
      aria-valuemin={0} aria-valuemax={moments.length - 1} aria-valuenow={props.cursor} aria-valuetext={props.words} onKeyDown={(event) => onCurveKey(event, props)}>
      <canvas ref={canvas} aria-hidden="true" style={{ height: `${HEIGHT}px` }} onPointerDown={onDown} onPointerMove={onMove} onPointerUp={onUp}
        onWheel={(event) => props.onZoom && event.ctrlKey && (event.preventDefault(), props.onZoom({ factor: event.deltaY < 0 ? 0.8 : 1.25, by: 0, at: x.invert(event.offsetX) }))} />
    </div>
  )
}

function highest(tops: readonly Float64Array[], line: Series | undefined): number {
  const above = (line?.values ?? []).reduce((most, value) => Math.max(most, value), 1)
  return (tops.at(-1) ?? new Float64Array(0)).reduce((most, top) => Math.max(most, top), above) * 1.04
}

function onCurveKey(event: KeyboardEvent, props: CurveProps): void {
  const last = props.moments.length - 1
  const page = Math.max(1, Math.round(last / 20))
  const moves: Readonly<Record<string, number>> = {
    ArrowLeft: props.cursor - 1, ArrowRight: props.cursor + 1, PageUp: props.cursor - page, PageDown: props.cursor + page,
    Home: 0, End: last, ...(props.marked < 0 ? {} : { p: props.marked, P: props.marked }),
  }
  const plain = !(event.ctrlKey || event.metaKey || event.altKey)
  const to = plain ? moves[event.key] : undefined
  const zoom = plain && props.onZoom ? ZOOMS[event.key.toLowerCase()] : undefined
  if (zoom !== undefined) props.onZoom?.(zoom === null ? null : { ...zoom, at: props.moments[props.cursor] ?? null })
  else if (to !== undefined) moveCursor(props, Math.max(0, Math.min(last, to)), event.shiftKey)
  else if (event.key === "Enter") props.onOpen()
  else return
  event.preventDefault()
}

/** With Shift, the area between the cursor and where it stood at first grows with it. */
function moveCursor(props: CurveProps, to: number, growing: boolean): void {
  const here = props.moments[props.cursor] ?? 0
  const there = props.moments[to] ?? 0
  const { selection } = props
  if (growing && here !== there) {
    const anchor = selection?.to === here ? selection.from : selection?.from === here ? selection.to : here
    props.onSelect(anchor === there ? null : { from: Math.min(anchor, there), to: Math.max(anchor, there) }, true)
  }
  props.onCursor(to)
}

interface Scene {
  readonly props: CurveProps
  readonly tops: readonly Float64Array[]
  readonly x: Scale
  readonly y: Scale
  readonly most: number
  readonly area: Interval | null
}

function paint(canvas: HTMLCanvasElement | null, width: number, scene: Scene): void {
  if (!canvas || width <= LEFT) return
  const context = contextOf(canvas, width, HEIGHT)
  if (!context) return
  const style = getComputedStyle(canvas)
  const colour = (name: string): string => style.getPropertyValue(name).trim()
  context.save()
  context.beginPath()
  context.rect(LEFT, 0, width - LEFT, HEIGHT)
  context.clip()
  drawAreas(context, scene, colour)
  if (scene.props.line) drawLine(context, scene, scene.props.line, colour)
  context.restore()
  drawAxes(context, width, scene, colour)
  drawMarks(context, width, scene, colour)
}

type Colour = (name: string) => string

function drawAreas(context: CanvasRenderingContext2D, scene: Scene, colour: Colour): void {
  const { props, tops, x, y } = scene
  const foot = y(0)
  // From the top down: each area covers what is above its own edge.
  for (let at = tops.length - 1; at >= 0; at--) {
    context.fillStyle = colour(props.series[at]?.colour ?? "--c-wait")
    context.beginPath()
    context.moveTo(x(props.moments[0] ?? 0), foot)
    traceSteps(context, props, tops[at] ?? new Float64Array(0), x, y)
    context.lineTo(x(props.until), foot)
    context.fill()
  }
}

function drawLine(context: CanvasRenderingContext2D, scene: Scene, line: Series, colour: Colour): void {
  const { props, x, y } = scene
  context.strokeStyle = colour(line.colour)
  context.lineWidth = 1.5
  context.beginPath()
  traceSteps(context, props, line.values, x, y)
  context.stroke()
}

function traceSteps(context: CanvasRenderingContext2D, props: CurveProps, top: Float64Array | readonly number[], x: Scale, y: Scale): void {
  for (let point = 0; point < top.length; point++) {
    const level = y(top[point] ?? 0)
    context.lineTo(x(props.moments[point] ?? 0), level)
    context.lineTo(x(props.moments[point + 1] ?? props.until), level)
  }
}

function drawAxes(context: CanvasRenderingContext2D, width: number, scene: Scene, colour: Colour): void {
  const { props, x, y, most } = scene
  context.font = `11px ${colour("--font")}`
  context.textBaseline = "middle"
  context.lineWidth = 1
  for (const tick of byteTicks(most, (from, to) => linearTicks(from, to, 4))) {
    const level = Math.round(y(tick)) + 0.5
    context.strokeStyle = colour(tick === 0 ? "--line2" : "--line")
    context.globalAlpha = tick === 0 ? 1 : 0.6
    context.beginPath()
    context.moveTo(LEFT, level)
    context.lineTo(width, level)
    context.stroke()
    context.globalAlpha = 1
    context.fillStyle = colour("--ink2")
    context.textAlign = "right"
    context.fillText(props.formatY(tick), LEFT - 8, level)
  }
  context.textAlign = "center"
  for (const tick of linearTicks(props.shown?.from ?? props.moments[0] ?? 0, props.shown?.to ?? props.until, Math.max(2, Math.floor(width / 130)))) {
    if (x(tick) < LEFT + 12 || x(tick) > width - 20) continue
    context.fillText(props.formatX(tick), x(tick), HEIGHT - FOOT / 2)
  }
}

function drawMarks(context: CanvasRenderingContext2D, width: number, scene: Scene, colour: Colour): void {
  const { props, x, y, area, tops } = scene
  if (area) {
    const from = Math.max(LEFT, x(Math.min(area.from, area.to)))
    const to = Math.min(width, x(Math.max(area.from, area.to)))
    context.fillStyle = colour("--accent")
    context.globalAlpha = 0.16
    context.fillRect(from, HEAD, to - from, HEIGHT - FOOT - HEAD)
    context.globalAlpha = 1
    context.fillRect(from, HEAD, 1, HEIGHT - FOOT - HEAD)
    context.fillRect(to - 1, HEAD, 1, HEIGHT - FOOT - HEAD)
  }
  const line = (point: number, name: string): void => {
    context.fillStyle = colour(name)
    context.fillRect(Math.round(x(props.moments[point] ?? 0)), HEAD, 1, HEIGHT - FOOT - HEAD)
  }
  const inSight = (point: number): boolean => x(props.moments[point] ?? -Infinity) >= LEFT && x(props.moments[point] ?? Infinity) <= width
  if (inSight(props.marked)) drawPeak(context, width, scene, () => line(props.marked, "--ink2"))
  if (props.cursor === props.marked || !inSight(props.cursor)) return
  line(props.cursor, "--accent")
  const level = y(tops.at(-1)?.[props.cursor] ?? 0)
  context.fillStyle = colour("--accent")
  context.beginPath()
  context.arc(x(props.moments[props.cursor] ?? 0) + 0.5, level, 3, 0, 2 * Math.PI)
  context.fill()
}

function drawPeak(context: CanvasRenderingContext2D, width: number, scene: Scene, line: () => void): void {
  const { props, x } = scene
  line()
  context.textAlign = x(props.moments[props.marked] ?? 0) > width - 80 ? "right" : "left"
  context.fillText("peak", x(props.moments[props.marked] ?? 0) + (context.textAlign === "left" ? 4 : -4), HEAD + 6)
}
