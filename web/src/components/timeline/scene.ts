/** A scene: everything that one picture of the timeline depends on. */

import type { SpanDetail } from "../../data/types"
import type { View } from "./interaction"
import type { Layout } from "./layout"
import type { Model } from "./model"
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
  readonly colours: Uint8Array // per span, a number of the palette
  readonly flows: boolean
}

/** CSS px between a line and the text beside it. */
export const PAD = 4

export function xOf(scene: Pick<Scene, "view" | "width">, ns: number): number {
  return ((ns - scene.view.from) / (scene.view.to - scene.view.from)) * scene.width
}

export function verticalLine(context: CanvasRenderingContext2D, x: number, top: number, bottom: number): void {
  context.beginPath()
  context.moveTo(Math.round(x) + 0.5, top)
  context.lineTo(Math.round(x) + 0.5, bottom)
  context.stroke()
}
