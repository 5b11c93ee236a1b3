/** Places and their addresses. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { START, formatFragment, parseFragment } from "../src/base/router"

test("the address of the design reads as it should", () => {
  const place = parseFragment("#/timeline?t=101.35-108.35ms&sel=102.17-104.47&span=8123&run=abc")
  assert.deepEqual(place, {
    view: "timeline", run: "abc", span: 8123, rest: {},
    shown: { from: 101_350_000, to: 108_350_000 },
    selection: { from: 102_170_000, to: 104_470_000 },
  })
  assert.equal(formatFragment(place), "#/timeline?t=101.35-108.35ms&sel=102.17-104.47&span=8123&run=abc")
})

test("every place comes back from its address", () => {
  const places = [
    START,
    { ...START, view: "findings", rest: { finding: "2", tick: "1,3", kernel: "void f<a&b=c?>(int) #1 é", factor: "0.5" } },
    { ...START, view: "kernels", run: "a/b c", rest: { q: "100%", sort: "-total_ns" } },
    { ...START, view: "timeline", shown: { from: 1, to: 2 }, selection: { from: 0, to: 123_456_789_012 } },
  ]
  for (const place of places) assert.deepEqual(parseFragment(formatFragment(place)), place)
})

test("nonsense in the address is left out", () => {
  assert.deepEqual(parseFragment(""), START)
  assert.deepEqual(parseFragment("#/"), START)
  const place = parseFragment("#/timeline?t=5-3ms&sel=a-b&span=x")
  assert.deepEqual([place.shown, place.selection, place.span], [null, null, null])
  assert.deepEqual(parseFragment("#/timeline?t=1e9-2e9ms").shown, null)
})
