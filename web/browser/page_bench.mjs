/**
 * Times the page in Chromium and prints one JSON object: `node browser/page_bench.mjs APP spans COUNT` (a generated
 * timeline of COUNT spans in 54 rows), `... APP open URL` (a page of a running server), `... APP ranks URL` (the Ranks page of one), or
 * `... APP cold PAGE COMMAND...` (a page of a server that COMMAND starts).
 *
 * The page is the built one, driven by the events that a hand would make; frames are what the compositor was given.
 */
import { spawn } from "node:child_process"
import { readFileSync } from "node:fs"
import { createServer } from "node:http"
import { extname, join } from "node:path"
import { gzipSync } from "node:zlib"
import { inBrowser, quantile, rendererBytes, spentOf } from "./bench_browser.mjs"
import { benchRanks } from "./ranks_bench.mjs"

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css" }

// ---- a generated timeline ----------------------------------------------------------------------------------

/** group, title, rows, kinds, share of time that is busy */
const TRACKS = [
  ["gpu", "GPU 0", 4, [0, 2, 3, 4], 0.9],
  ["gpu", "GPU 0", 2, [6, 7], 0.1],
  ["modules", "GPU 0", 6, [10, 11], 0.95],
  ["host", "Host", 12, [10, 11, 12], 0.8],
  ["host", "Host", 10, [10, 11], 0.5],
  ["python", "Python", 20, [13], 0.9],
]
const NAMES = 500

function random(seed) {
  return () => (seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0) / 2 ** 32
}

function makePayload(count) {
  const rows = TRACKS.reduce((sum, track) => sum + track[2], 0)
  const each = Math.floor(count / rows)
  const next = random(7)
  const gap = new Uint32Array(each * rows)
  const dur = new Uint32Array(each * rows)
  const name = new Uint16Array(each * rows)
  const kind = new Uint8Array(each * rows)
  let at = 0
  let longest = 0
  const tracks = TRACKS.map(([group, title, lanes, kinds, busy], number) => {
    const placed = []
    for (let lane = 0; lane < lanes; lane++) {
      placed.push({ offset: at, count: each })
      let from = 0
      let last = 0
      for (let span = 0; span < each; span++, at++) {
        const chance = next()
        dur[at] = Math.floor(1000 + 9000 * chance * chance + (chance > 0.999 ? 400000 : 0))
        gap[at] = from - last
        last = from
        from += Math.floor(dur[at] / (busy * (0.6 + 0.8 * next()))) + (span % 5000 === 0 ? 300000 : 0)
        from = Math.max(from, last + dur[at])
        name[at] = Math.floor(next() * NAMES)
        kind[at] = kinds[name[at] % kinds.length]
      }
      longest = Math.max(longest, from)
    }
    return { group, title, subtitle: `${group} ${number}`, rows: placed }
  })
  return packTimeline({ at, longest, tracks, gap, dur, name, kind })
}

function packTimeline({ at, longest, tracks, gap, dur, name, kind }) {
  const points = 8192
  const time = Float64Array.from({ length: points }, (_, point) => (longest * point) / points)
  const value = Float32Array.from({ length: points }, (_, point) => 50 + 50 * Math.sin(point / 37))
  const header = {
    from_ns: 0, to_ns: longest, tiled: false, spans_count: at, names: Array.from({ length: NAMES }, (_, number) => `kernel_number_${number}`), tracks,
    counters: ["GPU busy", "Launch queue", "Memory"].map((title) => ({ title, unit: "pct", says: title, most: 100 })),
    steps: Array.from({ length: 20 }, (_, step) => ({ step, from_ns: (longest * step) / 20, to_ns: (longest * (step + 1)) / 20, gpu_from_ns: (longest * step) / 20, gpu_to_ns: (longest * (step + 1)) / 20, host_from_ns: (longest * step) / 20, host_to_ns: (longest * (step + 1)) / 20 })),
    minimap: { kinds: ["gemm", "elem"], columns: Array.from({ length: 600 }, (_, column) => [0.4 + 0.2 * Math.sin(column), 0.2]) },
  } // prettier-ignore
  // In the order of `timeline?findings=no`, which is what the page asks for first.
  return pack(header, [
    ["start", "u32", "gaps", shuffled(gap)],
    ["dur", "u32", "shuffled", shuffled(dur)],
    ["kind", "u8", "raw", kind],
    ...[0, 1, 2].flatMap((counter) => [
      [`counter:${counter}:at`, "f64", "raw", new Uint8Array(time.buffer)],
      [`counter:${counter}:value`, "f32", "raw", new Uint8Array(value.buffer)],
    ]),
    ["name", "u16", "shuffled", shuffled(name)],
    ["id", "u8", "steps", Uint8Array.from({ length: at }, (_, span) => (span * 7) % 80 + 1)],
  ])
}

function shuffled(values) {
  const width = values.BYTES_PER_ELEMENT
  const bytes = new Uint8Array(values.buffer)
  const out = new Uint8Array(bytes.length)
  for (let byte = 0; byte < width; byte++) {
    for (let index = 0, to = byte * values.length; index < values.length; index++, to++) out[to] = bytes[index * width + byte]
  }
  return out
}

const WIDTHS = { u8: 1, u16: 2, u32: 4, f32: 4, f64: 8 }

function pack(header, columns) {
  let offset = 0
  const places = columns.map(([name, type, encoding, bytes]) => {
    const place = { name, type, encoding, length: bytes.length / WIDTHS[type], offset, bytes: bytes.length }
    offset += Math.ceil(bytes.length / 8) * 8
    return place
  })
  const head = Buffer.from(JSON.stringify({ header, columns: places }))
  const first = Math.ceil((12 + head.length) / 8) * 8
  const out = Buffer.alloc(first + offset)
  out.write("FTRP")
  out.writeUInt32LE(1, 4)
  out.writeUInt32LE(head.length, 8)
  head.copy(out, 12)
  columns.forEach(([, , , bytes], number) => out.set(bytes, first + places[number].offset))
  return out
}

// ---- the page ----------------------------------------------------------------------------------------------

function serve(app, payload, compress) {
  const run = { id: "bench", name: "bench", group: "bench", label: "bench", state: "ready", progress_pct: null, says: null, step_ms: null }
  const runs = JSON.stringify({ schema: 1, foretrace: "bench", embedded: false, runs: [run] })
  const body = compress ? gzipSync(payload, { level: 1 }) : payload
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url, "http://localhost")
    if (pathname === "/api/runs") return void response.end(runs)
    if (pathname === "/api/runs/bench/timeline") {
      response.writeHead(200, { "content-type": "application/octet-stream", "content-length": body.length, ...(compress ? { "content-encoding": "gzip" } : {}) })
      return void response.end(body)
    }
    if (pathname.startsWith("/api/")) return void response.writeHead(404).end("{}")
    const file = pathname === "/" ? "index.html" : pathname.slice(1)
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "text/plain" }).end(readFileSync(join(app, file)))
  })
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve({ server, url: `http://127.0.0.1:${server.address().port}`, sent: body.length })))
}

/** 120 frames: zoom in 10⁵ times, pan, zoom out, pan at 30 %. Returns the time between frames. */
function scriptedFrames() {
  const canvas = document.querySelector(".tl-tracks")
  const box = canvas.getBoundingClientRect()
  const wheel = (options) => canvas.dispatchEvent(new WheelEvent("wheel", { bubbles: true, cancelable: true, clientX: box.left + box.width * 0.37, clientY: box.top + 100, ...options }))
  const times = []
  return new Promise((resolve) => {
    let frame = 0
    const move = (now) => {
      times.push(now)
      if (frame >= 120) return resolve(times.slice(1).map((time, at) => time - times[at]))
      if (frame < 40) wheel({ ctrlKey: true, deltaY: -36 })
      else if (frame < 60) wheel({ shiftKey: true, deltaY: 60 })
      else if (frame < 90) wheel({ ctrlKey: true, deltaY: 44 })
      else wheel({ shiftKey: true, deltaY: frame % 2 ? 330 : -300 })
      frame++
      requestAnimationFrame(move)
    }
    requestAnimationFrame(move)
  })
}

const painted = () => {
  const mark = performance.getEntriesByName("timeline:painted")[0]
  return mark === undefined ? null : mark.startTime
}

async function benchSpans(app, count, compress) {
  const { server, url, sent } = await serve(app, makePayload(count), compress)
  try {
    return await inBrowser(async (page, process) => {
      await page.goto(`${url}/#/timeline`)
      await page.waitForFunction(painted, null, { timeout: 60000 })
      const firstPaint = await page.evaluate(painted)
      await page.waitForTimeout(1500)
      // Few spans have their names at once; many get them after the picture.
      const named = await page.evaluate(() => (performance.getEntriesByName("timeline:named")[0] ?? performance.getEntriesByName("timeline:painted")[0]).startTime)
      const spent = await spentOf(page)
      const before = (await spent()).ScriptDuration
      const intervals = await page.evaluate(scriptedFrames)
      const scriptMs = ((await spent()).ScriptDuration - before) * 1000
      await page.waitForTimeout(1000)
      return {
        spans: count, sent_bytes: sent, first_paint_ms: firstPaint, named_ms: named, frame_p50_ms: quantile(intervals, 0.5), frame_p95_ms: quantile(intervals, 0.95),
        frame_worst_ms: Math.max(...intervals), script_per_frame_ms: scriptMs / intervals.length, renderer_bytes: rendererBytes(process),
      } // prettier-ignore
    })
  } finally {
    server.closeAllConnections()
    server.close()
  }
}

/** When the page of a running server is usable: the Overview has its words, or the timeline its first picture. */
async function benchOpen(url) {
  return inBrowser(async (page) => {
    const began = performance.now()
    await page.goto(url)
    const usable = () => {
      const shown = document.querySelector("main h1, main h2") !== null && document.querySelector("main .loading, main progress") === null
      const html = performance.getEntriesByType("navigation")[0].responseEnd
      const mark = performance.getEntriesByName("timeline:painted")[0]
      if (location.hash.startsWith("#/timeline")) return mark === undefined ? null : { html, at: mark.startTime }
      return shown ? { html, at: performance.now() } : null
    }
    const found = await (await page.waitForFunction(usable, null, { timeout: 120000, polling: "raf" })).jsonValue()
    return { usable_ms: found.at - found.html, wall_ms: performance.now() - began }
  })
}

/**
 * A recording that was never read: from the start of `foretrace serve`, in a browser that is already open, to the first
 * spans or words, and to the findings.
 */
async function benchCold(hash, command) {
  return inBrowser(async (page) => {
    const began = performance.now()
    const child = spawn(command[0], command.slice(1), { stdio: ["ignore", "pipe", "inherit"], env: { ...process.env, PYTHONUNBUFFERED: "1" } })
    try {
      const url = await addressOf(child)
      const served = performance.now()
      await page.goto(`${url}#/${hash}`)
      const first = hash === "timeline" ? painted : () => document.querySelector("main .overview") !== null
      await page.waitForFunction(first, null, { timeout: 120000, polling: "raf" })
      const shown = performance.now()
      await page.waitForFunction(() => document.querySelector('nav a[href^="#/findings"] .count') !== null, null, { timeout: 120000, polling: "raf" })
      return { served_ms: served - began, shown_ms: shown - began, findings_ms: performance.now() - began }
    } finally {
      child.kill()
    }
  })
}

/** What the server prints when it listens. */
function addressOf(child) {
  return new Promise((resolve, reject) => {
    let said = ""
    child.stdout.on("data", (piece) => {
      said += piece
      const found = /http:\/\/\S+/.exec(said)
      if (found) resolve(found[0])
    })
    child.on("exit", () => reject(new Error(`foretrace serve did not start: ${said}`)))
  })
}

const [app, what, argument, ...command] = process.argv.slice(2)
const results = {
  cold: () => benchCold(argument, command),
  spans: () => benchSpans(app, Number(argument), false),
  "spans-gzip": () => benchSpans(app, Number(argument), true),
  open: () => benchOpen(argument),
  ranks: () => benchRanks(argument),
}
if (results[what] === undefined) {
  console.error("usage: node browser/page_bench.mjs APP spans COUNT | APP spans-gzip COUNT | APP open URL | APP ranks URL | APP cold PAGE COMMAND...")
  process.exitCode = 2
} else console.log(JSON.stringify(await results[what]()))
