/** Memory snapshots on the page: peak, curve with zoom, a block's stack, leaks, comparison; the same from a report. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { addAxe, inBothThemes } from "./axe.mjs"
import { SETTINGS, WHOLE_ONLY, addressOf, at, eventually, noSidewaysScroll, parameter, until, useBrowser, withPage } from "./harness.mjs"

const browser = await useBrowser()
const REPORT = String(pathToFileURL(SETTINGS.snapshotReport))
const CLEAN = /could not be loaded|undefined|\bNaN\b|\[object/

async function readSnapshot(page) {
  await eventually(async () => {
    const text = await page.locator("main").innerText()
    assert.doesNotMatch(text, CLEAN)
    // 8 MiB of parameters, 16 MiB of the forward pass and 2 MiB of each of five steps.
    for (const wanted of ["34.0 MiB at", "64.0 MiB at", "train.py:57 remember", "Each step keeps 2.00 MiB more", "Fragmentation"]) assert.ok(text.includes(wanted), wanted)
  })
  assert.equal(await page.evaluate(() => window.hacked), undefined)
}

describe("memory snapshot", () => {
  test("served: a drag zooms in, F shows all again", () => withPage(browser, addressOf(at("overview", "memory_before")), async (page) => {
    await readSnapshot(page)
    assert.deepEqual(await page.locator("nav li a[aria-keyshortcuts]").allInnerTexts(), ["Memory", "Compare"])
    const box = await page.locator(".curve canvas").boundingBox()
    await page.mouse.move(box.x + 200, box.y + 80)
    await page.mouse.down()
    await page.mouse.move(box.x + 320, box.y + 80, { steps: 4 })
    await page.mouse.up()
    await until(async () => (await parameter(page, "zoom")) !== null, "the zoom in the address")
    await page.locator(".curve").focus()
    await page.keyboard.press("p")
    await page.keyboard.press("f")
    await until(async () => (await parameter(page, "zoom")) === null, "all of it")
  }))

  test("a block has its stack, as text", () => withPage(browser, addressOf(at("snapshot", "memory_before", "show=block")), async (page) => {
    await page.locator(".blocks-and-stack tbody tr:not(.spacer)").first().click()
    await until(async () => /model\.py:12 forward[^]*train\.py:90/.test(await page.locator(".stack").first().innerText()), "the stack")
    assert.equal(await page.evaluate(() => window.hacked), undefined)
  }))

  test("two are compared by line", () => withPage(browser, addressOf(at("compare", "memory_before")), async (page) => {
    await until(async () => /train\.py:57 remember\s+10\.0 MiB\s+20\.0 MiB[^]*\+ 10\.0 MiB/.test(await page.locator("main").innerText()), "the line that keeps more")
    assert.doesNotMatch(await page.locator("main").innerText(), CLEAN)
  }))

  test("axe finds nothing serious, light and dark", WHOLE_ONLY, () => withPage(browser, addressOf(at("snapshot", "memory_before", "show=block")), async (page) => {
    await addAxe(page)
    await page.locator(".stack").first().waitFor()
    assert.deepEqual(await inBothThemes(page), {})
  }, { bypassCSP: true }))

  test("a report from file:// shows the same, offline, also in a narrow window", () => withPage(browser, `${REPORT}#/snapshot?run=1`, async (page) => {
    await readSnapshot(page)
    await page.setViewportSize({ width: 800, height: 900 })
    await noSidewaysScroll(page)
  }, { offline: true }))
})
