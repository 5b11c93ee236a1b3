/** Paints a flame graph: frames as boxes with their names, their own time as a line at the foot. */
import type { Tree } from "../../data/types"
import { type Box, frameSort } from "./tree"

export const ROW_PX = 20
const CHARACTER_PX = 6.1
const THINNEST_PX = 0.6

export interface FlameScene {
  readonly tree: Tree
  readonly boxes: readonly Box[]
  readonly from: number // what is in view, as a share of the whole
  readonly to: number
  readonly depths: number
  readonly inverted: boolean // roots at the foot
  readonly selected: number | null // a node
  readonly matches: ReadonlySet<string> | null // names that the search found
}

export interface FlameColours {
  readonly ground: string
  readonly ink: string
  readonly quiet: string
  readonly accent: string
  readonly sorts: Readonly<Record<"module" | "function" | "work", string>>
  readonly font: string
}

export function readColours(element: Element): FlameColours {
  const style = getComputedStyle(element)
  const value = (name: string): string => style.getPropertyValue(name).trim()
  return {
    ground: value("--bg"), ink: value("--ink"), quiet: value("--ink3"), accent: value("--accent"),
    sorts: { module: value("--h-note"), function: value("--h-op"), work: value("--h-rt") },
    font: `11px ${value("--font")}`,
  }
}

export function topOf(scene: Pick<FlameScene, "depths" | "inverted">, depth: number): number {
  return (scene.inverted ? scene.depths - 1 - depth : depth) * ROW_PX
}

export function drawFlame(context: CanvasRenderingContext2D, width: number, scene: FlameScene, colours: FlameColours): void {
  const scale = width / (scene.to - scene.from)
  context.clearRect(0, 0, width, scene.depths * ROW_PX)
  context.font = colours.font
  context.textBaseline = "middle"
  let selected: Box | null = null
  for (const box of scene.boxes) {
    if (box.to <= scene.from || box.from >= scene.to) continue
    const left = Math.max(0, (box.from - scene.from) * scale)
    const right = Math.min(width, (box.to - scene.from) * scale)
    if (right - left < THINNEST_PX) continue
    if (box.node === scene.selected) selected = box
    drawFrame(context, { left, width: Math.max(1, right - left - 1), top: topOf(scene, box.depth) }, box, scene, colours)
  }
  if (selected) outline(context, width, selected, scene, colours)
}

interface Place {
  readonly left: number
  readonly width: number
  readonly top: number
}

function drawFrame(context: CanvasRenderingContext2D, place: Place, box: Box, scene: FlameScene, colours: FlameColours): void {
  const { tree } = scene
  const name = tree.name[box.node] ?? ""
  const total = tree.total[box.node] ?? 0
  const matching = scene.matches === null || scene.matches.has(name)
  context.globalAlpha = matching ? 1 : 0.3
  context.fillStyle = colours.sorts[frameSort(tree, name)]
  context.fillRect(place.left, place.top, place.width, ROW_PX - 1)
  const own = total > 0 ? Math.max(0, Math.min(1, (tree.self[box.node] ?? 0) / total)) : 0
  if (own > 0 && place.width > 2) {
    context.fillStyle = colours.accent
    context.fillRect(place.left, place.top + ROW_PX - 3, place.width * own, 2)
  }
  const room = Math.floor((place.width - 8) / CHARACTER_PX)
  if (room >= 3) {
    context.fillStyle = colours.ink
    context.fillText(fitted(name, room), place.left + 4, place.top + ROW_PX / 2 - 1)
  }
  context.globalAlpha = 1
}

/** The name without what every frame of its sort begins with, cut to the room. */
export function fitted(name: string, characters: number): string {
  const text = name.replace(/^nn\.Module: /, "")
  return text.length <= characters ? text : `${text.slice(0, characters - 1)}…`
}

function outline(context: CanvasRenderingContext2D, width: number, box: Box, scene: FlameScene, colours: FlameColours): void {
  const scale = width / (scene.to - scene.from)
  const left = Math.max(0, (box.from - scene.from) * scale)
  const right = Math.min(width, (box.to - scene.from) * scale)
  context.strokeStyle = colours.accent
  context.lineWidth = 2
  context.strokeRect(left + 1, topOf(scene, box.depth) + 1, Math.max(2, right - left - 3), ROW_PX - 3)
}

/** The frame at a point, or null. */
export function frameAt(scene: FlameScene, width: number, x: number, y: number): Box | null {
  const row = Math.floor(y / ROW_PX)
  const depth = scene.inverted ? scene.depths - 1 - row : row
  const at = scene.from + (x / width) * (scene.to - scene.from)
  return scene.boxes.find((box) => box.depth === depth && at >= box.from && at < box.to) ?? null
}

/** The frame that a key leads to from the selected one. */
export function neighbourFrame(boxes: readonly Box[], tree: Tree, from: Box | null, key: "up" | "down" | "left" | "right"): Box | null {
  if (from === null) return boxes[0] ?? null
  if (key === "up") return boxes.find((box) => box.node === tree.parent[from.node]) ?? from
  if (key === "down") {
    const below = boxes.filter((box) => tree.parent[box.node] === from.node)
    return below.reduce<Box | null>((best, box) => (best === null || box.to - box.from > best.to - best.from ? box : best), null) ?? from
  }
  const row = boxes.filter((box) => box.depth === from.depth).sort((a, b) => a.from - b.from)
  return row[row.findIndex((box) => box.node === from.node) + (key === "right" ? 1 : -1)] ?? from
}
