/** The canvases of a board, and what its pointer needs beside them. */

import type { RefObject } from "preact"

export interface Canvases {
  readonly minimap: RefObject<HTMLCanvasElement | null>
  readonly ruler: RefObject<HTMLCanvasElement | null>
  readonly tracks: RefObject<HTMLCanvasElement | null>
  readonly scroller: RefObject<HTMLDivElement | null>
  readonly tip: RefObject<HTMLDivElement | null>
}

export function fitCanvas(canvas: HTMLCanvasElement, width: number, height: number, ratio: number): void {
  const wide = Math.round(width * ratio)
  const high = Math.round(height * ratio)
  if (canvas.width !== wide) canvas.width = wide
  if (canvas.height !== high) canvas.height = high
  if (canvas.classList.contains("tl-tracks")) canvas.style.height = `${height}px`
}
