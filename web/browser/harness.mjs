/** What every browser test needs: the server, a page that must not complain, and ways to wait for it. */
import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { after } from "node:test"
import { chromium } from "playwright-core"
import { isThere } from "./recordings.mjs"

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"] // prettier-ignore
export const EXECUTABLE = process.env.FORETRACE_CHROMIUM ?? "/usr/bin/chromium"
const READY_S = 300
/** For hangs alone: a state that comes is waited for on a machine of any speed. */
export const WAIT_MS = 60_000

/** Given by run.mjs: the server's address with its token, its runs by name, the report's file. */
export const SETTINGS = JSON.parse(process.env.FORETRACE_BROWSER ?? "null")

/** Recordings that `npm run browser:core` opens: with kernels, without, and one that fills every page. */
const CORE = ["naive_attention", "recompile_cpu", "made_rank0"]

/** Options of a test of one recording, which may be absent or belong to the whole run alone. */
export const testsOf = (recording) => isThere(recording) ? (CORE.includes(recording.run) ? {} : WHOLE_ONLY) : { skip: `not here: ${recording.path}` }

/** Options of a test that only `npm run browser` runs, and not `npm run browser:core`. */
export const WHOLE_ONLY = { skip: SETTINGS?.core === true && "in the whole run: npm run browser" }

export const launch = () => chromium.launch({ executablePath: EXECUTABLE, args: FLAGS, timeout: WAIT_MS })

/** A browser that several processes drive. */
export const launchServer = () => chromium.launchServer({ executablePath: EXECUTABLE, args: FLAGS, timeout: WAIT_MS })

/** The browser that all test files share. */
export async function useBrowser() {
  assert.ok(SETTINGS, "start these tests with: npm run browser")
  const browser = await chromium.connect(SETTINGS.browser, { timeout: WAIT_MS })
  after(() => browser.close())
  return browser
}

/** Starts `foretrace serve`; `ready` waits until it has read everything and gives the runs by name. */
export async function startServer(command, paths) {
  const child = spawn(command[0], [...command.slice(1), "serve", ...paths], { stdio: ["ignore", "pipe", "inherit"] })
  const url = await new Promise((resolve, reject) => {
    child.stdout.on("data", (data) => resolve(String(data).trim()))
    child.on("error", reject)
    child.on("exit", (code) => reject(new Error(`foretrace serve ended with ${code}`)))
  })
  return { url, ready: () => readyRuns(url), stop: () => child.kill("SIGINT") }
}

async function readyRuns(url) {
  const cookie = (await fetch(url, { redirect: "manual" })).headers.get("set-cookie").split(";")[0]
  const deadline = Date.now() + READY_S * 1000
  for (;;) {
    const { runs } = await (await fetch(new URL("api/runs", url), { headers: { cookie } })).json()
    const failed = runs.filter((run) => run.state === "failed")
    if (failed.length) throw new Error(`could not be read: ${failed.map((run) => `${run.name}: ${run.says}`).join("; ")}`)
    if (runs.every((run) => run.state === "ready")) return Object.fromEntries(runs.map((run) => [run.name, run.id]))
    if (Date.now() > deadline) throw new Error(`not read after ${READY_S} s: ${runs.filter((run) => run.state !== "ready").map((run) => run.name)}`)
    await new Promise((resolve) => setTimeout(resolve, 200))
  }
}

/** The fragment of a page for a recording: `at("timeline", "rank0", "t=1-2ms")`. */
export function at(view, run, query = "") {
  const id = SETTINGS.runs[run]
  assert.ok(id, `no run is called ${run}`)
  return `#/${view}?${query ? `${query}&` : ""}run=${id}`
}

/** The whole address of a fragment, with the token. */
export const addressOf = (fragment) => `${SETTINGS.url}${fragment}`

/** Pages that no test uses now, by the options of their profile: a new page costs as much as what a test does on it. */
const idle = new Map()

async function takePage(browser, options) {
  const key = JSON.stringify(options)
  const page = idle.get(key)?.pop() ?? (await (await browser.newContext(options)).newPage())
  page.setDefaultTimeout(WAIT_MS)
  return page
}

/** Forgets what a test left on a page and in its profile. */
async function putPage(page, options) {
  await page.evaluate(() => localStorage.clear())
  await page.unrouteAll({ behavior: "wait" })
  await page.emulateMedia({ media: null, colorScheme: options.colorScheme ?? "light", forcedColors: "none" })
  await page.setViewportSize(options.viewport)
  await page.mouse.move(0, 0)
  await page.goto("about:blank")
  page.removeAllListeners()
  const key = JSON.stringify(options)
  idle.set(key, [...(idle.get(key) ?? []), page])
}

/** Collects what a page complains of. */
function complaintsOf(page) {
  const complaints = []
  page.on("pageerror", (error) => complaints.push(`uncaught: ${error.message}`))
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(`console: ${message.text()}`))
  page.on("response", (response) => response.status() >= 400 && complaints.push(`${response.status()} ${response.url().split("?")[0]}`))
  page.on("dialog", (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  return complaints
}

/** Opens an address, hands the page to `use`, and fails if the page complained meanwhile. */
export async function withPage(browser, address, use, { forgiven = /^$/, ...more } = {}) {
  const options = { viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", ...more }
  const page = await takePage(browser, options)
  const complaints = complaintsOf(page)
  try {
    await page.goto(address)
    await shown(page)
    await use(page, page.context())
    assert.deepEqual(complaints.filter((complaint) => !forgiven.test(complaint)), [], "the page complained")
  } catch (error) {
    await page.context().close()
    throw error
  }
  await putPage(page, options)
}

/** Waits until `probe` returns something true, and returns that. */
export async function until(probe, what) {
  const deadline = Date.now() + WAIT_MS
  for (;;) {
    const value = await probe()
    if (value) return value
    if (Date.now() > deadline) assert.fail(`timed out waiting for ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

/** Repeats `check`, which asserts something about the page, until it holds: the page changes some frames after it was acted on. */
export async function eventually(check) {
  const deadline = Date.now() + WAIT_MS
  for (;;) {
    try {
      return await check()
    } catch (error) {
      if (!(error instanceof assert.AssertionError) || Date.now() > deadline) throw error
    }
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

/** Resolves once the page has drawn two more frames. */
export const framesDrawn = (page) => page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))))

/** Waits until the view that the address names has its data, or says why it has none. */
export async function shown(page) {
  const there = () => {
    const main = document.getElementById("main")
    if (main === null || main.querySelector("h1, h2") === null || main.querySelector(".loading, progress, [aria-busy=true]") !== null) return false
    const [view] = location.hash.split("?")
    const link = [...document.querySelectorAll("nav a[aria-keyshortcuts]")].find((each) => each.getAttribute("href").split("?")[0] === view)
    return (!link || link.ariaCurrent === "page") && main.innerText.trim().length > 10
  }
  await until(() => page.evaluate(there), "the page's content")
  await framesDrawn(page)
}

/** Waits until the address names a view and the page shows it. */
export async function opened(page, view) {
  await until(async () => (await viewOf(page)) === view, `the page ${view}`)
  await shown(page)
}

/** Presses the key of a view, one of PAGES, and waits until the page shows it. */
export async function open(page, view) {
  await page.keyboard.press(view.key)
  await opened(page, view.name)
}

/** Words of the page once they are other than `before`. */
export const changed = (locator, before, what) => until(async () => {
  const text = (await locator.innerText()).trim()
  return text !== "" && text !== before ? text : null
}, what)

export const hashOf = (page) => page.evaluate(() => decodeURIComponent(location.hash))
export const viewOf = async (page) => /^#\/(\w*)/.exec(await hashOf(page))?.[1]
export const parameter = async (page, name) => new URLSearchParams((await page.evaluate(() => location.hash)).split("?")[1] ?? "").get(name)

/** `t=FROM-TOms` of the address, as numbers; null where there is none. */
export async function timeShown(page, name = "t") {
  const found = /^(-?[\d.]+)-(-?[\d.]+)(?:ms)?$/.exec((await parameter(page, name)) ?? "")
  return found ? { from: Number(found[1]), to: Number(found[2]) } : null
}

/** Waits until the address has come to rest with `t` in it, after an action that moves the timeline. */
export async function moved(page, before) {
  const same = (one, other) => one !== null && other !== null && one.from === other.from && one.to === other.to
  return until(async () => {
    const now = await timeShown(page)
    return now !== null && !same(now, before) ? now : null
  }, "the timeline to move")
}

/** Waits until nothing is wider than the window. */
export async function noSidewaysScroll(page) {
  await eventually(async () => {
    const beyond = await page.evaluate(() => {
      const wide = document.documentElement.clientWidth
      const main = document.getElementById("main")
      return { page: document.documentElement.scrollWidth - wide, main: main === null ? 0 : main.scrollWidth - main.clientWidth }
    })
    assert.ok(beyond.page <= 0 && beyond.main <= 1, `scrolls sideways: page by ${beyond.page} px, main by ${beyond.main} px`)
  })
}
