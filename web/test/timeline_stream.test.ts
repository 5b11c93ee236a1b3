/** A timeline read while it arrives is the same as one read at once, however it is cut. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { PackedIds } from "../src/base/ids"
import { readTimeline } from "../src/data/payload"
import { beginTimelineStream, readFindingsStream, readTimelineStream } from "../src/data/payload_stream"

const rows = [{ offset: 0, count: 3 }, { offset: 3, count: 2 }]
const header = { from_ns: 5, to_ns: 9e9, tiled: false, spans_count: 5, names: ["a"], tracks: [{ group: "gpu", title: "", subtitle: "", rows }], counters: [{ title: "", unit: "pct", says: "", most: 1 }], steps: [], minimap: { kinds: [], columns: [] } }

function shuffled(values: Uint32Array | Uint16Array): Uint8Array {
  const bytes = new Uint8Array(values.buffer)
  const width = values.BYTES_PER_ELEMENT
  return bytes.map((_, at) => bytes[(at % values.length) * width + Math.floor(at / values.length)]!)
}

function payload(dur: Uint32Array, escapes: Float64Array | null): Uint8Array {
  const columns: [string, string, string, Uint8Array, number][] = [
    ["start", "u32", "gaps", shuffled(Uint32Array.of(0, 300, 0xffffffff, 70000, 8)), 5],
    ["start:escapes", "f64", "raw", new Uint8Array(Float64Array.of(5e9).buffer), 1],
    ["dur", "u32", "shuffled", shuffled(dur), 5],
    ...(escapes === null ? [] : [["dur:escapes", "f64", "raw", new Uint8Array(escapes.buffer), escapes.length] as [string, string, string, Uint8Array, number]]),
    ["name", "u16", "shuffled", shuffled(Uint16Array.of(1, 256, 515, 65535, 4)), 5],
    ["kind", "u8", "raw", Uint8Array.of(1, 2, 3, 4, 5), 5],
    ["id", "u32", "shuffled", shuffled(Uint32Array.of(9, 0xfffffffe, 7, 65536, 1 << 24)), 5],
    ["finding", "u8", "raw", Uint8Array.of(0, 0, 1, 0, 0), 5],
    ["counter:0:at", "f64", "raw", new Uint8Array(Float64Array.of(1, 2).buffer), 2],
    ["counter:0:value", "f32", "raw", new Uint8Array(Float32Array.of(0.5, 1).buffer), 2],
  ]
  return packed(header, columns)
}

function packed(about: object, columns: readonly [string, string, string, Uint8Array, number][]): Uint8Array {
  let offset = 0
  const places = columns.map(([name, type, encoding, bytes, length]) => {
    const place = { name, type, encoding, length, offset, bytes: bytes.length }
    offset += Math.ceil(bytes.length / 8) * 8
    return place
  })
  const head = new TextEncoder().encode(JSON.stringify({ header: about, columns: places }))
  const first = Math.ceil((12 + head.length) / 8) * 8
  const out = new Uint8Array(first + offset)
  out.set(new TextEncoder().encode("FTRP"))
  new DataView(out.buffer).setUint32(4, 1, true)
  new DataView(out.buffer).setUint32(8, head.length, true)
  out.set(head, 12)
  columns.forEach(([, , , bytes], at) => out.set(bytes, first + places[at]!.offset))
  return out
}

function inPieces(bytes: Uint8Array, size: number): ReadableStream<Uint8Array> {
  let at = 0
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close()
      controller.enqueue(bytes.slice(at, at + size))
      at += size
    },
  })
}

for (const [name, bytes] of [
  ["short durations", payload(Uint32Array.of(1, 70000, 3, 4, 16777215), null)],
  ["a duration that does not fit", payload(Uint32Array.of(1, 0xffffffff, 3, 4, 5), Float64Array.of(6e9))],
] as const) {
  test(`read while it arrives: ${name}`, async () => {
    const whole = readTimeline(bytes)
    for (const size of [1, 3, 7, 64, 100000]) {
      const read = await readTimelineStream(inPieces(bytes, size))
      for (const column of ["start", "dur", "name", "kind", "id", "finding"] as const) {
        assert.deepEqual(Array.from(read.spans[column]), Array.from(whole.spans[column]), `${column} in pieces of ${size}`)
      }
      assert.deepEqual(Array.from(read.counters[0]!.value), [0.5, 1])
      assert.deepEqual(Array.from(await readFindingsStream(inPieces(bytes, size))), [0, 0, 1, 0, 0])
    }
    assert.deepEqual(Array.from(whole.spans.start), [5, 305, 5e9 + 305, 70005, 70013])
  })
}

test("a payload that ends too early, or is something else, says so", async () => {
  const bytes = payload(Uint32Array.of(1, 2, 3, 4, 5), null)
  await assert.rejects(readTimelineStream(inPieces(bytes.slice(0, bytes.length - 20), 64)), /ends inside/)
  await assert.rejects(readTimelineStream(inPieces(new TextEncoder().encode("<html>not a payload"), 64)), /not a Foretrace payload/)
})

function large(count: number): Uint8Array {
  const columns: [string, string, string, Uint8Array, number][] = [
    ["start", "u32", "gaps", shuffled(new Uint32Array(count).fill(10)), count],
    ["dur", "u32", "shuffled", shuffled(new Uint32Array(count).fill(7)), count],
    ["kind", "u8", "raw", new Uint8Array(count).fill(2), count],
    ["counter:0:at", "f64", "raw", new Uint8Array(Float64Array.of(1).buffer), 1],
    ["counter:0:value", "f32", "raw", new Uint8Array(Float32Array.of(1).buffer), 1],
    ["name", "u16", "shuffled", shuffled(new Uint16Array(count).fill(3)), count],
    ["id", "u8", "steps", new Uint8Array(count).fill(1), count],
  ]
  return packed({ ...header, spans_count: count, tracks: [{ ...header.tracks[0]!, rows: [{ offset: 0, count }] }] }, columns)
}

test("many spans are there to be drawn before their names, which follow", async () => {
  const count = 500_000
  const payload = await beginTimelineStream(inPieces(large(count), 1 << 16))
  assert.equal(payload.spans.start[count - 1], 5 + 10 * count)
  assert.deepEqual([payload.spans.dur.length, payload.spans.kind.length, payload.spans.name.length, payload.spans.id.length], [count, count, 0, 0])
  const rest = await payload.rest
  assert.ok(rest)
  assert.equal(rest.start, payload.spans.start)
  assert.deepEqual([rest.name[count - 1], rest.id.at(count - 1), rest.finding.length], [3, count, count])
})

test("names that do not come are told, and the picture stays", async () => {
  const bytes = large(500_000)
  const payload = await beginTimelineStream(inPieces(bytes.slice(0, bytes.length - 100_000), 1 << 16))
  assert.equal(payload.spans.start.length, 500_000)
  await assert.rejects(payload.rest!, /ends inside its column id/)
})

test("ids as steps are the ids", () => {
  const ids = Uint32Array.from({ length: 300 }, (_, at) => (at < 150 ? 5 + 3 * at : at < 200 ? 0xffffffff : 1_000_000 + 400 * at))
  const given: number[] = []
  let before = 0
  const steps = Uint8Array.from(ids, (id) => {
    const step = id - before
    before = id
    if (step >= 0 && step < 255) return step
    given.push(id)
    return 255
  })
  const packedIds = new PackedIds(steps, Float64Array.from(given))
  assert.deepEqual([...packedIds], [...ids])
  for (const at of [0, 63, 64, 149, 150, 200, 299]) assert.equal(packedIds.indexOf(ids[at]!), ids.indexOf(ids[at]!))
  assert.equal(packedIds.indexOf(6), -1)
  assert.equal(packedIds.at(300), undefined)
  assert.throws(() => new PackedIds(Uint8Array.of(255, 1), new Float64Array(0)), /missing a span.s id/)
})
