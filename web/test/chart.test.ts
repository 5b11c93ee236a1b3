/** Charts of benchmarks: axes, labels, words, and what failed. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { BenchPart, BenchPlot } from "../src/data/types"
import { acrossOf, labelled, nearest, uprightOf } from "../src/components/chart/axes"
import { failedAt } from "../src/components/chart/lines"
import { linesOf, wordsOf } from "../src/views/benchmark"
import { viewOf, viewsOf } from "../src/views/index"

const room = { from: 0, to: 100 }
const plot: BenchPlot = { name: "fwd_ns", title: "", log: true, values: [1e6, 9e6, null], low: [0.99e6, 8e6, null], high: [1.02e6, 11e6, null] }
const part: BenchPart = {
  name: "", says: "", table: { name: "", says: "", columns: [], data: [], rows_count: 0, values: [], notes: [] }, labels: ["", "", ""],
  statuses: ["OK", "OK", "OOM"], slowed: [null, "power cap", null], x: { title: "n", log: false, values: [64, 128, 128] }, panels: ["p", "q"], plots: [plot],
  series: [{ label: "a", panel: 0, colour: 0, rows: [0, 1] }, { label: "b", panel: 0, colour: 1, rows: [2] }, { label: "c", panel: 1, colour: 2, rows: [0] }],
}

test("an axis across holds every value, off its edges", () => {
  for (const isLog of [false, true]) {
    const x = acrossOf([64, 16384], isLog, room)
    assert.ok(x(64) > 0 && x(64) < 10 && x(16384) > 90 && x(16384) < 100)
  }
  assert.ok(Number.isFinite(acrossOf([8], false, room)(8)))
})

test("a logarithmic axis up goes by whole powers, sizes by powers of two", () => {
  assert.deepEqual(uprightOf([1.4e5, 9e7], true, false, room).ticks, [1e5, 1e6, 1e7, 1e8])
  const sizes = uprightOf([17 * 2 ** 20, 2 ** 30], true, true, room).ticks
  assert.ok(sizes.length <= 7 && sizes.every((size) => Number.isInteger(Math.log2(size))))
})

test("an axis up begins at nothing", () => {
  const { scale, ticks } = uprightOf([30, 150], false, false, room)
  assert.equal(scale(0), 0)
  assert.ok(scale(150) < 100)
  assert.equal(ticks[0], 0)
})

test("labels that would touch are left out, the last one stays", () => {
  const at = (value: number): number => value
  assert.deepEqual(labelled([0, 10, 50, 60], at, () => 2), [10, 60])
  assert.equal(nearest([0, 10, 50], at, 28), 10)
})

test("a value is told with its interval, what held the clock back, or why there is none", () => {
  assert.deepEqual([0, 1, 2].map((row) => wordsOf(part, plot, row)), ["1.00 ms (990 µs – 1.02 ms)", "9.00 ms (8.00–11.0), held back by power cap", "OOM"])
})

test("lines are those of the panel; what failed is counted where it stands", () => {
  const lines = linesOf(part, plot, 0)
  assert.deepEqual(lines.map((line) => line.marks.map((mark) => [mark.x, mark.y])), [[[64, 1e6], [128, 9e6]], [[128, null]]])
  assert.deepEqual([...failedAt([...lines, ...lines])], [[128, "2 OOM"]])
})

test("a benchmark has pages of its own; a page of the other sort leads to the first", () => {
  const entry = { id: "", name: "", title: "", group: "", label: "", state: "ready", progress_pct: null, says: null, step_ms: null } as const
  const [bench, recorded] = [{ ...entry, sort: "benchmark" } as const, { ...entry, sort: "recording" } as const]
  assert.deepEqual(viewsOf(bench).map((view) => view.name), ["benchmark", "compare"])
  assert.deepEqual(["overview", "compare", "nonsense"].map((name) => viewOf(bench, name)?.name), ["benchmark", "compare", undefined])
  assert.equal(viewOf(recorded, "benchmark")?.name, "overview")
})
