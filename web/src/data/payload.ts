/**
 * A payload: a JSON header with typed columns behind it, as `src/foretrace/present/web/binary.py` writes it.
 *
 * "FTRP", u32 version, u32 header length, header, zeros to a multiple of 8, then the columns, each 8-aligned.
 */
import { parseJson } from "../base/json"
import { type Ids, PackedIds } from "../base/ids"
import type { SpanColumns, Timeline } from "./types"

const MAGIC = 0x50525446 // "FTRP", read as a little-endian number
const VERSION = 1
export const OPENING_BYTES = 12
export const ESCAPE = 0xffffffff

export type Column = Uint8Array | Uint16Array | Uint32Array | Float32Array | Float64Array

export interface Payload<Header> {
  readonly header: Header
  readonly columns: ReadonlyMap<string, Column>
}

export interface TimelinePayload {
  readonly timeline: Timeline
  readonly spans: SpanColumns
  readonly counters: readonly { readonly at: Column; readonly value: Column }[]
  /** Names, ids and findings that are still on their way: until then those columns are empty. Null: all is there. */
  readonly rest: Promise<SpanColumns> | null
}

/** Columns that the first picture does without. */
export const LATE: readonly string[] = ["name", "id", "id:escapes", "finding"]

/** Where a column lies in a payload, and how it is written. */
export interface ColumnPlace {
  readonly name: string
  readonly type: "u8" | "u16" | "u32" | "f32" | "f64"
  readonly encoding: "raw" | "gaps" | "shuffled" | "steps"
  readonly length: number
  readonly offset: number
  readonly bytes: number
}

export const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f32: Float32Array, f64: Float64Array } as const

/** The length of the header in bytes, from the opening of a payload. */
export function headerLength(bytes: Uint8Array): number {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  if (bytes.byteLength < OPENING_BYTES || view.getUint32(0, true) !== MAGIC) throw new Error("this is not a Foretrace payload")
  const version = view.getUint32(4, true)
  if (version !== VERSION) throw new Error(`the payload has version ${version}; this page reads version ${VERSION}`)
  return view.getUint32(8, true)
}

/** Where the first column begins, in bytes. */
export function firstColumnAt(headerBytes: number): number {
  return Math.ceil((OPENING_BYTES + headerBytes) / 8) * 8
}

/** The header and the columns as they were written: gaps stay gaps, but the bytes are back in order. */
export function readPayload<Header>(bytes: Uint8Array): Payload<Header> {
  const length = headerLength(bytes)
  const text = new TextDecoder().decode(bytes.subarray(OPENING_BYTES, OPENING_BYTES + length))
  const head = parseJson<{ readonly header: Header; readonly columns: readonly ColumnPlace[] }>(text)
  const first = firstColumnAt(length)
  const columns = new Map(head.columns.map((place) => [place.name, readColumn(bytes, first, place)] as const))
  return { header: head.header, columns }
}

function readColumn(bytes: Uint8Array, first: number, place: ColumnPlace): Column {
  const from = first + place.offset
  if (from + place.bytes > bytes.byteLength) throw new Error(`the payload ends inside its column ${place.name}`)
  const part = bytes.subarray(from, from + place.bytes)
  const array = ARRAYS[place.type]
  if (place.encoding === "gaps" || place.encoding === "shuffled") {
    return new array(unshuffle(part, array.BYTES_PER_ELEMENT).buffer as ArrayBuffer, 0, place.length)
  }
  // A copy, so that the payload itself can be forgotten: views would keep all of it.
  return new array(part.slice().buffer, 0, place.length)
}

/** All first bytes, then all second bytes ...: back to one number after the other. */
function unshuffle(bytes: Uint8Array, width: number): Uint8Array {
  const count = bytes.length / width
  const out = new Uint8Array(bytes.length)
  for (let byte = 0; byte < width; byte++) {
    const from = byte * count
    for (let index = 0, to = byte; index < count; index++, to += width) out[to] = bytes[from + index] as number
  }
  return out
}

export function readTimeline(bytes: Uint8Array): TimelinePayload {
  const { header, columns } = readPayload<Timeline>(bytes)
  return finishTimeline(header, columns)
}

/** The columns as the page uses them: times instead of gaps. */
export function finishTimeline(header: Timeline, columns: ReadonlyMap<string, Column>): TimelinePayload {
  const kind = need(columns, "kind") as Uint8Array
  const spans: SpanColumns = {
    start: starts(header, columns),
    dur: durations(columns),
    name: need(columns, "name") as Uint16Array | Uint32Array,
    kind,
    id: ids(columns),
    // Left out where nothing is diagnosed yet.
    finding: (columns.get("finding") ?? new Uint8Array(kind.length)) as Uint8Array,
  }
  const counters = header.counters.map((_, index) => ({
    at: need(columns, `counter:${index}:at`),
    value: need(columns, `counter:${index}:value`),
  }))
  return { timeline: header, spans, counters, rest: null }
}

function need(columns: ReadonlyMap<string, Column>, name: string): Column {
  const column = columns.get(name)
  if (!column) throw new Error(`the payload has no column ${name}`)
  return column
}

/** Times from the gaps between them; times stay as they are. */
export function starts(header: Timeline, columns: ReadonlyMap<string, Column>): Float64Array {
  const gaps = need(columns, "start")
  if (gaps instanceof Float64Array) return gaps
  const escapes = columns.get("start:escapes")
  // Gaps read from a stream lie in the upper half of the room for their times, which are then written over them.
  const roomy = gaps.byteOffset === gaps.length * 4 && gaps.buffer.byteLength === gaps.length * 8
  const out = roomy ? new Float64Array(gaps.buffer as ArrayBuffer) : new Float64Array(gaps.length)
  const rows = header.tracks.flatMap((track) => track.rows).sort((a, b) => a.offset - b.offset)
  let escaped = 0
  for (const row of rows) {
    let at = header.from_ns
    for (let index = row.offset; index < row.offset + row.count; index++) {
      const gap = gaps[index] as number
      at += gap === ESCAPE ? escapeAt(escapes, escaped++) : gap
      out[index] = at
    }
  }
  return out
}

function durations(columns: ReadonlyMap<string, Column>): Float32Array | Float64Array {
  const column = need(columns, "dur")
  if (column instanceof Float32Array || column instanceof Float64Array) return column
  const escapes = columns.get("dur:escapes")
  let escaped = 0
  // In place: each number takes as much room after as before, and ten million need no second array.
  const out = new Float32Array(column.buffer as ArrayBuffer, column.byteOffset, column.length)
  for (let index = 0; index < column.length; index++) {
    const value = column[index] as number
    out[index] = value === ESCAPE ? escapeAt(escapes, escaped++) : value
  }
  return out
}

function ids(columns: ReadonlyMap<string, Column>): Ids {
  const column = need(columns, "id")
  const escapes = (columns.get("id:escapes") ?? new Float64Array(0)) as Float64Array
  return column instanceof Uint8Array ? new PackedIds(column, escapes) : (column as Uint32Array)
}

function escapeAt(escapes: Column | undefined, index: number): number {
  const value = escapes?.[index]
  if (value === undefined) throw new Error("the payload is missing the value of an escaped time")
  return value
}
