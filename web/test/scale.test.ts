/** Scales and round values. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { linear, linearTicks, log } from "../src/base/scale"

test("a scale goes there and back", () => {
  const scale = linear([10, 20], [0, 100])
  assert.equal(scale(15), 50)
  assert.equal(scale.invert(50), 15)
  const decades = log([1, 1000], [0, 300])
  assert.ok(Math.abs(decades(100) - 200) < 1e-9)
  assert.ok(Math.abs(decades.invert(100) - 10) < 1e-9)
})

test("ticks are round and inside", () => {
  assert.deepEqual(linearTicks(0, 1, 5), [0, 0.2, 0.4, 0.6, 0.8, 1])
  assert.deepEqual(linearTicks(101.35, 108.35, 7), [102, 103, 104, 105, 106, 107, 108])
  assert.deepEqual(log([0.5, 2000], [0, 1]).ticks(10), [1, 10, 100, 1000])
  assert.deepEqual(linearTicks(3, 3, 5), [3])
})
