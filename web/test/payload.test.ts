/** Payloads as `src/foretrace/present/binary.py` writes them. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { readPayload, readTimeline } from "../src/data/payload"

interface Written {
  readonly name: string
  readonly type: string
  readonly encoding: string
  readonly length: number
  readonly bytes: Uint8Array
}

function raw(name: string, type: string, values: ArrayLike<number> & { readonly buffer: ArrayBufferLike }, encoding = "raw"): Written {
  const bytes = new Uint8Array(values.buffer)
  const width = bytes.length / values.length
  const shuffled = new Uint8Array(bytes.length)
  for (let at = 0; at < bytes.length; at++) shuffled[(at % width) * values.length + Math.floor(at / width)] = bytes[at] ?? 0
  return { name, type, encoding, length: values.length, bytes: encoding === "raw" ? bytes : shuffled }
}

function pack(header: unknown, columns: readonly Written[]): Uint8Array {
  let offset = 0
  const places = columns.map(({ bytes, ...each }) => {
    const place = { ...each, offset, bytes: bytes.length }
    offset += Math.ceil(bytes.length / 8) * 8
    return place
  })
  const head = new TextEncoder().encode(JSON.stringify({ header, columns: places }))
  const first = Math.ceil((12 + head.length) / 8) * 8
  const out = new Uint8Array(first + offset)
  out.set(new TextEncoder().encode("FTRP"))
  new DataView(out.buffer).setUint32(4, 1, true)
  new DataView(out.buffer).setUint32(8, head.length, true)
  out.set(head, 12)
  columns.forEach((each, at) => out.set(each.bytes, first + (places[at]?.offset ?? 0)))
  return out
}

const HEADER = {
  from_ns: 1000,
  tracks: [{ rows: [{ offset: 0, count: 2 }, { offset: 2, count: 1 }] }],
  counters: [{ title: "GPU busy" }],
}

const COLUMNS = [
  raw("start", "u32", new Uint32Array([5, 70_000, 0xffffffff]), "gaps"),
  raw("start:escapes", "f64", new Float64Array([9e12])),
  raw("dur", "u32", new Uint32Array([3, 0xffffffff, 258]), "shuffled"),
  raw("dur:escapes", "f64", new Float64Array([5e9])),
  raw("name", "u16", new Uint16Array([0, 1, 65_535])),
  raw("kind", "u8", new Uint8Array([0, 1, 2])),
  raw("id", "u32", new Uint32Array([7, 8, 9])),
  raw("finding", "u8", new Uint8Array([0, 1, 0])),
  raw("counter:0:at", "f64", new Float64Array([0, 10])),
  raw("counter:0:value", "f32", new Float32Array([0.5, 1])),
]

test("spans come out of gaps, shuffled bytes and escapes", () => {
  const { spans, counters } = readTimeline(pack(HEADER, COLUMNS))
  assert.deepEqual([...spans.start], [1005, 71_005, 9e12 + 1000])
  assert.deepEqual([...spans.dur], [3, 5e9, 258])
  assert.deepEqual([...spans.name], [0, 1, 65_535])
  assert.deepEqual([...spans.id], [7, 8, 9])
  assert.deepEqual(counters.map((each) => [[...each.at], [...each.value]]), [[[0, 10], [0.5, 1]]])
})

test("bytes that begin anywhere in a buffer are read", () => {
  const bytes = pack(HEADER, COLUMNS)
  const shifted = new Uint8Array(bytes.length + 3)
  shifted.set(bytes, 3)
  assert.deepEqual([...readTimeline(shifted.subarray(3)).spans.id], [7, 8, 9])
})

test("what is not a payload, or not all of one, says so", () => {
  assert.throws(() => readPayload(new Uint8Array(20)), /not a Foretrace payload/)
  const later = pack(HEADER, COLUMNS)
  later[4] = 9
  assert.throws(() => readPayload(later), /version 9/)
  assert.throws(() => readPayload(pack(HEADER, COLUMNS).subarray(0, -40)), /ends inside/)
  assert.throws(() => readTimeline(pack(HEADER, COLUMNS.slice(1))), /no column start/)
})
