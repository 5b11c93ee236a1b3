/** Moving the view, laying out tracks, adding up an area, stepping through hits, and flows. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { SpanColumns, SpanDetail, Timeline } from "../src/data/types"
import { aggregate, groupsIn } from "../src/components/timeline/aggregate"
import { curvePixels, makeCurve, meanInView, mostInView } from "../src/components/timeline/counters"
import { flowsOf, type FlowScene } from "../src/components/timeline/flows"
import { around, between, clamp, pan, reveal, ticks, tickText, zoom } from "../src/components/timeline/interaction"
import { laneAt, laneOf, lanesInView, layOut, spanAt, trackOf } from "../src/components/timeline/layout"
import { makeModel } from "../src/components/timeline/model"
import { leftHeavy, stepsAligned } from "../src/components/timeline/modes"
import { findHits, matchNames, neighbour, parentOrChild, stepHit } from "../src/components/timeline/search"

const whole = { from: 0, to: 1e9 }

test("a zoom keeps the moment under the pointer, and stays inside the capture", () => {
  const view = { from: 2e8, to: 4e8 }
  const closer = zoom(view, whole, 2.5e8, 0.5)
  assert.deepEqual(closer, { from: 2.25e8, to: 3.25e8 })
  assert.deepEqual(zoom(view, whole, 3e8, 100), whole)
  assert.equal(zoom(view, whole, 3e8, 1e-12).to - zoom(view, whole, 3e8, 1e-12).from, 50)
})

test("a pan stops at the edges", () => {
  assert.deepEqual(pan({ from: 0, to: 100 }, whole, -0.5), { from: 0, to: 100 })
  assert.deepEqual(pan({ from: 9e8, to: 1e9 }, whole, 0.5), { from: 9e8, to: 1e9 })
  assert.deepEqual(clamp({ from: -5e9, to: 5e9 }, whole), whole)
})

test("what is on screen stays where it is; what is not comes to the middle", () => {
  const view = { from: 100e6, to: 110e6 }
  assert.equal(reveal(view, whole, 101e6, 102e6), view)
  const moved = reveal(view, whole, 200e6, 201e6)
  assert.deepEqual(moved, { from: 195.5e6, to: 205.5e6 })
  assert.ok(reveal(view, whole, 200e6, 300e6).to > 300e6)
  assert.deepEqual(around(100, 200, whole, 1), { from: 0, to: 300 })
})

test("an animation begins and ends where it should", () => {
  const a = { from: 0, to: 1000 }
  const b = { from: 400, to: 500 }
  assert.deepEqual(between(a, b, 0), a)
  assert.deepEqual(between(a, b, 1), b)
  const middle = between(a, b, 0.5)
  assert.ok(middle.from > 0 && middle.from < 400 && middle.to > 500 && middle.to < 1000)
})

test("ticks are round and far enough apart", () => {
  const { step, at } = ticks({ from: 101.35e6, to: 108.35e6 }, 1124)
  assert.equal(step, 1e6)
  assert.deepEqual(at.map((tick) => tickText(tick, step, whole)), ["102 ms", "103 ms", "104 ms", "105 ms", "106 ms", "107 ms", "108 ms"])
  assert.equal(tickText(102.35e6, 1e4, whole), "102.35 ms")
  assert.equal(tickText(12.5e9, 1e8, { from: 0, to: 60e9 }), "12.5 s")
})

// A stream with an overlapping sub-lane, and a host thread three deep.
const columns: SpanColumns = {
  start: Float64Array.of(100, 200, 400, 250, 0, 300, 50, 310, 60),
  dur: Float32Array.of(50, 150, 100, 20, 250, 100, 150, 50, 20),
  name: Uint16Array.of(0, 1, 0, 2, 3, 3, 4, 4, 5),
  kind: Uint8Array.of(0, 1, 0, 2, 10, 10, 10, 10, 11),
  id: Uint32Array.of(10, 11, 12, 13, 14, 15, 16, 17, 18),
  finding: Uint8Array.of(0, 2, 0, 0, 0, 0, 0, 0, 0),
}

const timeline: Timeline = {
  from_ns: 0,
  to_ns: 1000,
  tiled: false,
  spans_count: 9,
  names: ["gemm", "copy", "memset", "step", "aten::mm", "cudaLaunchKernel"],
  tracks: [
    { group: "gpu", title: "GPU 0", subtitle: "stream 7", rows: [{ offset: 0, count: 3 }, { offset: 3, count: 1 }] },
    { group: "host", title: "Host", subtitle: "main thread", rows: [{ offset: 4, count: 2 }, { offset: 6, count: 2 }, { offset: 8, count: 1 }] },
    { group: "python", title: "Python", subtitle: "thread 1", rows: [{ offset: 9, count: 0 }] },
  ],
  counters: [{ title: "GPU busy", unit: "pct", says: "", most: 100 }],
  steps: [{ step: 10, from_ns: 0, to_ns: 280, gpu_from_ns: null, gpu_to_ns: null, host_from_ns: 0, host_to_ns: 280 }],
  minimap: { kinds: [], columns: [] },
}

test("lanes that hold nothing in view are left out", () => {
  const used = timeline.tracks.map((track) => lanesInView(track, columns, { from: 0, to: 1000 }))
  assert.deepEqual(used, [2, 3, 0])
  assert.equal(lanesInView(timeline.tracks[0]!, columns, { from: 390, to: 1000 }), 1)
  assert.equal(lanesInView(timeline.tracks[1]!, columns, { from: 600, to: 1000 }), 0)
  const layout = layOut(timeline, used, new Map())
  assert.deepEqual(layout.tracks.map((box) => [box.state, box.lanes.length]), [["open", 2], ["open", 3], ["empty", 0]])
  const collapsed = layOut(timeline, used, new Map([[1, "collapsed"]]))
  assert.equal(collapsed.tracks[1]!.lanes.length, 1)
  assert.ok(collapsed.height < layout.height)
})

test("what lies under the pointer", () => {
  const layout = layOut(timeline, [2, 3, 0], new Map())
  const lane = layout.tracks[1]!.lanes[1]!
  const found = laneAt(layout, lane.y + 3)
  assert.equal(found?.lane.offset, 6)
  assert.equal(spanAt(columns, lane, 100, 5), 6)
  assert.equal(spanAt(columns, lane, 305, 10), 7)
  assert.equal(spanAt(columns, lane, 250, 10), null)
  assert.equal(laneOf(layout, 8)?.lane.row, 2)
  assert.equal(trackOf(timeline.tracks, 3), 0)
  assert.equal(laneAt(layout, -5), null)
})

test("an area adds up by name, cut to its edges", () => {
  const sums = aggregate(timeline, columns, { from: 120, to: 450 }, "gpu")
  assert.deepEqual(
    sums.rows.map((row) => [timeline.names[row.name], row.calls, row.ns, row.finding]),
    [["copy", 1, 150, 2], ["gemm", 2, 80, 0], ["memset", 1, 20, 0]],
  )
  assert.equal(sums.events, 4)
  assert.equal(Math.round(sums.busy * 1000), Math.round((230 / 330) * 1000))
  assert.deepEqual(groupsIn(timeline, columns, { from: 120, to: 450 }), ["gpu", "host"])
})

test("on the host a span counts without what runs inside it", () => {
  const sums = aggregate(timeline, columns, { from: 0, to: 1000 }, "host")
  assert.deepEqual(
    sums.rows.map((row) => [timeline.names[row.name], row.calls, row.ns]),
    [["aten::mm", 2, 180], ["step", 2, 150], ["cudaLaunchKernel", 1, 20]],
  )
  assert.equal(sums.rows.reduce((sum, row) => sum + row.ns, 0), 350)
})

test("a search finds names by their words and steps through time", () => {
  const matches = matchNames(timeline.names, "MM")
  assert.deepEqual([...matches!], [1, 0, 0, 0, 1, 0])
  assert.equal(matchNames(timeline.names, "  "), null)
  const hits = findHits(columns, matches!)
  assert.deepEqual([...hits], [0, 2, 6, 7])
  const order: number[] = []
  for (let at: number | null = null, round = 0; round < 5; round++) {
    at = stepHit(columns, hits, 0, at, true)
    order.push(at!)
  }
  assert.deepEqual(order, [6, 0, 7, 2, 6])
  assert.equal(stepHit(columns, hits, 0, 6, false), 2)
  assert.equal(stepHit(columns, Uint32Array.of(), 0, null, true), null)
})

test("keys walk along a row and through the nesting", () => {
  assert.equal(neighbour(timeline, 0, 1), 1)
  assert.equal(neighbour(timeline, 2, 1), null)
  assert.equal(parentOrChild(timeline, columns, 6, -1), 4)
  assert.equal(parentOrChild(timeline, columns, 6, 1), 8)
  assert.equal(parentOrChild(timeline, columns, 4, -1), null)
})

test("a counter shows its largest value per pixel and its mean over time", () => {
  const curve = makeCurve({ at: Float64Array.of(0, 100, 110, 200), value: Float64Array.of(10, 90, 20, 0) })
  assert.deepEqual([...curvePixels(curve, { from: 0, to: 400 }, 4)], [10, 90, 20, 0])
  assert.deepEqual([...curvePixels(curve, { from: 120, to: 160 }, 2)], [20, 20])
  assert.equal(mostInView(curve, { from: 120, to: 300 }), 20)
  assert.equal(meanInView(curve, { from: 0, to: 200 }), (10 * 100 + 90 * 10 + 20 * 90) / 200)
})

const detail: SpanDetail = {
  id: 12,
  title: "gemm",
  subtitle: "stream 7",
  name: "gemm",
  from_ns: 400,
  to_ns: 500,
  facts: [],
  finding: null,
  links: [{ label: "Launch", id: 18, from_ns: 60, to_ns: 80 }],
}

function scene(from: number, to: number): FlowScene {
  const positions = new Map([...columns.id].map((id, at) => [id, at]))
  const layout = layOut(timeline, [2, 3, 0], new Map())
  return { layout, view: { from, to }, width: 1000, steps: timeline.steps, scrollTop: 0, height: 500, duration: (ns) => `${ns} ns`, positionOf: (id) => positions.get(id) ?? null }
}

test("a flow is a line when both ends are on screen, else a stub with words", () => {
  const [line] = flowsOf(detail, scene(0, 1000))
  assert.ok(line?.kind === "line" && line.from.x === 60 && line.to.x === 400 && line.from.y > line.to.y)
  const [stub] = flowsOf(detail, scene(350, 1000))
  assert.ok(stub?.kind === "stub")
  assert.equal(stub.says, "launched 340 ns earlier, in step 10 on the host")
})

const model = makeModel({ timeline, spans: columns, counters: [{ at: Float64Array.of(0), value: Float64Array.of(1) }], rest: null })

test("left heavy adds up by name under the same parent, the longest first", () => {
  const heavy = leftHeavy(model, { from: 0, to: 1000 })
  const rows = heavy.timeline.tracks.flatMap((track) => track.rows.map(({ offset, count }) => Array.from({ length: count }, (_, at) => [timeline.names[heavy.columns.name[offset + at]!], heavy.columns.start[offset + at], heavy.columns.dur[offset + at]])))
  assert.deepEqual(rows, [
    [["gemm", 0, 150], ["copy", 150, 150], ["memset", 300, 20]],
    [["step", 0, 350]],
    [["aten::mm", 0, 200]],
    [["cudaLaunchKernel", 0, 20]],
  ])
})

test("steps lie under each other from their beginning", () => {
  const steps = [
    { step: 1, from_ns: 50, to_ns: 350, gpu_from_ns: 100, gpu_to_ns: 350, host_from_ns: 0, host_to_ns: 250 },
    { step: 2, from_ns: 350, to_ns: 500, gpu_from_ns: 400, gpu_to_ns: 500, host_from_ns: 300, host_to_ns: 400 },
  ]
  const aligned = stepsAligned({ ...model, timeline: { ...timeline, steps } }, (ns) => `${ns} ns`)
  assert.deepEqual(aligned.timeline.tracks.map((track) => [track.title, track.subtitle, track.rows.map((row) => row.count)]), [["Step 1", "300 ns", [2, 1]], ["Step 2", "150 ns", [1]]])
  assert.deepEqual([...aligned.columns.start], [50, 150, 200, 50]) // the wait before the first work is part of a step
  assert.equal(aligned.whole.to, 300)
})
