/**
 * The design tokens: text is readable on every ground, and kinds of work stay apart for every sight.
 *
 * Distances are CIE76 under normal sight and three deficiencies (Machado, Oliveira and Fernandes 2009, severity 1);
 * contrast is WCAG's.
 */
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { join } from "node:path"
import { test } from "node:test"
import { HOST_KINDS, KINDS } from "../src/data/types"

declare const WEB_FOLDER: string

const LEAST_TEXT_CONTRAST = 4.5 // WCAG AA; the palette was chosen for 5.0
const LEAST_DISTANCE = 25
const LEAST_MARK_CONTRAST = 1.45 // a mark always has a label or a value beside it; it must still be seen

type Triple = readonly [number, number, number]
type Matrix = readonly [Triple, Triple, Triple]

const SIGHTS: Readonly<Record<string, Matrix>> = {
  normal: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protan: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deutan: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritan: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}

function linearRgb(hex: string): Triple {
  const channel = (from: number): number => {
    const value = Number.parseInt(hex.slice(from, from + 2), 16) / 255
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4
  }
  return [channel(1), channel(3), channel(5)]
}

function seen(hex: string, matrix: Matrix): Triple {
  const rgb = linearRgb(hex)
  const row = (weights: Triple): number => Math.min(1, Math.max(0, weights[0] * rgb[0] + weights[1] * rgb[1] + weights[2] * rgb[2]))
  return [row(matrix[0]), row(matrix[1]), row(matrix[2])]
}

function lab([r, g, b]: Triple): Triple {
  const curve = (value: number): number => (value > 0.008856 ? Math.cbrt(value) : 7.787 * value + 16 / 116)
  const x = curve((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047)
  const y = curve(0.2126 * r + 0.7152 * g + 0.0722 * b)
  const z = curve((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883)
  return [116 * y - 16, 500 * (x - y), 200 * (y - z)]
}

function distance(a: Triple, b: Triple): number {
  return Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2])
}

function contrast(a: string, b: string): number {
  const light = (hex: string): number => {
    const [red, green, blue] = linearRgb(hex)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
  }
  const [high = 0, low = 0] = [light(a), light(b)].sort((x, y) => y - x)
  return (high + 0.05) / (low + 0.05)
}

const css = readFileSync(join(WEB_FOLDER, "src/base/tokens.css"), "utf8")
const [light = "", dark = ""] = css.split('[data-theme="dark"]')

for (const [theme, block] of [["light", light], ["dark", dark]] as const) {
  const tokens = new Map([...block.matchAll(/--([\w-]+): (#[0-9a-f]{6})/g)].map((found) => [found[1] ?? "", found[2] ?? ""]))
  const token = (name: string): string => {
    const value = tokens.get(name)
    assert.ok(value, `${theme} has no --${name}`)
    return value
  }
  const worked = KINDS.filter((kind) => kind !== "idle" && kind !== "wait")

  test(`${theme}: every kind of work has a colour`, () => {
    for (const kind of KINDS) token(`c-${kind}`)
    for (const kind of HOST_KINDS) token(`h-${kind}`)
  })

  test(`${theme}: text is readable on every ground`, () => {
    for (const text of ["ink", "ink2", "ink3", "accent", "good", "note", "bad", "gain"]) {
      for (const ground of ["bg", "sunk", "raised"]) {
        const found = contrast(token(text), token(ground))
        assert.ok(found >= LEAST_TEXT_CONTRAST, `--${text} on --${ground}: ${found.toFixed(2)}`)
      }
    }
    for (const [text, ground] of [["accent", "accent-weak"], ["ink", "accent-weak"], ["ink2", "accent-weak"], ["ink2", "hover"], ["note", "note-weak"], ["on-accent", "accent"], ["h-op-ink", "h-op"]] as const) {
      const found = contrast(token(text), token(ground))
      assert.ok(found >= LEAST_TEXT_CONTRAST, `--${text} on --${ground}: ${found.toFixed(2)}`)
    }
  })

  test(`${theme}: kinds of work can be told apart`, () => {
    for (const [sight, matrix] of Object.entries(SIGHTS)) {
      for (const [index, a] of worked.entries()) {
        for (const b of worked.slice(index + 1)) {
          const found = distance(lab(seen(token(`c-${a}`), matrix)), lab(seen(token(`c-${b}`), matrix)))
          assert.ok(found >= LEAST_DISTANCE, `${a} and ${b}, ${sight}: ${found.toFixed(1)}`)
        }
      }
    }
  })

  test(`${theme}: marks are seen on the ground`, () => {
    for (const kind of worked) assert.ok(contrast(token(`c-${kind}`), token("bg")) >= LEAST_MARK_CONTRAST, kind)
  })
}
