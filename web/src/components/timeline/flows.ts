/**
 * A flow: from what launched a span to the span. When one end is off screen there is no line to nowhere, but a stub at
 * the other end and words: "launched 99.4 ms earlier, in step 10 on the host".
 */

import type { SpanDetail, StepRange } from "../../data/types"
import { laneOf, type Layout } from "./layout"
import type { View } from "./interaction"
import { xOf } from "./scene"

export interface Point {
  readonly x: number
  readonly y: number
}

export type Flow =
  | { readonly kind: "line"; readonly from: Point; readonly to: Point }
  | { readonly kind: "stub"; readonly at: Point; readonly side: "left" | "right"; readonly says: string }

export interface FlowScene {
  readonly layout: Layout
  readonly view: View
  readonly width: number
  readonly steps: readonly StepRange[]
  readonly scrollTop: number
  readonly height: number
  readonly duration: (ns: number) => string
  readonly positionOf: (id: number) => number | null
}

/** "in step 10 on the host", when the moment lies in one. */
export function stepWords(steps: readonly StepRange[], ns: number): string {
  const inside = steps.find((step) => step.host_from_ns !== null && step.host_to_ns !== null && ns >= step.host_from_ns && ns < step.host_to_ns)
  return inside === undefined ? "" : `, in step ${inside.step} on the host`
}

function centre(scene: FlowScene, id: number): { readonly y: number; readonly top: number; readonly bottom: number } | null {
  const position = scene.positionOf(id)
  const lane = position === null ? undefined : laneOf(scene.layout, position)?.lane
  if (lane === undefined) return null
  const top = lane.y - scene.scrollTop
  return { y: top + lane.height / 2, top, bottom: top + lane.height }
}

const onScreen = (scene: FlowScene, x: number): boolean => x >= 0 && x <= scene.width

/** Flows of a selected span to what it is linked to by a launch. */
export function flowsOf(detail: SpanDetail, scene: FlowScene): readonly Flow[] {
  const here = centre(scene, detail.id)
  if (here === null) return []
  const flows: Flow[] = []
  for (const link of detail.links.filter((candidate) => /^(launch|kernel)\b/i.test(candidate.label)).slice(0, 24)) {
    const earlier = link.from_ns <= detail.from_ns
    const launch = earlier ? link : detail
    const kernel = earlier ? detail : link
    const there = centre(scene, link.id)
    const from = { x: xOf(scene, launch.from_ns), y: (earlier ? there : here)?.y ?? here.y }
    const to = { x: xOf(scene, kernel.from_ns), y: (earlier ? here : there)?.bottom ?? here.y }
    if (there !== null && onScreen(scene, from.x) && onScreen(scene, to.x)) {
      flows.push({ kind: "line", from, to })
      continue
    }
    const away = scene.duration(Math.abs(detail.from_ns - link.from_ns))
    const words = earlier ? `launched ${away} earlier${stepWords(scene.steps, link.from_ns)}` : `runs ${away} later`
    const own = Math.min(Math.max(xOf(scene, detail.from_ns), 0), scene.width)
    flows.push({ kind: "stub", at: { x: own, y: here.bottom }, side: earlier ? "left" : "right", says: words })
    if (!earlier) break
  }
  return flows
}
