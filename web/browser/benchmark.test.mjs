/** Benchmarks on the page: pictures, table, comparison; the same from a report. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { SETTINGS, addressOf, at, eventually, opened, until, useBrowser, withPage } from "./harness.mjs"

const browser = await useBrowser()
const REPORT = String(pathToFileURL(SETTINGS.benchReport))
const CLEAN = /could not be loaded|undefined|\bNaN\b|\[object/

async function readBenchmark(page) {
  await eventually(async () => {
    const text = await page.locator("main").innerText()
    assert.doesNotMatch(text, CLEAN)
    for (const wanted of ["NVIDIA H200", "2026-11-16 22:58 UTC", "foretrace bench <script>", "With care", "1 OOM", "power cap"]) assert.ok(text.includes(wanted), wanted)
    assert.equal(await page.locator(".chart").count(), 2)
    assert.equal(await page.locator(".chart").first().locator("path.mark").count(), 5)
    assert.deepEqual(await page.locator(".chart").first().locator(".failed").allTextContents(), ["OOM"])
  })
  await page.locator(".chart .drawing").first().focus()
  await page.keyboard.press("Home")
  await eventually(async () => assert.match(await page.locator(".chart .values").innerText(), /seq_len 64[^]*d_model 32[^]*1\.31 ms \(1\.28–1\.34\)[^]*d_model 16/))
  assert.equal(await page.evaluate(() => window.hacked), undefined)
}

async function readComparison(page) {
  await page.keyboard.press("0")
  await opened(page, "compare")
  await eventually(async () => {
    const text = await page.locator("main").innerText()
    assert.doesNotMatch(text, CLEAN)
    assert.match(text, /Faster: 5 cases of attention: 5 faster/)
    assert.match(await page.locator(".whiskers").innerText(), /2\.00×.*faster/)
    assert.deepEqual(await page.locator("main select option").allInnerTexts(), ["sweep_after"])
  })
}

describe("benchmark", () => {
  test("served: trust, pictures with the values under the cursor, a table that sorts, two compared", () => withPage(browser, addressOf(at("overview", "sweep_before")), async (page) => {
    await readBenchmark(page)
    assert.deepEqual(await page.locator("nav li a[aria-keyshortcuts]").allInnerTexts(), ["Benchmark", "Compare"])
    const first = () => page.locator(".data-table tbody tr:not(.spacer)").first().locator("td").allInnerTexts()
    await page.locator("th", { hasText: "Median" }).getByRole("button").click()
    await until(async () => (await first())[4] === "168 ms", "the longest first")
    await readComparison(page)
  }))

  test("a report from file:// shows the same, offline", () => withPage(browser, `${REPORT}#/benchmark?run=1`, async (page) => {
    await readBenchmark(page)
    await readComparison(page)
  }, { offline: true }))
})
