/**
 * A timeline's payload read while it arrives: every piece goes straight into its column, so that ten million spans
 * are never in memory twice and are ready soon after their last byte.
 */
import { ARRAYS, type Column, type ColumnPlace, ESCAPE, LATE, OPENING_BYTES, type TimelinePayload, finishTimeline, firstColumnAt, headerLength, starts } from "./payload"
import { parseJson } from "../base/json"
import type { Timeline } from "./types"

/** One column while it fills. Shuffled bytes are put into their place in the number at once. */
class Filling {
  readonly place: ColumnPlace
  readonly column: Column
  readonly #bytes: Uint8Array
  #filled = 0

  constructor(place: ColumnPlace) {
    this.place = place
    this.column = place.encoding === "gaps" ? gapsWithRoom(place.length) : new ARRAYS[place.type](place.length)
    this.#bytes = new Uint8Array(this.column.buffer, this.column.byteOffset, place.bytes)
  }

  add(piece: Uint8Array): void {
    const width = this.column.BYTES_PER_ELEMENT
    if (this.place.encoding === "raw" || width === 1) setUnlessZero(this.#bytes, piece, this.#filled)
    else this.#scatter(piece, width)
    this.#filled += piece.length
  }

  #scatter(piece: Uint8Array, width: number): void {
    const { length } = this.place
    for (let done = 0; done < piece.length; ) {
      const plane = Math.floor((this.#filled + done) / length)
      const first = this.#filled + done - plane * length
      const count = Math.min(length - first, piece.length - done)
      merge(this.column, width, first, piece, done, count, plane)
      done += count
    }
  }
}

const PAGE = 4096

/** Copies what is not zero: memory that is never written costs nothing, and few spans have a finding. */
function setUnlessZero(to: Uint8Array, piece: Uint8Array, at: number): void {
  for (let from = 0; from < piece.length; from += PAGE) {
    const part = piece.subarray(from, from + PAGE)
    let any = 0
    for (let byte = 0; byte < part.length && any === 0; byte++) any |= part[byte]!
    if (any !== 0) to.set(part, at + from)
  }
}

/** Gaps in the upper half of the column that their times will fill: each time is written behind the gaps still to read. */
function gapsWithRoom(length: number): Uint32Array {
  return new Uint32Array(new ArrayBuffer(length * 8), length * 4, length)
}

/** Puts bytes of one plane into numbers; whole numbers are many times faster than bytes at a stride. */
function merge(column: Column, width: number, first: number, piece: Uint8Array, from: number, count: number, plane: number): void {
  if (width === 8) {
    const bytes = new Uint8Array(column.buffer, column.byteOffset)
    for (let at = 0; at < count; at++) bytes[(first + at) * 8 + plane] = piece[from + at]!
    return
  }
  const array = width === 4 ? Uint32Array : Uint16Array
  const numbers = new array(column.buffer as ArrayBuffer, column.byteOffset, column.length)
  const shift = plane * 8
  if (plane === 0) for (let at = 0; at < count; at++) numbers[first + at] = piece[from + at]!
  else for (let at = 0; at < count; at++) numbers[first + at] = numbers[first + at]! | (piece[from + at]! << shift)
}

const PIECE_BYTES = 1 << 20

/** Gives the next bytes; they hold until the next call. */
type NextBytes = () => Promise<Uint8Array | null>

/** Reads into one buffer again and again where the stream can: garbage of the whole payload's size would stay for long. */
function nextBytes(stream: ReadableStream<Uint8Array>): NextBytes {
  const reader = byteReader(stream)
  if (reader === null) {
    const plain = stream.getReader()
    return async () => (await plain.read()).value ?? null
  }
  let buffer = new ArrayBuffer(PIECE_BYTES)
  return async () => {
    const { done, value } = await reader.read(new Uint8Array(buffer))
    if (value !== undefined) buffer = value.buffer as ArrayBuffer
    return done || value === undefined ? null : value
  }
}

function byteReader(stream: ReadableStream<Uint8Array>): ReadableStreamBYOBReader | null {
  try {
    return stream.getReader({ mode: "byob" })
  } catch {
    return null
  }
}

class Reader {
  readonly #next: NextBytes
  #rest: Uint8Array = new Uint8Array(0)

  constructor(stream: ReadableStream<Uint8Array>) {
    this.#next = nextBytes(stream)
  }

  /** The next piece, at most `most` bytes; null at the end. */
  async piece(most: number): Promise<Uint8Array | null> {
    while (this.#rest.length === 0) {
      const bytes = await this.#next()
      if (bytes === null) return null
      this.#rest = bytes
    }
    const piece = this.#rest.subarray(0, most)
    this.#rest = this.#rest.subarray(piece.length)
    return piece
  }

  async exactly(count: number, what: string): Promise<Uint8Array> {
    const out = new Uint8Array(count)
    await this.forEachPiece(count, what, (piece, at) => out.set(piece, at))
    return out
  }

  async forEachPiece(count: number, what: string, use: (piece: Uint8Array, at: number) => void): Promise<void> {
    for (let at = 0; at < count; ) {
      const piece = await this.piece(count - at)
      if (piece === null) throw new Error(`the payload ends inside ${what}`)
      use(piece, at)
      at += piece.length
    }
  }
}

interface Head {
  readonly header: Timeline
  readonly columns: readonly ColumnPlace[]
}

export async function readTimelineStream(stream: ReadableStream<Uint8Array>): Promise<TimelinePayload> {
  const payload = await beginTimelineStream(stream)
  return payload.rest === null ? payload : { ...payload, spans: await payload.rest, rest: null }
}

/** Spans from which on a picture without names is worth drawing: fewer are there at once. */
const EARLY_FROM = 400_000

/** As soon as the spans can be drawn; what only their names and details need follows as `rest`. */
export function beginTimelineStream(stream: ReadableStream<Uint8Array>): Promise<TimelinePayload> {
  return new Promise((resolve, reject) => {
    const columns = new Map<string, Column>()
    let begun = false
    const ready = (filling: Filling, { header, columns: places }: Head): Promise<void> | undefined => {
      const { name } = filling.place
      columns.set(name, shorter(filling, places))
      // While the next columns are still on their way.
      if (name === "start" && !places.some((place) => place.name === "start:escapes")) columns.set("start", starts(header, columns))
      const missing = places.filter((place) => !columns.has(place.name))
      const drawable = missing.length > 0 && missing.every((place) => LATE.includes(place.name))
      if (begun || !drawable || (columns.get("kind")?.length ?? 0) < EARLY_FROM) return
      begun = true
      resolve({ ...withoutLate(header, columns), rest })
      return drawn()
    }
    const rest = readColumns(new Reader(stream), () => true, ready).then(({ header }) => {
      const payload = finishTimeline(header, columns)
      if (!begun) resolve(payload)
      return payload.spans
    })
    rest.catch(reject)
  })
}

/** The columns that are drawn, finished for good, and empty ones for those still to come. */
function withoutLate(header: Timeline, columns: Map<string, Column>): TimelinePayload {
  const none = LATE.map((name) => [name, new Uint32Array(0)] as const)
  const payload = finishTimeline(header, new Map([...columns, ...none]))
  columns.set("start", payload.spans.start)
  columns.set("dur", payload.spans.dur)
  return payload
}

const FRAMES_MS = 120

/** The picture goes before what is still to be read; a page in the background draws none. */
function drawn(): Promise<void> {
  return new Promise((resolve) => {
    setTimeout(resolve, FRAMES_MS)
    if (typeof requestAnimationFrame === "function") requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 0)))
  })
}

/** Only the findings of the spans: the rest passes by and is not kept. */
export async function readFindingsStream(stream: ReadableStream<Uint8Array>): Promise<Uint8Array> {
  let finding: Column | null = null
  await readColumns(new Reader(stream), (place) => place.name === "finding", (filling) => void (finding = filling.column))
  return finding ?? new Uint8Array(0)
}

async function readColumns(reader: Reader, wanted: (place: ColumnPlace) => boolean, ready: (filling: Filling, head: Head) => Promise<void> | undefined): Promise<Head> {
  const length = headerLength(await reader.exactly(OPENING_BYTES, "its opening"))
  const head = parseJson<Head>(new TextDecoder().decode(await reader.exactly(length, "its header")))
  const first = firstColumnAt(length)
  let at = OPENING_BYTES + length
  for (const place of [...head.columns].sort((a, b) => a.offset - b.offset)) {
    await reader.forEachPiece(first + place.offset - at, "the space before a column", () => undefined)
    const filling = wanted(place) ? new Filling(place) : null
    await reader.forEachPiece(place.bytes, `its column ${place.name}`, (piece) => filling?.add(piece))
    at = first + place.offset + place.bytes
    if (filling !== null) await ready(filling, head)
  }
  return head
}

/** Durations that all fit become floats where they lie, without a second column. */
function shorter(filling: Filling, places: readonly ColumnPlace[]): Column {
  const { column, place } = filling
  if (place.name !== "dur" || !(column instanceof Uint32Array) || places.some((other) => other.name === "dur:escapes")) return column
  const floats = new Float32Array(column.buffer)
  for (let at = 0; at < column.length; at++) floats[at] = column[at]! === ESCAPE ? 0 : column[at]!
  return floats
}
