/** The flows of the selected span on the canvas of the tracks: lines, and stubs where an end is off screen. */

import { formatNs } from "../../base/format"
import { type Flow, flowsOf } from "./flows"
import { positionOf } from "./model"
import type { Scene } from "./scene"

export function drawFlows(context: CanvasRenderingContext2D, scene: Scene): void {
  if (!scene.flows || scene.detail === null || scene.selected === null) return
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
