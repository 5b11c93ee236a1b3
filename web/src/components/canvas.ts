/** A canvas that is as wide as its place in the page and as sharp as the screen. */
import type { RefObject } from "preact"
import { useEffect, useState } from "preact/hooks"

/** The width of a canvas or another element in CSS px, which follows the page; 0 before the first layout. */
export function useWidth(canvas: RefObject<HTMLElement | null>): number {
  const [width, setWidth] = useState(0)
  useEffect(() => {
    const observer = new ResizeObserver(() => setWidth(canvas.current?.clientWidth ?? 0))
    if (canvas.current) observer.observe(canvas.current)
    return () => observer.disconnect()
  }, [])
  return width
}

/** A cleared context that draws in CSS px. */
export function contextOf(canvas: HTMLCanvasElement, width: number, height: number): CanvasRenderingContext2D | null {
  const context = canvas.getContext("2d")
  const ratio = devicePixelRatio || 1
  canvas.width = Math.round(width * ratio)
  canvas.height = Math.round(height * ratio)
  context?.scale(ratio, ratio)
  return context
}
