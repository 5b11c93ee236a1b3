/** The index and the painter against the same thing done the slow way. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { SpanColumns } from "../src/data/types"
import { busyNs, firstEndingAfter, gallop, indexLargest, indexSpans, largest, lowerBound } from "../src/components/timeline/span_index"
import type { View } from "../src/components/timeline/interaction"
import { makeLabels, paintHits, paintRow, type Row } from "../src/components/timeline/painter"
import { makePalette, STRENGTHS } from "../src/components/timeline/palette"

function randomFrom(seed: number): () => number {
  return () => {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0
    return seed / 2 ** 32
  }
}

function randomSpans(count: number, seed: number, longest = 1000): SpanColumns {
  const random = randomFrom(seed)
  const start = new Float64Array(count)
  const dur = new Float32Array(count)
  const kind = new Uint8Array(count)
  let at = 0
  for (let span = 0; span < count; span++) {
    at += random() < 0.5 ? 0 : Math.floor(random() * 50)
    start[span] = at
    dur[span] = Math.floor(random() < 0.02 ? random() * longest : random() * 20)
    at += dur[span]!
    kind[span] = Math.floor(random() * 4)
  }
  return { start, dur, kind, name: new Uint16Array(count), id: Uint32Array.from(start.keys()), finding: new Uint8Array(count) }
}

const palette = makePalette([[255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 90, 90]], [255, 255, 255])

test("the largest of any stretch, as by looking at each", () => {
  const random = randomFrom(1)
  const values = Float32Array.from({ length: 20000 }, () => random())
  const index = indexLargest(values)
  for (let round = 0; round < 500; round++) {
    const from = Math.floor(random() * values.length)
    const to = from + 1 + Math.floor(random() * (values.length - from))
    assert.equal(values[largest(index, from, to)], Math.max(...values.subarray(from, to)))
  }
})

test("busy time of any stretch, as by adding each", () => {
  const random = randomFrom(2)
  const columns = randomSpans(5000, 2)
  const index = indexSpans(columns)
  for (let round = 0; round < 300; round++) {
    const from = Math.floor(random() * 5000)
    const to = from + Math.floor(random() * (5001 - from))
    assert.equal(busyNs(index, from, to), Array.from(columns.dur.subarray(from, to)).reduce((sum, ns) => sum + ns, 0))
  }
})

test("bounds, as by looking at each", () => {
  const random = randomFrom(3)
  const { start } = randomSpans(700, 3)
  for (let round = 0; round < 300; round++) {
    const value = random() * start[699]! * 1.1 - 5
    const from = Math.floor(random() * 700)
    const slow = start.findIndex((each, at) => at >= from && each >= value)
    const expected = slow < 0 ? 700 : slow
    assert.equal(lowerBound(start, from, 700, value), expected)
    assert.equal(gallop(start, from, 700, value), expected)
  }
})

test("the first span that ends after a moment", () => {
  const columns = randomSpans(400, 4)
  for (let ns = 0; ns < columns.start[399]!; ns += 13) {
    const slow = columns.start.findIndex((start, at) => start + columns.dur[at]! > ns || start >= ns)
    assert.equal(firstEndingAfter(columns, 0, 400, ns), slow < 0 ? 400 : slow)
  }
})

/** What each pixel must show: nothing, or the kinds it may have and how strong. */
function slowRow(columns: SpanColumns, row: Row, view: View, width: number): { readonly kinds: Set<number>; readonly share: number; readonly wide: boolean }[] {
  const pixelNs = (view.to - view.from) / width
  return Array.from({ length: width }, (_, pixel) => {
    const from = view.from + pixel * pixelNs
    const to = from + pixelNs
    let busy = 0
    let wide = false
    const kinds = new Set<number>()
    for (let at = row.offset; at < row.offset + row.count; at++) {
      const part = Math.min(to, columns.start[at]! + columns.dur[at]!) - Math.max(from, columns.start[at]!)
      if (part < 0 || columns.start[at]! >= to) continue
      busy += part
      kinds.add(columns.kind[at]!)
      if (columns.dur[at]! >= 1.5 * pixelNs) wide = true
    }
    return { kinds, share: busy / pixelNs, wide }
  })
}

test("every pixel shows a span that is there, as strong as the pixel is busy", () => {
  const columns = randomSpans(3000, 5, 4000)
  const index = indexSpans(columns)
  const row = { offset: 500, count: 2000 }
  const low = columns.start[500]!
  const high = columns.start[2499]!
  const random = randomFrom(6)
  for (let round = 0; round < 40; round++) {
    const from = low + random() * (high - low) * 0.5
    const view = { from, to: from + (high - low) * Math.pow(random(), 3) + 300 }
    const width = 200
    const pixels = new Uint32Array(width)
    const line = { pixels, at: 0, width, number: 0, gap: 0, leastLabel: 20 }
    paintRow(index, row, view, line, palette.pixels, null)
    slowRow(columns, row, view, width).forEach((expected, pixel) => {
      const shown = pixels[pixel]!
      if (expected.wide) return // its edges are rounded to whole pixels
      if (shown === 0) return assert.ok(expected.share < 1e-6, `pixel ${pixel} of round ${round} lacks ${expected.share}`)
      const strength = Math.round(Math.min(1, expected.share) * (STRENGTHS - 1))
      const allowed = [...expected.kinds].flatMap((kind) => [-1, 0, 1].map((by) => palette.pixels[kind * STRENGTHS + Math.min(STRENGTHS - 1, Math.max(0, strength + by))]))
      assert.ok(allowed.includes(shown), `pixel ${pixel} of round ${round}`)
    })
  }
})

test("a pixel of many spans shows the longest of them", () => {
  const columns = randomSpans(10000, 7)
  const index = indexSpans(columns)
  const last = columns.start[9999]! + columns.dur[9999]!
  const view = { from: 0, to: last }
  const width = 60
  const pixels = new Uint32Array(width)
  paintRow(index, { offset: 0, count: 10000 }, view, { pixels, at: 0, width, number: 0, gap: 0, leastLabel: 20 }, palette.pixels, null)
  const pixelNs = last / width
  for (let pixel = 0; pixel < width; pixel++) {
    const inside = [...columns.start.keys()].filter((at) => Math.floor(columns.start[at]! / pixelNs) === pixel)
    const most = Math.max(...inside.map((at) => columns.dur[at]!))
    const kinds = new Set(inside.filter((at) => columns.dur[at] === most).map((at) => columns.kind[at]!))
    const shownKind = Math.floor(palette.pixels.indexOf(pixels[pixel]!) / STRENGTHS)
    assert.ok(kinds.has(shownKind), `pixel ${pixel}`)
  }
})

test("a stream that is 5 % busy does not look solid", () => {
  const count = 10000
  const start = Float64Array.from({ length: count }, (_, at) => at * 100)
  const columns: SpanColumns = { start, dur: new Float32Array(count).fill(5), kind: new Uint8Array(count), name: new Uint16Array(count), id: new Uint32Array(count), finding: new Uint8Array(count) }
  const pixels = new Uint32Array(100)
  paintRow(indexSpans(columns), { offset: 0, count }, { from: 0, to: 1e6 }, { pixels, at: 0, width: 100, number: 0, gap: 1, leastLabel: 20 }, palette.pixels, null)
  for (const pixel of pixels) assert.equal(pixel, palette.pixels[Math.round(0.05 * (STRENGTHS - 1))])
})

test("wide spans ask for their names, with a gap behind them", () => {
  const columns: SpanColumns = { start: Float64Array.of(-50, 100), dur: Float32Array.of(100, 300), kind: Uint8Array.of(0, 1), name: new Uint16Array(2), id: new Uint32Array(2), finding: new Uint8Array(2) }
  const pixels = new Uint32Array(100)
  const labels = makeLabels(8)
  paintRow(indexSpans(columns), { offset: 0, count: 2 }, { from: 0, to: 1000 }, { pixels, at: 0, width: 100, number: 3, gap: 1, leastLabel: 4 }, palette.pixels, labels)
  assert.equal(labels.count, 2)
  assert.deepEqual([...labels.from.subarray(0, 2)], [0, 10])
  assert.deepEqual([...labels.to.subarray(0, 2)], [5, 40])
  assert.equal(labels.line[1], 3)
  assert.deepEqual([pixels[3], pixels[4], pixels[10], pixels[38], pixels[39]], [palette.pixels[64], 0, palette.pixels[2 * 65 - 1], palette.pixels[2 * 65 - 1], 0])
})

test("hits are painted however small they are", () => {
  const columns = randomSpans(5000, 8, 20)
  const index = indexSpans(columns)
  const hits = Uint32Array.of(700, 1500, 1501, 4000)
  const pixels = new Uint32Array(300)
  const view = { from: 0, to: columns.start[4999]! }
  paintHits(index, hits, { offset: 1000, count: 3500 }, view, { pixels, at: 0, width: 300, number: 0, gap: 1, leastLabel: 20 }, palette.pixels)
  const expected = new Set([1500, 1501, 4000].map((span) => Math.floor((columns.start[span]! / view.to) * 300)))
  const painted = [...pixels.keys()].filter((pixel) => pixels[pixel] !== 0)
  for (const pixel of expected) assert.ok(painted.includes(pixel) || painted.includes(pixel - 1))
  assert.ok(painted.length <= 3)
})
