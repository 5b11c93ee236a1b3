/** What is not dimmed, and stepping through it. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { PackedIds, positionsOf } from "../src/base/ids"
import { nextStop, stopAt, stopsOf } from "../src/components/timeline/focus"
import type { SpanColumns } from "../src/data/types"

const columns: SpanColumns = {
  start: Float64Array.of(0, 20, 40, 5, 30),
  dur: Float64Array.of(10, 10, 10, 5, 5),
  name: Uint32Array.of(0, 1, 0, 0, 1),
  kind: new Uint8Array(5),
  id: Uint32Array.of(7, 9, 12, 8, 11),
  finding: new Uint8Array(5),
}

test("hits are stepped through in order of time, whatever row they are in", () => {
  const stops = stopsOf(columns, { kind: "name", name: "a" }, Uint32Array.of(0, 2, 3))!
  assert.deepEqual(stops.map((stop) => stop.span), [7, 8, 12])
  assert.equal(nextStop(stops, 0, 0, 1), 1)
  assert.equal(nextStop(stops, 2, 0, 1), 0, "around at the end")
  assert.equal(nextStop(stops, 0, 0, -1), 2)
  assert.equal(nextStop(stops, -1, 6, 1), 2, "none selected: the first after what is in view begins")
  assert.equal(nextStop(stops, -1, 6, -1), 1)
  assert.equal(nextStop([], -1, 6, 1), -1)
})

test("a finding is stepped through by its occurrences, which hold more spans than the one that is selected", () => {
  const occurrences = { number: 1, spans: [7, 8, 12], rows_count: 2, span: [8, 12], from_ns: [0, 40], to_ns: [10, 50], step: [1, 1] }
  const stops = stopsOf(columns, { kind: "finding", occurrences }, null)!
  assert.equal(stopAt(stops, 12, 40), 1)
  assert.equal(stopAt(stops, 7, 0), 0, "inside the first")
  assert.equal(stopAt(stops, 9, 20), -1)
  assert.equal(stopAt(stops, null, null), -1)
})

test("ids are found in one pass, packed or not", () => {
  const wanted = new Set([9, 300, 301])
  assert.deepEqual([...positionsOf(Uint32Array.of(9, 5, 301), wanted)], [0, 2])
  assert.deepEqual([...positionsOf(new PackedIds(Uint8Array.of(9, 1, 255, 1), Float64Array.of(300)), wanted)], [0, 2, 3])
})
