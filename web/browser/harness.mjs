/** What every browser test needs: the server, a page that must not complain, and ways to wait for it. */
import assert from "node:assert/strict"
import { spawn } from "node:child_process"
import { after } from "node:test"
import { chromium } from "playwright-core"

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"] // prettier-ignore
export const EXECUTABLE = process.env.FORETRACE_CHROMIUM ?? "/usr/bin/chromium"
const READY_S = 120
const WAIT_MS = 15_000

/** Given by run.mjs: the server's address with its token, its runs by name, the report's file. */
export const SETTINGS = JSON.parse(process.env.FORETRACE_BROWSER ?? "null")

export const launch = () => chromium.launch({ executablePath: EXECUTABLE, args: FLAGS })

/** A browser for one test file. */
export async function useBrowser() {
  assert.ok(SETTINGS, "start these tests with: npm run browser")
  const browser = await launch()
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

/** Opens an address in a fresh profile, hands the page to `use`, and fails if the page complained meanwhile. */
export async function withPage(browser, address, use, { forgiven = /^$/, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", ...options })
  const page = await context.newPage()
  page.setDefaultTimeout(WAIT_MS)
  const complaints = []
  page.on("pageerror", (error) => complaints.push(`uncaught: ${error.message}`))
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(`console: ${message.text()}`))
  page.on("response", (response) => response.status() >= 400 && complaints.push(`${response.status()} ${response.url().split("?")[0]}`))
  page.on("dialog", (dialog) => {
    complaints.push(`dialog: ${dialog.message()}`)
    void dialog.dismiss()
  })
  try {
    await page.goto(address)
    await shown(page)
    await use(page, context)
    assert.deepEqual(complaints.filter((each) => !forgiven.test(each)), [], "the page complained")
  } finally {
    await context.close()
  }
}

/** Waits until `probe` gives something true, and gives that. */
export async function until(probe, what, wait = WAIT_MS) {
  const deadline = Date.now() + wait
  for (;;) {
    const found = await probe()
    if (found) return found
    if (Date.now() > deadline) assert.fail(`waited in vain for: ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 25))
  }
}

/** Waits until the view has its data, or says why it has none. */
export async function shown(page) {
  const there = () => {
    const main = document.getElementById("main")
    return main !== null && main.querySelector("h1, h2") !== null && main.querySelector(".loading, progress, [aria-busy=true]") === null && main.innerText.trim().length > 10
  }
  await until(() => page.evaluate(there), "the page's content")
  // A view listens to keys once it has been painted.
  await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(resolve, 40)))))
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

/** The pixels of the page that a picture of it shows. */
export async function noSidewaysScroll(page) {
  const found = await page.evaluate(() => {
    const wide = document.documentElement.clientWidth
    const main = document.getElementById("main")
    return { page: document.documentElement.scrollWidth - wide, main: main === null ? 0 : main.scrollWidth - main.clientWidth }
  })
  assert.ok(found.page <= 0 && found.main <= 1, `scrolls sideways: page by ${found.page} px, main by ${found.main} px`)
}
