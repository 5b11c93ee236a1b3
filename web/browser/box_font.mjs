/**
 * A font of our own in which every character is the same box: pages drawn with it look the same on every machine,
 * whatever fonts it has. TrueType, made byte by byte.
 */
const UNITS = 1000
const WIDTH = 560
const BOX = { left: 60, right: 500, bottom: 0, top: 520 }
const FIRST = 0x21
const LAST = 0x2fff

const u16 = (...values) => Buffer.concat(values.map((value) => Buffer.from([(value >> 8) & 255, value & 255])))
const u32 = (...values) => u16(...values.flatMap((value) => [value >>> 16, value & 0xffff]))
const bytes = (...values) => Buffer.from(values)
const zeros = (count) => Buffer.alloc(count)

/** Glyph 0 and 1 are the box, glyph 2 is empty. */
function glyph() {
  const { left, right, bottom, top } = BOX
  const ons = bytes(1, 1, 1, 1)
  const x = u16(left, 0, right - left, 0)
  const y = u16(bottom, top - bottom, 0, bottom - top)
  return Buffer.concat([u16(1, left, bottom, right, top, 3, 0), ons, x, y, zeros(2)])
}

/** Characters to glyphs, format 4: spaces to the empty one, everything else to the box. */
function characters() {
  const spaces = [0x20, 0xa0]
  const segments = [[0x20, 0x20], [FIRST, LAST], [0xffff, 0xffff]]
  const glyphs = Array.from({ length: LAST - FIRST + 1 }, (_, at) => (spaces.includes(FIRST + at) ? 2 : 1))
  const count = segments.length
  // The second segment reads its glyphs from the table, which begins two entries after its own offset.
  const body = Buffer.concat([
    u16(count * 2, 4, 1, count * 2 - 4), u16(...segments.map((each) => each[1])), zeros(2), u16(...segments.map((each) => each[0])),
    u16((2 - 0x20) & 0xffff, 0, 1), u16(0, 4, 0), u16(...glyphs),
  ]) // prettier-ignore
  const table = Buffer.concat([u16(4, body.length + 6, 0), body])
  return Buffer.concat([u16(0, 1, 3, 1), u32(12), table])
}

function names() {
  const text = ["Foretrace Boxes", "Regular", "Foretrace Boxes 1", "Foretrace Boxes", "Version 1", "ForetraceBoxes"]
  const ids = [1, 2, 3, 4, 5, 6]
  const stored = text.map((each) => Buffer.from(each, "utf16le").swap16())
  let offset = 0
  const records = stored.map((each, at) => {
    const record = u16(3, 1, 0x409, ids[at], each.length, offset)
    offset += each.length
    return record
  })
  return Buffer.concat([u16(0, records.length, 6 + records.length * 12), ...records, ...stored])
}

function tables() {
  const box = glyph()
  const padded = Buffer.concat([box, zeros((4 - (box.length % 4)) % 4)])
  const os2 = Buffer.concat([
    u16(4, WIDTH, 400, 5, 0), u16(650, 600, 0, 75, 650, 600, 0, 350, 50, 300, 0), zeros(10), u32(1, 0, 0, 0), Buffer.from("FTRC"),
    u16(0x40, 0x20, LAST, 800, (-200) & 0xffff, 0, 900, 250), u32(1, 0), u16(520, 700, 0, 0x20, 1),
  ]) // prettier-ignore
  return {
    "OS/2": os2,
    cmap: characters(),
    glyf: Buffer.concat([padded, padded]),
    head: Buffer.concat([u32(0x10000, 0x10000, 0, 0x5f0f3cf5), u16(3, UNITS), zeros(16), u16(BOX.left, BOX.bottom, BOX.right, BOX.top, 0, 8, 2, 1, 0)]),
    hhea: Buffer.concat([u32(0x10000), u16(900, (-250) & 0xffff, 0, WIDTH, BOX.left, WIDTH - BOX.right, BOX.right, 1, 0, 0), zeros(8), u16(0, 3)]),
    hmtx: u16(WIDTH, BOX.left, WIDTH, BOX.left, WIDTH, 0),
    loca: u32(0, padded.length, padded.length * 2, padded.length * 2),
    maxp: Buffer.concat([u32(0x10000), u16(3, 4, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0)]),
    name: names(),
    post: Buffer.concat([u32(0x30000, 0), u16((-100) & 0xffff, 50), zeros(20)]),
  }
}

const checksum = (data) => {
  let sum = 0
  for (let at = 0; at < data.length; at += 4) sum = (sum + Buffer.concat([data.subarray(at, at + 4), zeros(4)]).readUInt32BE(0)) >>> 0
  return sum
}

export function boxFont() {
  const parts = Object.entries(tables())
  const log = Math.floor(Math.log2(parts.length))
  const head = Buffer.concat([u32(0x10000), u16(parts.length, 16 << log, log, (parts.length - (1 << log)) * 16)])
  let offset = head.length + parts.length * 16
  const records = []
  const bodies = []
  for (const [tag, data] of parts) {
    records.push(Buffer.concat([Buffer.from(tag), u32(checksum(data), offset, data.length)]))
    const padded = Buffer.concat([data, zeros((4 - (data.length % 4)) % 4)])
    bodies.push(padded)
    offset += padded.length
  }
  const font = Buffer.concat([head, ...records, ...bodies])
  const at = font.readUInt32BE(head.length + parts.findIndex(([tag]) => tag === "head") * 16 + 8)
  font.writeUInt32BE((0xb1b0afba - checksum(font)) >>> 0, at + 8)
  return font
}

/** Runs in the page before anything else: every text in boxes. */
export function drawInBoxes(base64) {
  const font = new FontFace("Foretrace Boxes", Uint8Array.from(atob(base64), (each) => each.charCodeAt(0)))
  document.fonts.add(font)
  window.boxesReady = font.load().then(() => true, (error) => String(error))
  const sheet = new CSSStyleSheet()
  sheet.replaceSync(`:root { --font: "Foretrace Boxes" !important; --mono: "Foretrace Boxes" !important } * { font-family: "Foretrace Boxes" !important }`)
  document.adoptedStyleSheets = [sheet]
}
