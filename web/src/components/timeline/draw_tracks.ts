/**
 * The tracks on their canvas: lines of pixels stretched to their lanes, with text on top, and counters, steps and the
 * selection around them.
 */

import { KINDS } from "../../data/types"
import { visible } from "../../base/format"
import { curvePixels } from "./counters"
import { drawFlows } from "./draw_flows"
import { ticks } from "./interaction"
import { COUNTER_HEIGHT, type Lane, laneOf } from "./layout"
import { type Labels, makeLabels, paintHits, paintRow } from "./painter"
import { PAD, type Scene, verticalLine, xOf } from "./scene"
import type { CanvasTheme } from "./theme"

const FIRST_KIND_OF_HOST = KINDS.length
const LEAST_LABEL = 26

/** Keeps what is costly to make again: the lines of pixels, their canvas, and texts cut to a width. */
export class TracksCanvas {
  readonly #scratch = document.createElement("canvas")
  readonly #labels: Labels = makeLabels(4096)
  readonly #cuts = new Map<string, string>()
  #image: ImageData | null = null
  #pixels = new Uint32Array(0)

  draw(context: CanvasRenderingContext2D, scene: Scene): void {
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
    const index = { ...model.index, columns: { ...model.columns, kind: scene.colours } }
    lanes.forEach((lane, number) => {
      const line = { pixels, at: number * width, width, number, gap, leastLabel: LEAST_LABEL * ratio }
      paintRow(index, lane, view, line, scene.hits === null ? theme.palette.pixels : theme.palette.dimmed, this.#labels)
      if (scene.hits !== null) paintHits(index, scene.hits, lane, view, line, theme.palette.pixels)
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
    const hits = scene.hits === null ? null : new Set(scene.hits.length < 50000 ? scene.hits : [])
    context.font = `11px ${font}`
    context.textBaseline = "middle"
    context.textAlign = "left"
    for (let at = 0; at < labels.count; at++) {
      const lane = lanes[labels.line[at]!]!
      if (lane.height < 12) continue
      const span = labels.span[at]!
      const from = labels.from[at]! / scene.ratio
      const to = labels.to[at]! / scene.ratio
      const kind = scene.colours[span]!
      const dimmed = hits !== null && !hits.has(span)
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

function visibleLanes(scene: Scene): readonly Lane[] {
  const top = scene.scrollTop
  const bottom = top + scene.height
  return scene.layout.tracks.flatMap((box) =>
    box.y + box.height < top || box.y > bottom ? [] : box.lanes.filter((lane) => lane.y + lane.height >= top && lane.y <= bottom),
  )
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
    const gpu = ["gpu", "idle", "modules"].includes(box.track.group)
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
  const lane = laneOf(scene.layout, scene.selected)?.lane
  if (lane === undefined) return
  const { start, dur } = scene.model.columns
  const from = xOf(scene, start[scene.selected]!)
  const to = xOf(scene, start[scene.selected]! + dur[scene.selected]!)
  if (to < -4 || from > scene.width + 4) return
  context.strokeStyle = scene.theme.ink
  context.lineWidth = 2
  context.strokeRect(Math.round(from), lane.y - 1, Math.max(3, Math.round(to - from)), lane.height + 2)
}
