/** Values as text: the same as in the terminal, which reads the same file (tests/present/test_page_format.py). */
import assert from "node:assert/strict"
import { test } from "node:test"
import { counted, formatCell, formatMs, formatSpeedup, formatValue, shorten, timeScale } from "../src/base/format"
import cases from "./format.json"

test("a value has the text that the terminal gives it", () => {
  for (const [name, value, text] of cases as [string, string | number | boolean | null, string][]) {
    assert.equal(formatValue(name, value), text, `${name} ${value}`)
  }
})

test("a cell takes its unit from its column where the name has none", () => {
  assert.equal(formatCell({ name: "total", unit: "ns" }, 51_110_192), "51.1 ms")
  assert.equal(formatCell({ name: "copied_bytes_per_s", unit: "per_s" }, 3 * 1024 ** 3), "3.00 GiB/s")
  assert.equal(formatCell({ name: "rank", unit: "number" }, 12345), "12345")
  assert.equal(formatCell({ name: "name", unit: "text" }, "copy_ns"), "copy_ns")
  assert.equal(formatCell({ name: "total_ns", unit: "ns" }, undefined), "–")
})

test("times side by side share one unit and one precision", () => {
  const scale = timeScale(50.5)
  assert.equal(scale.range({ low: 0.5, high: 0.9 }), "0.5–0.9")
  assert.equal(scale.range({ low: 1.01, high: 1.02 }), "1.0")
  assert.equal(scale.range({ point: 0.7, low: 0.5, high: 0.9 }), "0.7 (0.5–0.9)")
  assert.equal(scale.text(-0.01), "0.0")
  assert.equal(`${timeScale(0.25).text(0.25)} ${timeScale(0.25).unit}`, "250.0 µs")
  assert.equal(formatMs(12_345), "12.3 s")
  assert.equal(formatMs(2345), "2,345 ms")
  assert.equal(formatMs(null), "–")
})

test("a speed-up says as much as it knows", () => {
  assert.equal(formatSpeedup({ low: 2.91, high: 3.12 }), "2.91–3.12×")
  assert.equal(formatSpeedup({ point: 3, low: 2.91, high: 3.12 }), "3.00× (2.91–3.12)")
  assert.equal(formatSpeedup({ point: 120.4, low: 99.5, high: 240 }), "120× (99.50–240)")
  assert.equal(formatSpeedup({ low: 1.01, high: 1.03 }), "1.01–1.03×")
  assert.equal(formatSpeedup({ low: 1.01, high: 1.01 }), "1.01×")
  assert.equal(formatSpeedup({ low: 1.11, high: 1.13 }), "1.11–1.13×")
})

test("a long name loses C++ noise before it is cut", () => {
  assert.equal(shorten("void at::native::fill<float>(float*, int)", 30), "at::native::fill<float>")
  const cut = shorten(`void ${"x".repeat(20_000)}tail`, 40)
  assert.equal(cut.length, 40)
  assert.ok(cut.endsWith("tail"))
})

test("one is singular", () => {
  assert.equal(counted(1, "row"), "1 row")
  assert.equal(counted(1024, "row"), "1,024 rows")
})
