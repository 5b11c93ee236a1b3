/** Moving through the page: addresses, Back, and what a view keeps. */
import assert from "node:assert/strict"
import { beforeEach, test } from "node:test"
import { go, linkTo, place, run, runs, selection } from "../src/data/state"
import { START } from "../src/base/router"

const steps: string[] = []

beforeEach(() => {
  steps.length = 0
  const location = { hash: "", href: "http://127.0.0.1:1/" }
  const history = {
    pushState: (_state: unknown, _title: string, to: string) => void (steps.push(to), (location.hash = to)),
    replaceState: (_state: unknown, _title: string, to: string) => void (steps.splice(-1, 1, to), (location.hash = to)),
  }
  Object.assign(globalThis, { location, history })
  place.value = START
})

test("a move is one step in the history; panning is none", () => {
  go({ view: "timeline", shown: { from: 0, to: 1e6 } })
  go({ shown: { from: 1e6, to: 2e6 } }, { replace: true })
  go({ selection: { from: 1e6, to: 2e6 } })
  assert.deepEqual(steps, ["#/timeline?t=1-2ms", "#/timeline?t=1-2ms&sel=1-2"])
  assert.deepEqual(selection.value, { from: 1e6, to: 2e6 })
})

test("the selection is shared by all pages, what a view keeps is its own", () => {
  go({ view: "kernels", selection: { from: 1, to: 2e6 }, rest: { sort: "-total_ns" } })
  go({ view: "findings" })
  assert.deepEqual(place.value.rest, {})
  assert.notEqual(place.value.selection, null)
  assert.match(linkTo({ view: "kernels" }), /sort=-total_ns/)
  go({ view: "kernels" })
  assert.deepEqual(place.value.rest, { sort: "-total_ns" })
})

test("another run begins afresh", () => {
  go({ run: "a", view: "kernels", span: 7, rest: { q: "gemm" } })
  go({ run: "b" })
  assert.deepEqual(place.value, { ...START, view: "kernels", run: "b" })
  go({ view: "overview" })
  go({ view: "kernels" })
  assert.deepEqual(place.value.rest, {})
})

test("without a name in the address the first run that is ready is shown", () => {
  const entry = { name: "", title: "", group: "", label: "", sort: "recording" as const, progress_pct: null, says: null, step_ms: null }
  runs.value = {
    state: "ready",
    value: { schema: 1, foretrace: "", embedded: false, runs: [{ ...entry, id: "a", state: "loading" }, { ...entry, id: "b", state: "ready" }] },
  }
  assert.equal(run.value?.id, "b")
  place.value = { ...START, run: "a" }
  assert.equal(run.value?.id, "a")
  place.value = { ...START, run: "gone" }
  assert.equal(run.value, null)
})
