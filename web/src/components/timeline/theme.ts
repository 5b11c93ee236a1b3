/** Colours and fonts of the canvas, read from the design's variables in the theme that is shown. */

import { type Palette, readPalette } from "./palette"

export interface CanvasTheme {
  readonly palette: Palette
  readonly background: string
  readonly sunk: string
  readonly ink: string
  readonly quiet: string
  readonly line: string
  readonly strong: string
  readonly accent: string
  readonly accentWeak: string
  readonly onAccent: string
  readonly note: string
  readonly hostInk: string
  readonly idle: string
  readonly wait: string
  readonly font: string
}

export function readTheme(element: Element): CanvasTheme {
  const style = getComputedStyle(element)
  const colour = (name: string): string => style.getPropertyValue(name).trim()
  return {
    palette: readPalette(element),
    background: colour("--bg"),
    sunk: colour("--sunk"),
    ink: colour("--ink"),
    quiet: colour("--ink2"),
    line: colour("--line"),
    strong: colour("--line2"),
    accent: colour("--accent"),
    accentWeak: colour("--accent-weak"),
    onAccent: colour("--on-accent"),
    note: colour("--note"),
    hostInk: colour("--h-op-ink"),
    idle: colour("--c-idle"),
    wait: colour("--c-wait"),
    font: colour("--font"),
  }
}
