/** A timeline too large to send whole: which windows are asked for, and what the model then holds. */
import assert from "node:assert/strict"
import { afterEach, beforeEach, mock, test } from "node:test"
import { signal } from "@preact/signals"
import type { TimelinePayload } from "../src/data/payload"
import type { Timeline } from "../src/data/types"
import { makeModel, type Model } from "../src/components/timeline/model"
import type { TimelineState } from "../src/components/timeline/state"
import { followWithWindows, serves, windowAround } from "../src/components/timeline/tiles"

const SECOND = 1e9

function payload(starts: readonly number[]): TimelinePayload {
  const count = starts.length
  const timeline: Timeline = {
    from_ns: 0, to_ns: 100 * SECOND, tiled: true, spans_count: 20_000_000, names: ["a"], counters: [], steps: [], minimap: { kinds: [], columns: [] },
    tracks: [{ group: "gpu", title: "GPU 0", subtitle: "stream 7", rows: [{ offset: 0, count }] }],
  } // prettier-ignore
  const spans = {
    start: Float64Array.from(starts), dur: new Float32Array(count).fill(10), name: new Uint16Array(count), kind: new Uint8Array(count),
    id: Uint32Array.from(starts, (_, at) => at), finding: new Uint8Array(count),
  } // prettier-ignore
  return { timeline, spans, counters: [], rest: null }
}

function following(answer: (from: number, to: number, px: number) => Promise<TimelinePayload>) {
  const held = signal<Model>(makeModel(payload([0])))
  const view = signal({ from: 0, to: 100 * SECOND })
  const asked: { from: number; to: number; px: number }[] = []
  const state = {
    get model() {
      return held.value
    },
    view,
    replaceModel: (model: Model) => void (held.value = model),
  } as unknown as TimelineState
  const stop = followWithWindows(state, (from, to, px) => (asked.push({ from, to, px }), answer(from, to, px)), () => 1000)
  return { held, view, asked, stop }
}

/** Lets all timers and then all promises run. */
async function rest(): Promise<void> {
  mock.timers.runAll()
  await new Promise((resolve) => setImmediate(resolve))
}

beforeEach(() => mock.timers.enable({ apis: ["setTimeout"] }))
afterEach(() => mock.timers.reset())

test("a window is asked for at once, and anew when the view leaves it or comes much closer", async () => {
  const { held, view, asked, stop } = following(async (from) => payload([from, from + 5]))
  await rest()
  assert.deepEqual(asked, [{ from: 0, to: 100 * SECOND, px: 1000 }])
  view.value = { from: 10 * SECOND, to: 60 * SECOND } // still served
  await rest()
  assert.equal(asked.length, 1)
  view.value = { from: 50 * SECOND, to: 51 * SECOND }
  await rest()
  assert.deepEqual(asked[1], { from: 49 * SECOND, to: 52 * SECOND, px: 3000 })
  assert.deepEqual([...held.value.columns.start], [49 * SECOND, 49 * SECOND + 5])
  assert.equal(held.value.timeline.spans_count, 20_000_000)
  assert.equal(held.value.whole.to, 100 * SECOND)
  stop()
  view.value = { from: 0, to: 1 }
  await rest()
  assert.equal(asked.length, 2)
})

test("quick moves ask once, late answers are dropped, and a failed one is asked again", async () => {
  const answers: ((payload: TimelinePayload | null) => void)[] = []
  const { held, view, asked, stop } = following(() => new Promise((resolve, reject) => answers.push((made) => (made === null ? reject(new Error("away")) : resolve(made)))))
  await rest()
  for (const at of [20, 30, 40]) view.value = { from: at * SECOND, to: (at + 1) * SECOND }
  await rest()
  assert.equal(asked.length, 2)
  answers[1]!(payload([41]))
  answers[0]!(payload([7]))
  await rest()
  assert.deepEqual([...held.value.columns.start], [41])
  view.value = { from: 80 * SECOND, to: 81 * SECOND }
  await rest()
  answers[2]!(null)
  await rest()
  view.value = { from: 80 * SECOND, to: 81 * SECOND + 1 }
  await rest()
  assert.equal(asked.length, 4)
  stop()
})

test("a window holds the view and as much on either side", () => {
  const whole = { from: 0, to: 1000 }
  assert.deepEqual(windowAround({ from: 400, to: 500 }, whole), { from: 300, to: 600 })
  const asked = { window: { from: 300, to: 600 }, view: { from: 400, to: 500 } }
  assert.ok(serves(asked, { from: 350, to: 450 }))
  assert.ok(!serves(asked, { from: 250, to: 350 }))
  assert.ok(!serves(asked, { from: 450, to: 480 }))
  assert.ok(!serves(null, whole))
})
