/** The strips above the tracks: the ruler, and the minimap of the whole capture. */

import { KINDS } from "../../data/types"
import { formatNs } from "../../base/format"
import { ticks, tickText } from "./interaction"
import { PAD, type Scene, verticalLine, xOf } from "./scene"
import type { CanvasTheme } from "./theme"

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
  return flags.filter((candidate) => candidate !== null)
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
  const columnWidth = width / Math.max(1, minimap.columns.length)
  const tall = height - 12
  minimap.columns.forEach((shares, column) => {
    const x = column * columnWidth
    context.globalAlpha = x + columnWidth >= from && x <= to ? 1 : 0.4
    let y = height - 6
    shares.forEach((share, kind) => {
      if (share <= 0) return
      const colour = minimap.kinds[kind]
      context.fillStyle = minimapColour(theme, colour === undefined ? -1 : KINDS.indexOf(colour))
      context.fillRect(x, y - share * tall, Math.ceil(columnWidth * ratio) / ratio, share * tall)
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
