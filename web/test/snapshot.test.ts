/** The page of a memory snapshot: zooming, its peak among the points, and what it draws. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { roundedStretch, within, zoomed } from "../src/components/curve/zoom"
import { formatTick, milliseconds, seriesOf, totalAt } from "../src/views/pieces/category_parts"
import { parseZoom, peakPoint } from "../src/views/pieces/snapshot_curve"
import { viewOf, viewsOf } from "../src/views/index"
import type { RunEntry, SnapshotCurve } from "../src/data/types"

const WHOLE = { from: 0, to: 1_000_000 }
const step = (factor: number, by = 0, at: number | null = null): { factor: number; by: number; at: number | null } => ({ factor, by, at })

test("a zoom keeps the moment under the pointer where it is", () => {
  assert.deepEqual(zoomed(WHOLE, WHOLE, step(0.5, 0, 250_000)), { from: 125_000, to: 625_000 })
  assert.deepEqual(zoomed({ from: 125_000, to: 625_000 }, WHOLE, step(0.5)), { from: 250_000, to: 500_000 })
})

test("a zoom stays inside the history and ends at a microsecond", () => {
  assert.deepEqual(zoomed({ from: 0, to: 500_000 }, WHOLE, step(1, -0.25)), { from: 0, to: 500_000 })
  assert.deepEqual(zoomed({ from: 250_000, to: 750_000 }, WHOLE, step(1, 0.25)), { from: 375_000, to: 875_000 })
  assert.deepEqual(zoomed({ from: 250_000, to: 750_000 }, WHOLE, step(4)), WHOLE)
  assert.deepEqual(zoomed({ from: 250_000, to: 750_000 }, WHOLE, null), WHOLE)
  const least = zoomed({ from: 500_000, to: 501_000 }, WHOLE, step(0.5))
  assert.equal(least.to - least.from, 1000)
  assert.deepEqual(within({ from: -10, to: 90 }, WHOLE), { from: 0, to: 100 })
})

test("detail is asked for in round stretches around what is shown", () => {
  const shown = { from: 300_000, to: 400_000 }
  const asked = roundedStretch(shown)
  assert.ok(asked.from <= shown.from && asked.to >= shown.to)
  assert.deepEqual(roundedStretch({ from: 301_000, to: 401_000 }), asked)
})

test("a zoom in the address is taken only where it fits", () => {
  assert.deepEqual(parseZoom("100-5000", WHOLE), { from: 100, to: 5000 })
  for (const text of [undefined, "", "x", "5000-100", "2000000-3000000", "1e3-1e4"]) assert.equal(parseZoom(text, WHOLE), null)
})

const curve: SnapshotCurve = {
  at_ns: [0, 10, 10, 10, 20], reserved: [8, 8, 8, 8, 8], whole: true,
  series: [{ label: "parameter", kind: "parameter", bytes: [2, 2, 2, 2, 2] }, { label: "activation", kind: "activation", bytes: [0, 3, 5, 1, 0] }],
}

test("the peak is found among events of one moment", () => {
  const series = seriesOf(curve.series)
  assert.equal(peakPoint(curve, series, { at_ns: 10, bytes: 7 }), 2)
  assert.equal(totalAt(series, 2), 7)
  assert.equal(peakPoint(curve, series, { at_ns: 15, bytes: 7 }), -1)
})

test("long histories are told in seconds", () => {
  assert.deepEqual([milliseconds(317_204_000), milliseconds(256_544_790_000)], ["317.20 ms", "256.545 s"])
  assert.deepEqual([formatTick(1e8), formatTick(5e10)], ["100 ms", "50 s"])
})

test("a snapshot has the pages of a snapshot", () => {
  const entry = (sort: RunEntry["sort"]): RunEntry => ({ id: "1", sort, name: "", title: "", group: "", label: "", state: "ready", progress_pct: null, says: null, step_ms: null })
  assert.deepEqual(viewsOf(entry("snapshot")).map((view) => view.name), ["snapshot", "compare"])
  assert.equal(viewOf(entry("snapshot"), "overview")?.name, "snapshot")
  assert.equal(viewOf(entry("recording"), "snapshot")?.name, "overview")
  assert.equal(viewOf(entry("recording"), "nonsense"), undefined)
})
