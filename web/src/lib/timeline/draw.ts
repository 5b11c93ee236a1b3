/**
 * Drawing: the model on canvases. The tracks are lines of pixels stretched to their lanes, with text on top.
 */

import type { SpanDetail } from "../../data/types"
import { KINDS } from "../../data/types"
import { formatNs, visible } from "../format"
import { curvePixels } from "./counters"
import { type Flow, flowsOf } from "./flows"
import { ticks, tickText, type View } from "./interaction"
import { COUNTER_HEIGHT, type Lane, laneOf, type Layout } from "./layout"
import { type Model, positionOf } from "./model"
import { type Labels, makeLabels, paintHits, paintRow } from "./painter"
import type { CanvasTheme } from "./theme"

export interface Scene {
  readonly model: Model
  readonly layout: Layout
  readonly theme: CanvasTheme
  readonly view: View
  readonly width: number // CSS px
  readonly height: number
  readonly scrollTop: number
  readonly ratio: number
  readonly area: View | null
  readonly marks: readonly number[]
  readonly selected: number | null // position
  readonly detail: SpanDetail | null
  readonly hits: Uint32Array | null
}

const FIRST_KIND_OF_HOST = KINDS.length
const LEAST_LABEL = 26
const PAD = 4

/** Keeps what is costly to make again: the lines of pixels, their canvas, and texts cut to a width. */
export class Painter {
  readonly #scratch = document.createElement("canvas")
  readonly #labels: Labels = makeLabels(4096)
  readonly #cuts = new Map<string, string>()
  #image: ImageData | null = null
  #pixels = new Uint32Array(0)

  drawTracks(context: CanvasRenderingContext2D, scene: Scene): void {
    const { theme, width, height, ratio } = scene
    context.setTransform(ratio, 0, 0, ratio, 0, 0)
    context.fillStyle = theme.background
    context.fillRect(0, 0, width, height)
    drawArea(context, scene)
    drawGrid(context, scene)
    context.translate(0, -scene.scrollTop)
    drawCounters(context, scene)
    drawSteps(context, scene)
    this.#drawRows(context, scene)
    this.#drawLabels(context, scene)
    drawBorders(context, scene)
    drawSelected(context, scene)
    context.translate(0, scene.scrollTop)
    drawFlows(context, scene)
    drawEdges(context, scene)
  }

  #drawRows(context: CanvasRenderingContext2D, scene: Scene): void {
    const { model, theme, view, ratio } = scene
    const lanes = visibleLanes(scene)
    const width = Math.round(scene.width * ratio)
    this.#reserve(width, lanes.length)
    this.#labels.count = 0
    if (this.#image === null || lanes.length === 0) return
    const pixels = this.#pixels
    pixels.fill(0, 0, width * lanes.length)
    const gap = Math.max(1, Math.round(ratio))
    lanes.forEach((lane, number) => {
      const line = { pixels, at: number * width, width, number, gap, leastLabel: LEAST_LABEL * ratio }
      paintRow(model.index, lane, view, line, scene.hits === null ? theme.palette.pixels : theme.palette.dimmed, this.#labels)
      if (scene.hits !== null) paintHits(model.index, scene.hits, lane, view, line, theme.palette.pixels)
    })
    const scratch = this.#scratch.getContext("2d")
    if (scratch === null) return
    scratch.putImageData(this.#image, 0, 0, 0, 0, width, lanes.length)
    context.imageSmoothingEnabled = false
    lanes.forEach((lane, number) => {
      context.drawImage(this.#scratch, 0, number, width, 1, 0, lane.y, scene.width, lane.height)
    })
  }

  #reserve(width: number, lines: number): void {
    if (width === 0) return
    if (this.#image !== null && this.#image.width === width && this.#image.height >= lines) return
    const height = Math.max(64, lines)
    this.#scratch.width = width
    this.#scratch.height = height
    this.#image = new ImageData(width, height)
    this.#pixels = new Uint32Array(this.#image.data.buffer)
  }

  #drawLabels(context: CanvasRenderingContext2D, scene: Scene): void {
    const { columns, timeline } = scene.model
    const { palette, hostInk, font, quiet } = scene.theme
    const lanes = visibleLanes(scene)
    const labels = this.#labels
    const found = scene.hits === null ? null : new Set(scene.hits.length < 50000 ? scene.hits : [])
    context.font = `11px ${font}`
    context.textBaseline = "middle"
    context.textAlign = "left"
    for (let at = 0; at < labels.count; at++) {
      const lane = lanes[labels.line[at]!]!
      if (lane.height < 12) continue
      const span = labels.span[at]!
      const from = labels.from[at]! / scene.ratio
      const to = labels.to[at]! / scene.ratio
      const kind = columns.kind[span]!
      const dimmed = found !== null && !found.has(span)
      context.fillStyle = dimmed ? quiet : kind >= FIRST_KIND_OF_HOST ? hostInk : palette.ink[kind]!
      const text = this.#cut(context, columns.name[span]!, timeline.names, to - from - 2 * PAD)
      if (text !== "") context.fillText(text, from + PAD, lane.y + lane.height / 2 + 0.5)
    }
  }

  /** A name cut to a width; the widths are in steps of 3 px, so that a zoom does not measure everything anew. */
  #cut(context: CanvasRenderingContext2D, name: number, names: readonly string[], width: number): string {
    const key = `${name}:${Math.floor(width / 3)}`
    const known = this.#cuts.get(key)
    if (known !== undefined) return known
    const whole = visible((names[name] ?? "").slice(0, 300))
    const text = cutText(whole, Math.floor(width / 3) * 3, (part) => context.measureText(part).width)
    if (this.#cuts.size > 30000) this.#cuts.clear()
    this.#cuts.set(key, text)
    return text
  }
}

/** The longest beginning of a text that fits, with an ellipsis; nothing when not even two letters do. */
export function cutText(text: string, width: number, measure: (text: string) => number): string {
  if (measure(text) <= width) return text
  let low = 0
  let high = text.length
  while (low < high) {
    const middle = (low + high + 1) >>> 1
    if (measure(`${text.slice(0, middle)}…`) <= width) low = middle
    else high = middle - 1
  }
  return low < 2 ? "" : `${text.slice(0, low).trimEnd()}…`
}

export function xOf(scene: Pick<Scene, "view" | "width">, ns: number): number {
  return ((ns - scene.view.from) / (scene.view.to - scene.view.from)) * scene.width
}

function visibleLanes(scene: Scene): readonly Lane[] {
  const top = scene.scrollTop
  const bottom = top + scene.height
  return scene.layout.tracks.flatMap((box) =>
    box.y + box.height < top || box.y > bottom ? [] : box.lanes.filter((lane) => lane.y + lane.height >= top && lane.y <= bottom),
  )
}

function verticalLine(context: CanvasRenderingContext2D, x: number, top: number, bottom: number): void {
  context.beginPath()
  context.moveTo(Math.round(x) + 0.5, top)
  context.lineTo(Math.round(x) + 0.5, bottom)
  context.stroke()
}

function drawGrid(context: CanvasRenderingContext2D, scene: Scene): void {
  context.strokeStyle = scene.theme.line
  context.lineWidth = 1
  for (const tick of ticks(scene.view, scene.width).at) verticalLine(context, xOf(scene, tick), 0, scene.height)
}

function drawArea(context: CanvasRenderingContext2D, scene: Scene): void {
  if (scene.area === null) return
  const from = xOf(scene, scene.area.from)
  const to = xOf(scene, scene.area.to)
  context.globalAlpha = 0.6
  context.fillStyle = scene.theme.accentWeak
  context.fillRect(from, 0, to - from, scene.height)
  context.globalAlpha = 1
}

function drawEdges(context: CanvasRenderingContext2D, scene: Scene): void {
  context.lineWidth = 1
  context.strokeStyle = scene.theme.accent
  for (const edge of scene.area === null ? [] : [scene.area.from, scene.area.to]) {
    verticalLine(context, xOf(scene, edge), 0, scene.height)
  }
  context.strokeStyle = scene.theme.note
  context.setLineDash([4, 3])
  for (const mark of scene.marks) verticalLine(context, xOf(scene, mark), 0, scene.height)
  context.setLineDash([])
}

/** Steps begin at different moments on the GPU and on the host, which runs ahead. */
function drawSteps(context: CanvasRenderingContext2D, scene: Scene): void {
  const { steps } = scene.model.timeline
  const apart = scene.width / Math.max(1, steps.length * ((scene.view.to - scene.view.from) / (scene.model.whole.to - scene.model.whole.from)))
  if (apart < 6) return
  context.strokeStyle = scene.theme.strong
  context.lineWidth = 1
  context.setLineDash([2, 2])
  for (const box of scene.layout.tracks) {
    const gpu = box.track.group === "gpu" || box.track.group === "modules"
    for (const step of steps) {
      const at = gpu ? step.gpu_from_ns : step.host_from_ns
      if (at === null || at < scene.view.from || at > scene.view.to) continue
      verticalLine(context, xOf(scene, at), box.y, box.y + box.height)
    }
  }
  context.setLineDash([])
}

function drawCounters(context: CanvasRenderingContext2D, scene: Scene): void {
  const { model, theme, width } = scene
  model.timeline.counters.forEach((counter, number) => {
    const curve = model.curves[number]
    if (curve === undefined) return
    const bottom = (number + 1) * COUNTER_HEIGHT - 5
    const most = counter.most > 0 ? counter.most : 1
    const tall = COUNTER_HEIGHT - 12
    const values = curvePixels(curve, scene.view, Math.max(1, Math.round(width)))
    drawCurve(context, values, (value) => bottom - (Math.min(value, most) / most) * tall, bottom, theme)
  })
}

function drawCurve(context: CanvasRenderingContext2D, values: Float64Array, yOf: (value: number) => number, bottom: number, theme: CanvasTheme): void {
  const top = new Path2D()
  let last = Math.round(yOf(values[0]!)) + 0.5
  top.moveTo(0, last)
  values.forEach((value, x) => {
    const y = Math.round(yOf(value)) + 0.5
    if (y === last) return
    top.lineTo(x, last)
    top.lineTo(x, y)
    last = y
  })
  top.lineTo(values.length, last)
  const filled = new Path2D(top)
  filled.lineTo(values.length, bottom + 0.5)
  filled.lineTo(0, bottom + 0.5)
  context.globalAlpha = 0.45
  context.fillStyle = theme.wait
  context.fill(filled)
  context.globalAlpha = 1
  context.strokeStyle = theme.quiet
  context.lineWidth = 1
  context.stroke(top)
  context.strokeStyle = theme.wait
  context.beginPath()
  context.moveTo(0, bottom + 0.5)
  context.lineTo(values.length, bottom + 0.5)
  context.stroke()
}

function drawBorders(context: CanvasRenderingContext2D, scene: Scene): void {
  context.strokeStyle = scene.theme.line
  context.lineWidth = 1
  context.beginPath()
  const under = (y: number): void => {
    context.moveTo(0, y + 0.5)
    context.lineTo(scene.width, y + 0.5)
  }
  for (let counter = 1; counter <= scene.layout.counters; counter++) under(counter * COUNTER_HEIGHT - 1)
  for (const box of scene.layout.tracks) under(box.y + box.height)
  context.stroke()
}

function drawSelected(context: CanvasRenderingContext2D, scene: Scene): void {
  if (scene.selected === null) return
  const found = laneOf(scene.layout, scene.selected)
  if (found === null) return
  const { start, dur } = scene.model.columns
  const from = xOf(scene, start[scene.selected]!)
  const to = xOf(scene, start[scene.selected]! + dur[scene.selected]!)
  if (to < -4 || from > scene.width + 4) return
  context.strokeStyle = scene.theme.ink
  context.lineWidth = 2
  context.strokeRect(Math.round(from), found.lane.y - 1, Math.max(3, Math.round(to - from)), found.lane.height + 2)
}

function drawFlows(context: CanvasRenderingContext2D, scene: Scene): void {
  if (scene.detail === null || scene.selected === null) return
  const { columns, timeline } = scene.model
  const flows = flowsOf(scene.detail, {
    layout: scene.layout,
    view: scene.view,
    width: scene.width,
    height: scene.height,
    steps: timeline.steps,
    scrollTop: scene.scrollTop,
    duration: formatNs,
    positionOf: (id) => positionOf(columns, id),
  })
  for (const flow of flows) drawFlow(context, flow, scene)
}

function drawFlow(context: CanvasRenderingContext2D, flow: Flow, scene: Scene): void {
  const { theme } = scene
  context.strokeStyle = theme.accent
  context.fillStyle = theme.accent
  context.lineWidth = 1.5
  if (flow.kind === "line") {
    const { from, to } = flow
    const bend = Math.max(24, Math.min(80, Math.abs(to.x - from.x) / 2))
    context.beginPath()
    context.moveTo(from.x, from.y)
    context.bezierCurveTo(from.x - bend, from.y - (from.y - to.y) * 0.3, to.x - bend, to.y + (from.y - to.y) * 0.3, to.x, to.y)
    context.stroke()
    drawHead(context, to.x, to.y)
    return
  }
  drawStub(context, flow, scene)
}

function drawHead(context: CanvasRenderingContext2D, x: number, y: number): void {
  context.beginPath()
  context.moveTo(x, y)
  context.lineTo(x - 7, y + 4)
  context.moveTo(x, y)
  context.lineTo(x - 1, y + 8)
  context.stroke()
}

/** Words at the edge of the screen that the other end lies behind, with an arrow towards it. */
function drawStub(context: CanvasRenderingContext2D, flow: Extract<Flow, { kind: "stub" }>, scene: Scene): void {
  const { theme } = scene
  context.font = `11px ${theme.font}`
  context.textBaseline = "middle"
  const width = context.measureText(flow.says).width + 28
  const left = flow.side === "left" ? 0 : Math.max(0, scene.width - width)
  const y = flow.at.y + 9
  context.globalAlpha = 0.9
  context.fillStyle = theme.background
  context.fillRect(left, y - 8, width, 16)
  context.globalAlpha = 1
  context.fillStyle = theme.accent
  context.fillText(flow.says, flow.side === "left" ? left + 20 : left + 6, y + 0.5)
  const tip = flow.side === "left" ? left + 5 : left + width - 5
  const back = flow.side === "left" ? 1 : -1
  context.beginPath()
  context.moveTo(tip + 11 * back, y)
  context.lineTo(tip, y)
  context.moveTo(tip + 4 * back, y - 4)
  context.lineTo(tip, y)
  context.lineTo(tip + 4 * back, y + 4)
  context.stroke()
}

interface Flag {
  readonly left: number
  readonly width: number
  readonly text: string
  readonly fill: string
  readonly ink: string
}

/** The ruler: ticks, the length of the area, and marks. */
export function drawRuler(context: CanvasRenderingContext2D, scene: Scene): void {
  const { theme, view, width, height, ratio } = scene
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.fillStyle = theme.background
  context.fillRect(0, 0, width, height)
  context.textBaseline = "middle"
  context.textAlign = "left"
  const { step, at } = ticks(view, width)
  const flags = rulerFlags(context, scene, step)
  context.font = `11px ${theme.font}`
  context.strokeStyle = theme.line
  context.lineWidth = 1
  context.fillStyle = theme.quiet
  for (const tick of at) {
    const x = xOf(scene, tick)
    verticalLine(context, x, 0, height)
    const text = tickText(tick, step, scene.model.whole)
    const to = x + PAD + context.measureText(text).width
    if (to < width && flags.every((flag) => to < flag.left || x > flag.left + flag.width)) context.fillText(text, x + PAD, height / 2)
  }
  for (const flag of flags) drawFlag(context, flag, scene)
  drawLength(context, scene)
}

/** The length of the area in its middle, and the times of marks. */
function rulerFlags(context: CanvasRenderingContext2D, scene: Scene, step: number): readonly Flag[] {
  const { theme, area, width } = scene
  context.font = `600 11px ${theme.font}`
  const flag = (ns: number, text: string, fill: string, ink: string): Flag | null => {
    const x = xOf(scene, ns)
    const wide = context.measureText(text).width + 12
    return x < 0 || x > width ? null : { left: Math.min(Math.max(0, x - wide / 2), width - wide), width: wide, text, fill, ink }
  }
  const flags = scene.marks.map((mark) => flag(mark, tickText(mark, step / 100, scene.model.whole), theme.note, theme.background))
  if (area !== null) {
    const middle = (Math.max(area.from, scene.view.from) + Math.min(area.to, scene.view.to)) / 2
    flags.push(flag(middle, formatNs(area.to - area.from), theme.accent, theme.onAccent))
  }
  return flags.filter((each) => each !== null)
}

function drawLength(context: CanvasRenderingContext2D, scene: Scene): void {
  if (scene.area === null) return
  const from = Math.max(0, xOf(scene, scene.area.from))
  const to = Math.min(scene.width, xOf(scene, scene.area.to))
  if (to < 0 || from > scene.width) return
  context.fillStyle = scene.theme.accent
  context.fillRect(from, scene.height - 2, Math.max(1, to - from), 2)
}

function drawFlag(context: CanvasRenderingContext2D, flag: Flag, scene: Scene): void {
  context.font = `600 11px ${scene.theme.font}`
  context.fillStyle = flag.fill
  context.fillRect(flag.left, 2, flag.width, scene.height - 5)
  context.fillStyle = flag.ink
  context.fillText(flag.text, flag.left + 6, scene.height / 2 - 0.5)
}

/** The minimap: what the GPU did during the whole capture, strong where the view is. */
export function drawMinimap(context: CanvasRenderingContext2D, scene: Scene): void {
  const { theme, width, height, ratio, model } = scene
  const { minimap } = model.timeline
  context.setTransform(ratio, 0, 0, ratio, 0, 0)
  context.fillStyle = theme.sunk
  context.fillRect(0, 0, width, height)
  const { from, to } = viewBox(scene)
  const each = width / Math.max(1, minimap.columns.length)
  const tall = height - 12
  minimap.columns.forEach((shares, column) => {
    const x = column * each
    context.globalAlpha = x + each >= from && x <= to ? 1 : 0.4
    let y = height - 6
    shares.forEach((share, kind) => {
      if (share <= 0) return
      const colour = minimap.kinds[kind]
      context.fillStyle = minimapColour(theme, colour === undefined ? -1 : KINDS.indexOf(colour))
      context.fillRect(x, y - share * tall, Math.ceil(each * ratio) / ratio, share * tall)
      y -= share * tall
    })
  })
  context.globalAlpha = 1
  context.strokeStyle = theme.accent
  context.lineWidth = 2
  context.strokeRect(from + 1, 3, Math.max(4, to - from - 2), height - 6)
}

/** Where the view lies on the minimap, never too thin to grab. */
export function viewBox(scene: Pick<Scene, "model" | "view" | "width">): { readonly from: number; readonly to: number } {
  const { whole } = scene.model
  const scale = scene.width / (whole.to - whole.from)
  const from = (scene.view.from - whole.from) * scale
  const to = (scene.view.to - whole.from) * scale
  const least = 8
  if (to - from >= least) return { from, to }
  const middle = Math.min(Math.max((from + to) / 2, least / 2), scene.width - least / 2)
  return { from: middle - least / 2, to: middle + least / 2 }
}

function minimapColour(theme: CanvasTheme, kind: number): string {
  if (kind < 0) return theme.wait
  const pixel = theme.palette.pixels[(kind + 1) * 65 - 1]!
  return `rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`
}
