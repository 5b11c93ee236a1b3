/** Rows of a table: filter, order, and as text to paste. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { Table } from "../src/data/types"
import { tableCsv, tableMarkdown } from "../src/components/table/markdown"
import { formatSort, fullBar, nextSort, parseSort, shownRows } from "../src/components/table/rows"

const table: Table = {
  name: "kernels", says: "", rows_count: 4, values: [], notes: [],
  columns: [
    { name: "name", heading: "kernel", unit: "text", says: "", code: true },
    { name: "total_ns", heading: "total", unit: "ns", says: "", code: false },
  ],
  data: [["gemm 10", "gemm 9", "=cmd|'x'", 'softmax, "fused"'], [100, null, 300, 200]],
}

test("what is absent is last, whichever way the rows are sorted", () => {
  assert.deepEqual(shownRows(table, "", { column: "total_ns", descending: true }), [2, 3, 0, 1])
  assert.deepEqual(shownRows(table, "", { column: "total_ns", descending: false }), [0, 3, 2, 1])
})

test("text sorts its numbers as numbers", () => {
  assert.deepEqual(shownRows(table, "gemm", { column: "name", descending: false }), [1, 0])
})

test("a filter wants every word, in any case", () => {
  assert.deepEqual(shownRows(table, "FUSED soft", null), [3])
  assert.deepEqual(shownRows(table, "nothing", null), [])
})

test("a heading sorts numbers from the largest, text from A, and turns round", () => {
  assert.deepEqual(nextSort(table, "total_ns", null), { column: "total_ns", descending: true })
  assert.deepEqual(nextSort(table, "name", null), { column: "name", descending: false })
  assert.deepEqual(nextSort(table, "name", { column: "name", descending: false }), { column: "name", descending: true })
  assert.deepEqual(parseSort(formatSort({ column: "total_ns", descending: true })), { column: "total_ns", descending: true })
})

test("Markdown keeps its columns, CSV its values, and neither runs anything", () => {
  assert.equal(tableMarkdown(table, [0, 1]), "| kernel | total |\n| --- | ---: |\n| `gemm 10` | 100 ns |\n| `gemm 9` | – |")
  assert.match(tableMarkdown(table, [2]), /=cmd\\\|/)
  assert.equal(tableCsv(table, [3, 2]), 'name,total_ns\n"softmax, ""fused""",200\n\'=cmd|\'x\',300\n')
})

test("CSV keeps numbers in text, and spells out what acts on a terminal or hides", () => {
  const texts = { ...table, data: [["-5", "-x", "\u001b[31m", "\u202ename"], [1, 2, 3, 4]] }
  assert.equal(tableCsv(texts, [0, 1, 2, 3]), "name,total_ns\n-5,1\n'-x,2\n\\x1b[31m,3\n\\u202ename,4\n")
})

test("bars are relative to the largest part of one whole, and else to all of it", () => {
  assert.equal(fullBar([60, 25, 15]), 60)
  assert.equal(fullBar([1.3, 1.3, 1.5, null]), 100) // each of another whole: small, and drawn so
  assert.equal(fullBar([93, 92]), 100)
  assert.equal(fullBar([60]), 100)
})
