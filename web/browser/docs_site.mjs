/**
 * The documentation site in a browser, offline: `node --test browser/docs_site.mjs`, with FORETRACE_SITE the folder that
 * scripts/build_docs.py wrote. Pages are opened as files, as from a copy on a disk; FORETRACE_SITE_PICTURES=FOLDER keeps pictures.
 */
import assert from "node:assert/strict"
import { existsSync, mkdirSync, readFileSync, readdirSync } from "node:fs"
import { createRequire } from "node:module"
import { join, resolve } from "node:path"
import { after, test } from "node:test"
import { fileURLToPath, pathToFileURL } from "node:url"
import { WAIT_MS, launch } from "./harness.mjs"

const SITE = resolve(process.env.FORETRACE_SITE ?? "")
assert.ok(process.env.FORETRACE_SITE && existsSync(join(SITE, "index.html")), "FORETRACE_SITE is the folder of a built site: python scripts/build_docs.py FOLDER")
const PICTURES = process.env.FORETRACE_SITE_PICTURES
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")
const SMALLEST_TEXT_PX = 14
/** One page of each kind: the first page, a tutorial, a guide page, a rule, a reference page. */
const KINDS = ["index.html", "tutorials/first-optimisation.html", "guide/try.html", "rules/host-sync.html", "reference/analyses/kernels.html"]
const SIZES = { wide: { width: 1440, height: 900 }, phone: { width: 390, height: 844 } }

const browser = await launch()
after(() => browser.close())

const addressOf = (page) => pathToFileURL(join(SITE, page)).href
/** The theme gives every page the same scripts, and the build has read what each page loads: these folders have one page in KINDS. */
const LEFT_OUT = /^(rules|reference|decisions|project)\//
const openedPages = () => readdirSync(SITE, { recursive: true })
  .filter((name) => name.endsWith(".html") && (KINDS.includes(name) || !LEFT_OUT.test(name)))

/** Opens pages in a fresh profile; fails on a request that leaves the site's folder, and on what a page complains of. */
async function withSite(options, use) {
  const context = await browser.newContext({ reducedMotion: "reduce", ...options })
  const complaints = []
  await context.route("**/*", (route) => {
    const url = route.request().url()
    const inside = url.startsWith("data:") || (url.startsWith("file:") && fileURLToPath(new URL(url)).startsWith(SITE))
    if (inside) return route.continue()
    complaints.push(`asks for ${url}`)
    return route.abort()
  })
  const page = await context.newPage()
  page.setDefaultTimeout(WAIT_MS)
  page.on("pageerror", (error) => complaints.push(`uncaught: ${error.message}`))
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && complaints.push(`console: ${message.text()}`))
  page.on("requestfailed", (request) => complaints.push(`failed: ${request.url()}`))
  try {
    await use(page)
    assert.deepEqual([...new Set(complaints)], [])
  } finally {
    await context.close()
  }
}

/** Violations that matter, each in one line; in the second theme only contrast can differ. */
async function violations(page, theme) {
  await page.addScriptTag({ content: AXE })
  const found = await page.evaluate(async (rules) => (await window.axe.run(document, { resultTypes: ["violations"], preload: false, ...rules })).violations,
    theme === "dark" ? { runOnly: ["color-contrast"] } : {}) // prettier-ignore
  return found.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.impact} ${each.id}: ${each.nodes.length} × ${each.nodes[0].html.slice(0, 160)} ${each.nodes[0].failureSummary?.split("\n")[1] ?? ""}`)
}

/** How much wider than the window the page is, and its smallest text outside of code. */
const measured = (page) => page.evaluate(() => {
  const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT)
  let smallest = Infinity
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement
    if (!node.textContent.trim() || !element.checkVisibility() || element.closest("pre, code, .headerlink, .visually-hidden")) continue
    smallest = Math.min(smallest, Number.parseFloat(getComputedStyle(element).fontSize))
  }
  return { beyond: document.documentElement.scrollWidth - window.innerWidth, smallest }
})

test("no page asks for anything outside of the site, and none complains", () => withSite({ viewport: { width: 400, height: 300 } }, async (page) => {
  const opened = openedPages()
  assert.ok(opened.length > 25 && KINDS.every((name) => opened.includes(name)), `${opened.length} pages`)
  for (const name of opened) await page.goto(addressOf(name))
}))

test("a request that leaves would be noticed", async () => {
  await assert.rejects(withSite({}, async (page) => {
    await page.goto(addressOf("index.html"))
    await page.evaluate(() => new Promise((done) => {
      const image = new Image()
      image.onerror = image.onload = done
      image.src = "https://example.invalid/a.png"
    }))
  }), /example\.invalid/)
})

/** What is wrong with pages at a size and in a theme, by page. */
async function faults(page, names, { axe, theme = "light" }) {
  const found = {}
  for (const name of names) {
    await page.goto(addressOf(name))
    const { beyond, smallest } = await measured(page)
    const wrong = axe ? await violations(page, theme) : []
    if (beyond > 0) wrong.push(`${beyond} px wider than the window`)
    if (smallest < SMALLEST_TEXT_PX) wrong.push(`text of ${smallest} px`)
    if (wrong.length) found[name] = wrong
    if (PICTURES) {
      const { width } = page.viewportSize()
      mkdirSync(PICTURES, { recursive: true })
      await page.screenshot({ path: join(PICTURES, `${name.replaceAll("/", "-").replace(".html", "")}-${width}-${theme}.png`) })
    }
  }
  return found
}

for (const theme of ["light", "dark"]) {
  test(`axe, width and size of text at 1440 px, ${theme}`, () => withSite({ viewport: SIZES.wide, colorScheme: theme, bypassCSP: true }, async (page) => {
    assert.deepEqual(await faults(page, KINDS, { axe: true, theme }), {})
  }))
  test(`the first page at 390 px, ${theme}: axe too`, () => withSite({ viewport: SIZES.phone, colorScheme: theme, bypassCSP: true }, async (page) => {
    assert.deepEqual(await faults(page, ["index.html"], { axe: true, theme }), {})
  }))
}

test("width and size of text at 390 px", () => withSite({ viewport: SIZES.phone }, async (page) => {
  assert.deepEqual(await faults(page, [...KINDS, "benchmarks.html"], { axe: false }), {})
}))

test("the search works from files", () => withSite({}, async (page) => {
  await page.goto(`${addressOf("search.html")}?q=tokenise`)
  await page.locator("#search-results li a").first().waitFor()
  const first = await page.locator("#search-results li a").first().getAttribute("href")
  assert.ok(existsSync(fileURLToPath(new URL(first.split(/[?#]/)[0], addressOf("search.html")))), first)
}))
