/**
 * A flame graph on a canvas. Arrow keys move from frame to frame, Enter zooms; the frame that is selected stands below
 * as text, which screen readers hear, and the tree as a table is its equal.
 */
import type { ComponentChildren, JSX } from "preact"
import { useEffect, useMemo, useRef, useState } from "preact/hooks"
import { containsAll, wordsOf } from "../../base/search_words"
import { search, shownTheme } from "../../data/state"
import type { Tree } from "../../data/types"
import { counted, fixed, formatCount, formatNs, shorten } from "../../base/format"
import { contextOf, useWidth } from "../canvas"
import { type FlameScene, ROW_PX, drawFlame, frameAt, neighbourFrame, readColours } from "./draw"
import "./flame.css"
import { type Box, type Order, layOut, wholeOf } from "./tree"

export interface FlameProps {
  readonly tree: Tree
  readonly title: string
  readonly order: Order
  readonly inverted?: boolean
  readonly zoom: number | null // the node that fills the width
  readonly onZoom: (node: number | null) => void
  readonly actions?: (node: number) => ComponentChildren
}

export function Flame(props: FlameProps): JSX.Element {
  const { tree, order, inverted = false, zoom } = props
  const canvas = useRef<HTMLCanvasElement>(null)
  const width = useWidth(canvas)
  const [selected, setSelected] = useState<number | null>(null)
  const [hovered, setHovered] = useState<number | null>(null)
  const boxes = useMemo(() => layOut(tree, order), [tree, order])
  const scene = useMemo(() => sceneOf(props, boxes, selected, search.value), [boxes, zoom, selected, search.value, inverted])
  useEffect(() => setSelected(null), [tree])
  useEffect(() => {
    const box = canvas.current?.parentElement
    if (box && inverted) box.scrollTop = box.scrollHeight
  }, [tree, inverted])
  const theme = shownTheme.value
  useEffect(() => paint(canvas.current, width, scene), [width, scene, theme])
  const pick = (event: MouseEvent): Box | null => {
    const box = canvas.current?.getBoundingClientRect()
    return box ? frameAt(scene, box.width, event.clientX - box.left, event.clientY - box.top) : null
  }
  const toggle = (node: number): void => props.onZoom(zoom === node ? null : node)
  return (
    <div class="flame">
      <div class="flame-canvas" tabIndex={0} role="application" aria-roledescription="flame graph" aria-label={`${props.title}. Arrow keys move, Enter zooms, Backspace zooms out.`}
        onKeyDown={(event) => onFlameKey(event, scene, inverted, { select: setSelected, toggle, out: () => props.onZoom(null) })}>
        <canvas ref={canvas} aria-hidden="true" style={{ height: `${scene.depths * ROW_PX}px` }}
          onMouseMove={(event) => setHovered(pick(event)?.node ?? null)} onMouseLeave={() => setHovered(null)}
          onClick={(event) => setSelected(pick(event)?.node ?? null)} onDblClick={(event) => {
            const box = pick(event)
            if (box) toggle(box.node)
          }} />
      </div>
      <FrameWords tree={tree} node={hovered ?? selected ?? zoom} selected={selected} zoom={zoom} onZoom={props.onZoom} actions={props.actions} />
    </div>
  )
}

function sceneOf(props: FlameProps, boxes: readonly Box[], selected: number | null, query: string): FlameScene {
  const at = props.zoom === null ? undefined : boxes.find((box) => box.node === props.zoom)
  const depths = boxes.reduce((most, box) => Math.max(most, box.depth + 1), 1)
  const words = wordsOf(query)
  const matches = words.length === 0 ? null : new Set(props.tree.name.filter((name) => containsAll(name, words)))
  return { tree: props.tree, boxes, from: at?.from ?? 0, to: at?.to ?? 1, depths, inverted: props.inverted ?? false, selected, matches }
}

function paint(canvas: HTMLCanvasElement | null, width: number, scene: FlameScene): void {
  if (!canvas || width === 0) return
  const context = contextOf(canvas, width, scene.depths * ROW_PX)
  if (context) drawFlame(context, width, scene, readColours(canvas))
}

interface FlameMoves {
  readonly select: (node: number | null) => void
  readonly toggle: (node: number) => void
  readonly out: () => void
}

function onFlameKey(event: KeyboardEvent, scene: FlameScene, inverted: boolean, moves: FlameMoves): void {
  const from = scene.boxes.find((box) => box.node === scene.selected) ?? null
  const keys: Readonly<Record<string, "up" | "down" | "left" | "right">> = {
    ArrowUp: inverted ? "down" : "up", ArrowDown: inverted ? "up" : "down", ArrowLeft: "left", ArrowRight: "right",
  }
  const key = keys[event.key]
  if (key) {
    const to = neighbourFrame(scene.boxes, scene.tree, from, key)
    moves.select(to?.node ?? null)
    if (to) reveal(event.currentTarget, scene, to)
  } else if (event.key === "Enter" && from) moves.toggle(from.node)
  else if (event.key === "Backspace" || event.key === "Home") moves.out()
  else return
  event.preventDefault()
}

function reveal(element: EventTarget | null, scene: FlameScene, box: Box): void {
  if (!(element instanceof HTMLElement)) return
  const top = (scene.inverted ? scene.depths - 1 - box.depth : box.depth) * ROW_PX
  if (top < element.scrollTop) element.scrollTop = top
  else if (top + ROW_PX > element.scrollTop + element.clientHeight) element.scrollTop = top + ROW_PX - element.clientHeight
}

interface FrameWordsProps {
  readonly tree: Tree
  readonly node: number | null
  readonly selected: number | null
  readonly zoom: number | null
  readonly onZoom: (node: number | null) => void
  readonly actions: FlameProps["actions"]
}

function FrameWords(props: FrameWordsProps): JSX.Element {
  const { tree, node } = props
  const acting = props.selected ?? props.zoom
  return (
    <div class="flame-words">
      <p aria-live="polite">{node === null ? <span class="quiet">{wordsOfWhole(tree)}</span> : <FrameText tree={tree} node={node} />}</p>
      <p class="actions">
        {acting !== null && props.actions?.(acting)}
        {props.zoom !== null && (
          <button type="button" class="link" onClick={() => props.onZoom(null)}>
            Zoom out
          </button>
        )}
      </p>
    </div>
  )
}

function wordsOfWhole(tree: Tree): string {
  return `${formatNs(wholeOf(tree))} in ${counted(tree.name.length, "frame")}. Point at a frame or move with the arrow keys; double-click or press Enter to zoom.`
}

function FrameText(props: { readonly tree: Tree; readonly node: number }): JSX.Element {
  const { tree, node } = props
  const whole = wholeOf(tree)
  const total = tree.total[node] ?? 0
  const calls = tree.calls[node] ?? null
  const share = whole > 0 ? fixed((100 * total) / whole, 1) : "0"
  return (
    <>
      <code>{shorten(tree.name[node] ?? "", 160)}</code>
      <span>
        <strong>{formatNs(total)}</strong> {share} %, self {formatNs(tree.self[node] ?? 0)}
        {calls !== null && `, ${formatCount(calls)} calls`}
      </span>
    </>
  )
}
