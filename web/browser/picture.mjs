/** Pictures of pages: PNG in a few lines, made small, and compared with a tolerance. */
import zlib, { deflateSync, inflateSync } from "node:zlib"

const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10])
const CHANNELS = { 2: 3, 6: 4 }

/** A screenshot: 8 bits a channel, not interlaced, as Chromium writes it. Returns { width, height, data: RGB bytes }. */
export function decodePng(bytes) {
  if (!bytes.subarray(0, 8).equals(SIGNATURE)) throw new Error("not a PNG")
  const parts = []
  let width = 0, height = 0, channels = 0 // prettier-ignore
  for (let at = 8; at < bytes.length; ) {
    const length = bytes.readUInt32BE(at)
    const type = bytes.toString("latin1", at + 4, at + 8)
    const body = bytes.subarray(at + 8, at + 8 + length)
    if (type === "IHDR") {
      width = body.readUInt32BE(0)
      height = body.readUInt32BE(4)
      channels = CHANNELS[body[9]]
      if (body[8] !== 8 || channels === undefined || body[12] !== 0) throw new Error("not a PNG of 8-bit colours")
    } else if (type === "IDAT") parts.push(body)
    at += length + 12
  }
  return { width, height, data: unfilter(inflateSync(Buffer.concat(parts)), width, height, channels) }
}

function unfilter(raw, width, height, channels) {
  const stride = width * channels
  const rows = Buffer.alloc(stride * height)
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (stride + 1)]
    for (let x = 0; x < stride; x++) {
      const to = y * stride + x
      const left = x >= channels ? rows[to - channels] : 0
      const up = y > 0 ? rows[to - stride] : 0
      const corner = x >= channels && y > 0 ? rows[to - stride - channels] : 0
      const guess = filter === 0 ? 0 : filter === 1 ? left : filter === 2 ? up : filter === 3 ? (left + up) >> 1 : paeth(left, up, corner)
      rows[to] = raw[y * (stride + 1) + 1 + x] + guess
    }
  }
  if (channels === 3) return rows
  const data = Buffer.alloc(width * height * 3)
  for (let pixel = 0; pixel < width * height; pixel++) rows.copy(data, pixel * 3, pixel * 4, pixel * 4 + 3)
  return data
}

function paeth(left, up, corner) {
  const guess = left + up - corner
  const [a, b, c] = [Math.abs(guess - left), Math.abs(guess - up), Math.abs(guess - corner)]
  return a <= b && a <= c ? left : b <= c ? up : corner
}

export function encodePng({ width, height, data }) {
  const raw = Buffer.alloc((width * 3 + 1) * height)
  for (let y = 0; y < height; y++) data.copy(raw, y * (width * 3 + 1) + 1, y * width * 3, (y + 1) * width * 3)
  const head = Buffer.alloc(13)
  head.writeUInt32BE(width, 0)
  head.writeUInt32BE(height, 4)
  head.set([8, 2, 0, 0, 0], 8)
  return pngOf([["IHDR", head], ["IDAT", deflateSync(raw, { level: 9 })]])
}

/** At most 256 colours, each pixel the nearest of them: a third of the size, and no difference to the eye. */
export function encodePalettePng({ width, height, data }) {
  const colours = paletteOf(data)
  const raw = Buffer.alloc((width + 1) * height)
  const nearest = new Map()
  for (let pixel = 0; pixel < width * height; pixel++) {
    const key = (data[pixel * 3] << 16) | (data[pixel * 3 + 1] << 8) | data[pixel * 3 + 2]
    let found = nearest.get(key)
    if (found === undefined) nearest.set(key, (found = nearestOf(colours, key)))
    raw[Math.floor(pixel / width) * (width + 1) + 1 + (pixel % width)] = found
  }
  const head = Buffer.alloc(13)
  head.writeUInt32BE(width, 0)
  head.writeUInt32BE(height, 4)
  head.set([8, 3, 0, 0, 0], 8)
  const palette = Buffer.from(colours.flatMap((key) => [key >> 16, (key >> 8) & 255, key & 255]))
  return pngOf([["IHDR", head], ["PLTE", palette], ["IDAT", deflateSync(raw, { level: 9 })]])
}

/** The most frequent colours that differ enough from one another. */
function paletteOf(data) {
  const counts = new Map()
  for (let at = 0; at < data.length; at += 3) {
    const key = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2]
    counts.set(key, (counts.get(key) ?? 0) + 1)
  }
  const byCount = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a))
  if (byCount.length <= 256) return byCount
  const chosen = byCount.slice(0, 64)
  for (const far of [40, 24, 16, 10, 6]) {
    for (const key of byCount) {
      if (chosen.length >= 256) return chosen
      if (distance(chosen[nearestOf(chosen, key)], key) > far) chosen.push(key)
    }
  }
  return chosen
}

const distance = (a, b) => Math.abs((a >> 16) - (b >> 16)) + Math.abs(((a >> 8) & 255) - ((b >> 8) & 255)) + Math.abs((a & 255) - (b & 255))

function nearestOf(colours, key) {
  let best = 0
  for (let each = 1; each < colours.length; each++) if (distance(colours[each], key) < distance(colours[best], key)) best = each
  return best
}

function pngOf(chunks) {
  const pieces = [...chunks, ["IEND", Buffer.alloc(0)]].map(([type, body]) => {
    const piece = Buffer.alloc(body.length + 12)
    piece.writeUInt32BE(body.length, 0)
    piece.write(type, 4, "latin1")
    body.copy(piece, 8)
    piece.writeUInt32BE(crc32(piece.subarray(4, body.length + 8)), body.length + 8)
    return piece
  })
  return Buffer.concat([SIGNATURE, ...pieces])
}

/** node 20 before 20.15 has none of its own. */
function crc32(bytes) {
  if (zlib.crc32) return zlib.crc32(bytes)
  let crc = ~0
  for (const byte of bytes) {
    crc ^= byte
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (0xedb88320 & -(crc & 1))
  }
  return ~crc >>> 0
}

/** The mean colour of each square: shapes of letters go, what stands where stays. */
export function shrink({ width, height, data }, side) {
  const [wide, high] = [Math.floor(width / side), Math.floor(height / side)]
  const out = Buffer.alloc(wide * high * 3)
  for (let y = 0; y < high; y++) {
    for (let x = 0; x < wide; x++) {
      for (let channel = 0; channel < 3; channel++) {
        let sum = 0
        for (let dy = 0; dy < side; dy++) {
          const from = ((y * side + dy) * width + x * side) * 3 + channel
          for (let dx = 0; dx < side; dx++) sum += data[from + dx * 3]
        }
        out[(y * wide + x) * 3 + channel] = Math.round(sum / side / side)
      }
    }
  }
  return { width: wide, height: high, data: out }
}

/** The share of squares, 0 to 1, whose colour differs by more than `slack` of 255. */
export function difference(one, other, slack) {
  if (one.width !== other.width || one.height !== other.height) return 1
  let found = 0
  for (let at = 0; at < one.data.length; at += 3) {
    if ([0, 1, 2].some((channel) => Math.abs(one.data[at + channel] - other.data[at + channel]) > slack)) found++
  }
  return found / (one.width * one.height)
}
