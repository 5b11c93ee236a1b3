/** What the pages draw of tables, memory, rooflines and comparisons. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { Roofline, Table, TableColumn, WhatIfKernels } from "../src/data/types"
import { arranged, columnOf, rowsWhere, unrecorded } from "../src/components/table/columns"
import { byteTicks, pointAt, stacked } from "../src/components/curve/stack"
import { descent } from "../src/base/descent"
import { type Mark, axesOf, nextMark, radiusOf, roofLines, spread } from "../src/views/pieces/roofline_geometry"
import { linearTicks } from "../src/base/scale"
import { largestShares } from "../src/components/share_strip"
import { kernelRows } from "../src/views/kernels"
import { blocksOf } from "../src/views/pieces/breakdown"

const column = (name: string, unit: TableColumn["unit"], heading = name): TableColumn => ({ name, heading, unit, says: "", code: false })
const table: Table = {
  name: "kernels", says: "", rows_count: 3, values: [], notes: [],
  columns: [column("name", "text"), column("kind", "text"), column("total_pct", "pct", "total"), column("total_ns", "ns", "total"), column("memory_bytes", "bytes"), column("flops", "flops")],
  data: [["a", "b", "c"], ["gemm", "strange", null], [50, 30, 20], [5, 3, 2], [0, 0, null], [null, null, null]],
}

test("columns in which nothing was recorded are known", () => {
  assert.deepEqual(unrecorded(table), ["memory_bytes", "flops"])
})

test("columns are arranged, and a share beside its amount says so", () => {
  assert.deepEqual(arranged(table, ["name", "total_ns"]).columns.map((each) => each.heading), ["name", "total", "kind", "total %", "memory_bytes", "flops"])
  assert.deepEqual(columnOf(arranged(table, ["total_ns"]), "total_pct"), [50, 30, 20])
})

test("rows are chosen by a cell", () => {
  const chosen = rowsWhere(table, "kind", (kind) => kind === "gemm")
  assert.deepEqual([chosen.rows_count, columnOf(chosen, "name")], [1, ["a"]])
  assert.equal(rowsWhere(table, "name", () => true), table)
})

test("a breakdown has a block for each part, in the order given", () => {
  const rows = [["run", "steps", null, null, null, null, 4], ["ranges", "FORWARD", 60, 15, null, null, 4], ["ranges", "FORWARD (exclusive)", 24, 6, 40, "FORWARD", null], ["run", "again", 1, null, null, null, null]] as const
  const names = ["part", "metric", "total_ns", "per_step_ns", "share_pct", "share_of", "calls_count"]
  const broken: Table = { ...table, columns: names.map((name) => column(name, "text")), data: names.map((_, at) => rows.map((row) => row[at] ?? null)) }
  assert.deepEqual(blocksOf(broken).map((block) => [block.part, block.rows.length]), [["run", 1], ["ranges", 2], ["run", 1]])
  assert.deepEqual(blocksOf(broken)[1]?.rows[1], { metric: "FORWARD (exclusive)", total: 24, perStep: 6, share: 40, of: "FORWARD", calls: null })
  assert.deepEqual(blocksOf(table), [])
})

test("a strip shows the largest parts that can be seen", () => {
  const shares = [1, 40, 9, 30].map((pct) => ({ label: "", pct }))
  assert.deepEqual(largestShares(shares, 2).map((each) => each.pct), [40, 30])
  assert.equal(largestShares(shares, 9).length, 3)
})

test("kernels have the kind that the table says, else that of what-if", () => {
  const known: WhatIfKernels = { factors: [], combinations: {}, kernels: [{ name: "b", title: "short b", kind: "copy", per_step_ns: 1, after_ms: [] }] }
  const rows = kernelRows(table, known)
  assert.deepEqual([rows.kinds, rows.titles, rows.spans], [["gemm", "copy", null], ["a", "short b", "c"], [null, null, null]])
  const spans: Table = { ...table, columns: [...table.columns, column("span", "number")], data: [...table.data, [7, 0, null]] }
  assert.deepEqual(kernelRows(spans, null).spans, [7, 0, null])
})

test("series stand on each other", () => {
  const series = [{ label: "a", colour: "", values: [1, 2, 3] }, { label: "b", colour: "", values: [10, 0, 5] }]
  assert.deepEqual(stacked(series, 3).map((top) => [...top]), [[1, 2, 3], [11, 2, 8]])
})

test("a moment has the last point at or before it", () => {
  assert.deepEqual([0, 10, 15, 20, 99].map((ns) => pointAt([10, 20, 30], ns)), [0, 0, 0, 1, 2])
})

test("bytes have round ticks in powers of 1,024", () => {
  assert.deepEqual(byteTicks(14.3 * 1024 ** 3, (from, to) => linearTicks(from, to, 3)), [0, 5, 10].map((each) => each * 1024 ** 3))
})

const mark = (flops_per_byte: number, flops_per_s: number, total_ns: number): Mark => ({ name: "", kind: "gemm", flops_per_byte, flops_per_s, total_ns, calls: 1, span: 0, says: "" })
const roofline: Roofline = {
  says: "", device: "", without: "",
  roofs: [
    { label: "memory 4 TB/s", kind: "memory", per_s: 4e12, source: "" },
    { label: "fp16 900 TFLOP/s", kind: "compute", per_s: 9e14, source: "" },
    { label: "bf16 900 TFLOP/s", kind: "compute", per_s: 9e14, source: "" },
    { label: "fp32 60 TFLOP/s", kind: "compute", per_s: 6e13, source: "" },
  ],
  marks: [mark(0.2, 5e11, 100), mark(300, 6e14, 400), mark(40, 1e14, 25)],
}
const frame = { width: 1000, height: 500, left: 50, right: 50, top: 10, bottom: 40 }

test("the axes hold every mark", () => {
  const { x, y } = axesOf(roofline, frame)
  for (const each of roofline.marks) {
    assert.ok(x(each.flops_per_byte) >= 50 && x(each.flops_per_byte) <= 950)
    assert.ok(y(each.flops_per_s) >= 10 && y(each.flops_per_s) <= 460)
  }
  assert.ok(Number.isFinite(axesOf({ ...roofline, roofs: [], marks: [] }, frame).x(5)))
})

test("a level begins where the slope meets it; equal peaks are one line", () => {
  const lines = roofLines(roofline.roofs, { fromX: 0.1, toX: 1000 })
  assert.deepEqual(lines.map((each) => each.label), ["memory 4 TB/s", "fp16, bf16 900 TFLOP/s", "fp32 60 TFLOP/s"])
  assert.deepEqual(lines.map((each) => [each.from[0], each.to[0]]), [[0.1, 225], [225, 1000], [15, 1000]])
})

test("the area of a mark is its time", () => {
  const [small, large] = roofline.marks.map((each) => radiusOf(each, 400))
  assert.deepEqual([small, large], [11, 22])
  assert.equal(radiusOf(mark(1, 1, 0), 400), 3.5)
})

test("keys step through the marks by intensity and by time", () => {
  const to = (now: number, key: "left" | "right" | "up" | "down") => nextMark(roofline.marks, now, key)
  assert.deepEqual([to(0, "right"), to(2, "right"), to(1, "right"), to(0, "up"), to(0, "down")], [2, 1, 1, 1, 2])
})

test("labels keep their distance", () => {
  assert.deepEqual(spread([100, 98, 40, Infinity], 13), [100, 87, 40, Infinity])
})

test("the way from one step to the other has no gaps", () => {
  const way = descent([{ a_ns: 10, b_ns: 4 }, { a_ns: 0, b_ns: 3 }, { a_ns: 5, b_ns: 5 }])
  assert.deepEqual([way.from, way.to, way.most], [15, 12, 15])
  assert.deepEqual(way.parts.map(({ before, after }) => [before, after]), [[15, 9], [9, 12], [12, 12]])
})
