/** What-if in a report: looked up, never computed. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { Resource } from "../src/data/state"
import type { WhatIfKernels } from "../src/data/types"
import { answerFor, predictResource } from "../src/views/pieces/what_if"

const range = (value: number) => ({ point: value, low: value - 1, high: value + 1 })
const known: Resource<WhatIfKernels> = {
  state: "ready",
  value: {
    factors: [0, 0.5, 2],
    kernels: [{ name: "void f(int)", title: "f", kind: "gemm", per_step_ns: 2e6, after_ms: [8, 9, null] }],
    combinations: {
      "1,3": {
        findings: [1, 3],
        says: "together",
        predicted: { verdict: "gain", step_ms: 10, after_ms: range(5), saved_ms: range(5), speedup: range(2), basis: "", not_promised: "" },
      },
    },
  },
}

test("nothing changed has no answer", () => {
  assert.equal(answerFor("run", [], null, known, 10), null)
})

test("findings together are found by their numbers", () => {
  const answer = answerFor("run", [1, 3], null, known, 10)
  assert.ok(answer?.state === "ready")
  assert.deepEqual(answer.value.after_ms, range(5))
})

test("a kernel alone is found by its factor", () => {
  const answer = answerFor("run", [], { kernel: "void f(int)", factor: 0.5 }, known, 10)
  assert.ok(answer?.state === "ready")
  assert.equal(answer.value.after_ms?.point, 9)
})

test("what a report does not hold is said, not guessed", () => {
  for (const answer of [
    answerFor("run", [1, 2], null, known, 10),
    answerFor("run", [1], { kernel: "void f(int)", factor: 0.5 }, known, 10),
    answerFor("run", [], { kernel: "void f(int)", factor: 0.7 }, known, 10),
  ]) assert.equal(answer?.state, "failed")
})

test("a server is asked with the names escaped", () => {
  assert.equal(predictResource([1, 3], { kernel: "void f<a&b>(int)", factor: 0.5 }), "predict?findings=1%2C3&scale=void+f%3Ca%26b%3E%28int%29%3A0.5")
})
