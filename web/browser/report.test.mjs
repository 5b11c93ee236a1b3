/** The report: one file, opened from disk without a network, with the same page in it. */
import assert from "node:assert/strict"
import { statSync } from "node:fs"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { SETTINGS, WAIT_MS, WHOLE_ONLY, moved, open, opened, parameter, shown, until, useBrowser, withPage } from "./harness.mjs"
import { MADE, OURS, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const FILE = String(pathToFileURL(SETTINGS.report))
const on = (fragment, use, options = {}) => withPage(browser, `${FILE}${fragment}`, use, { offline: true, ...options })

describe("report from file://, offline", () => {
  const all = [...OURS, MADE]
  all.forEach((recording, index) => {
    test(`${recording.name}: every page`, recording === MADE ? {} : WHOLE_ONLY, () => on(`#/overview?run=${index + 1}`, async (page) => {
      assert.equal(await page.locator("header.top strong").innerText(), recording.run)
      for (const view of PAGES) {
        await open(page, view)
        assert.doesNotMatch(await page.locator("main").innerText(), /could not be loaded|undefined|\bNaN\b|\[object/, view.name)
      }
      assert.match(await page.locator("nav footer").innerText(), /One file, no network/)
    }))
  })

  test("one request in all, and a script cannot make another", async () => {
    const context = await browser.newContext()
    const page = await context.newPage()
    const requests = []
    page.on("request", (request) => requests.push(request.url()))
    try {
      await page.goto(`${FILE}#/overview?run=1`)
      await shown(page)
      for (const view of PAGES) {
        await open(page, view)
      }
      assert.deepEqual(requests.map((url) => url.split("#")[0]), [FILE])
      const outcome = await page.evaluate(() => fetch("http://127.0.0.1:9/").then(() => "fetched", (error) => error.message))
      assert.match(outcome, /fetch|blocked|refused/i)
      const blocked = await page.evaluate((limit) => new Promise((resolve) => {
        addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective))
        const image = new Image()
        image.src = "http://127.0.0.1:9/x.png"
        setTimeout(() => resolve("nothing was blocked"), limit)
      }), WAIT_MS)
      assert.match(blocked, /img-src/)
      const inline = await page.evaluate(() => {
        const script = document.createElement("script")
        script.textContent = "window.ran = true"
        document.body.append(script)
        return window.ran ?? false
      })
      assert.equal(inline, false, "an inline script that is not the page's does not run")
    } finally {
      await context.close()
    }
  })

  test("deep links, keys, search and what-if work in it", () => on("#/timeline?t=1-3ms&run=1", async (page) => {
    const before = { from: 1, to: 3 }
    await page.keyboard.press("w")
    const closer = await moved(page, before)
    assert.ok(closer.to - closer.from < 2)
    await page.keyboard.press("/")
    await page.keyboard.type("softmax")
    await page.keyboard.press("Enter")
    await until(() => parameter(page, "span"), "a hit")
    await page.keyboard.press("Escape")
    await page.locator(".tl-toolbar [role=status]").waitFor({ state: "detached" })
    await open(page, PAGES[1])
    await page.locator(".finding-list input:not([disabled])").first().check()
    await until(async () => /ms|µs/.test(await page.locator(".what-if").innerText()), "a prediction that the file holds")
    await page.locator(".one-finding a", { hasText: "Show on timeline" }).click()
    await page.locator("canvas.tl-tracks").waitFor()
    await page.goBack()
    await page.locator(".one-finding").waitFor()
  }))

  test("a span whose details were left out says so", () => on("#/timeline?run=1", async (page) => {
    for (let step = 0; step < 12; step++) await page.keyboard.press(".")
    const words = await until(async () => {
      const text = await page.locator(".tl-span").innerText()
      return text.length > 20 && text
    }, "words about the span")
    assert.doesNotMatch(words, /undefined|NaN/)
  }))

  test("ranks and runs that it holds stand beside one another", () => on(`#/ranks?run=${OURS.length + 1}`, async (page) => {
    await until(async () => /^Framed: all_reduce, at which rank 1 arrived last, 1\.00 ms after rank 0/.test(await page.locator(".stack-says").innerText()), "the collective")
    assert.equal(await page.locator("table.heat tbody tr").count(), 2)
    assert.deepEqual(await page.locator(".rank-stack li a").allInnerTexts(), ["0", "1"])
    await page.keyboard.press("0")
    await opened(page, "compare")
    assert.match(await page.locator("main select").first().innerText(), /made_rank1/)
  }))

  test("its size is within the budget", () => assert.ok(statSync(SETTINGS.report).size < 25e6))
})
