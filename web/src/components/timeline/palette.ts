/**
 * The palette: the design's colours as pixels, each in 65 strengths between the background and itself, because a pixel
 * that is 5 % busy must not look solid.
 */

import { HOST_KINDS, KINDS } from "../../data/types"

export const STRENGTHS = 65
const FULL = STRENGTHS - 1
/** Work that is there is never invisible. */
const FAINTEST = 0.16

export interface Palette {
  readonly pixels: Uint32Array // by kind, then strength; little-endian RGBA
  readonly dimmed: Uint32Array // the same, for what a search did not find
  readonly background: number
  readonly ink: readonly string[] // by kind: the colour of text on it
}

export type Rgb = readonly [number, number, number]

export const KIND_VARIABLES: readonly string[] = [...KINDS.map((kind) => `--c-${kind}`), ...HOST_KINDS.map((kind) => `--h-${kind}`)]

export function parseColour(text: string): Rgb {
  const hex = text.trim().replace("#", "")
  const number = parseInt(hex.length === 3 ? [...hex].map((digit) => digit + digit).join("") : hex, 16)
  return Number.isNaN(number) ? [128, 128, 128] : [(number >> 16) & 255, (number >> 8) & 255, number & 255]
}

export function packed([red, green, blue]: Rgb): number {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0
}

export function mix(under: Rgb, over: Rgb, share: number): Rgb {
  const part = (channel: 0 | 1 | 2): number => Math.round(under[channel] + (over[channel] - under[channel]) * share)
  return [part(0), part(1), part(2)]
}

function luminance(colour: Rgb): number {
  const [red, green, blue] = colour.map((channel) => {
    const value = channel / 255
    return value <= 0.04045 ? value / 12.92 : Math.pow((value + 0.055) / 1.055, 2.4)
  }) as [number, number, number]
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue
}

/** Black or white, whichever reads better on the colour. */
function inkOn(colour: Rgb): string {
  const light = luminance(colour)
  return 1.05 / (light + 0.05) >= (light + 0.05) / 0.058 ? "#ffffff" : "#14181f"
}

export function makePalette(colours: readonly Rgb[], background: Rgb): Palette {
  const pixels = new Uint32Array(colours.length * STRENGTHS)
  const dimmed = new Uint32Array(colours.length * STRENGTHS)
  colours.forEach((colour, kind) => {
    for (let strength = 0; strength < STRENGTHS; strength++) {
      const share = FAINTEST + ((1 - FAINTEST) * strength) / FULL
      pixels[kind * STRENGTHS + strength] = packed(mix(background, colour, share))
      dimmed[kind * STRENGTHS + strength] = packed(mix(background, colour, share * 0.25))
    }
  })
  return { pixels, dimmed, background: packed(background), ink: colours.map(inkOn) }
}

/** The palette of the theme that `element` stands in. */
export function readPalette(element: Element): Palette {
  const style = getComputedStyle(element)
  const colour = (name: string): Rgb => parseColour(style.getPropertyValue(name))
  return makePalette(KIND_VARIABLES.map(colour), colour("--bg"))
}
