/** What people ask of a recording: each answered within three clicks of the Overview. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { addressOf, at, parameter, shown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { QUESTIONS } from "./recordings.mjs"

const browser = await useBrowser()
const MOST_CLICKS = 3

/** Begins at the Overview, and counts what is clicked. */
const asking = (run, use) => withPage(browser, addressOf(at("overview", run)), async (page) => {
  let clicks = 0
  const click = async (target) => {
    clicks += 1
    await target.click()
  }
  const clickAt = async (x, y) => {
    clicks += 1
    await page.mouse.click(x, y)
  }
  await use(page, { click, clickAt })
  assert.ok(clicks >= 1 && clicks <= MOST_CLICKS, `${clicks} clicks`)
})

const pageLink = (page, title) => page.locator("#navigation > ul a", { hasText: title })
const details = (page) => page.locator(".tl-span")

/** The middle of a moment of a track on the screen, while the whole capture is in view. */
async function placeOf(page, track, ms, whole) {
  const canvas = await page.locator("canvas.tl-tracks").boundingBox()
  const label = await page.locator(".tl-label", { hasText: track }).boundingBox()
  return { x: canvas.x + (canvas.width * ms) / whole, y: label.y + 14 }
}

describe("why is the GPU idle between 102 and 104 ms?", () => {
  const answered = async (page) => {
    await until(async () => /aten::nonzero|nonzero/.test(await details(page).innerText()), "what the GPU waited for")
    const text = await details(page).innerText()
    assert.match(text, /Idle: host: operator/)
    assert.match(text, /2\.00 ms, from 102\.000 ms/)
    assert.match(text, /The host was inside an operator/)
    assert.match(text, /Launched by\s+cudaLaunchKernel/)
  }

  test("on the timeline: the gap itself is clicked", () => asking(QUESTIONS.run, async (page, { click, clickAt }) => {
    await click(pageLink(page, "Timeline"))
    await page.locator("canvas.tl-tracks").waitFor()
    await shown(page)
    const whole = Number(/of ([\d.]+)/.exec(await page.locator(".tl-toolbar").innerText())[1])
    const { x, y } = await placeOf(page, "GPU 0 idle", 103, whole)
    await clickAt(x, y)
    await answered(page)
  }))

  test("on the Waiting page: from the list of gaps to the timeline", () => asking(QUESTIONS.run, async (page, { click }) => {
    await click(pageLink(page, "Waiting"))
    await shown(page)
    assert.match(await page.locator(".waiting").innerText(), /GPU idle/)
    await click(page.locator(".waiting a", { hasText: /^102 ms$/ }))
    await page.locator("canvas.tl-tracks").waitFor()
    await answered(page)
  }))

  test("the host's span that it waited for is one click further", () => asking(QUESTIONS.run, async (page, { click }) => {
    await click(pageLink(page, "Waiting"))
    await shown(page)
    await click(page.locator(".waiting a", { hasText: /^102 ms$/ }))
    await answered(page)
    const gap = await parameter(page, "span")
    await click(page.locator(".tl-links button", { hasText: "waited for" }))
    await until(async () => (await parameter(page, "span")) !== gap, "the span that was waited for")
    await until(async () => /^nonzero/.test(await details(page).locator("h2").innerText()), "its details")
  }))
})

describe("the Waiting page", () => {
  test("holds idle causes, gaps, blocking calls, launches and the critical path", () => withPage(browser, addressOf(at("waiting", QUESTIONS.run)), async (page) => {
    assert.equal(await viewOf(page), "waiting")
    const titles = await page.locator(".waiting h2").allInnerTexts()
    assert.deepEqual(titles, ["Why the GPU was idle", "Longest gaps", "Blocking calls", "Launches", "Critical path"])
    assert.match(await page.locator(".waiting").innerText(), /cudaDeviceSynchronize/)
  }))

  test("an area of the timeline adds up to causes", () => withPage(browser, addressOf(at("timeline", QUESTIONS.run, "sel=101-105ms")), async (page) => {
    await page.locator(".tl-groups button", { hasText: "Idle" }).click()
    await until(async () => /1 idle gap, 50\.0 % idle/.test(await page.locator(".tl-area").innerText()), "the causes of the area")
    assert.match(await page.locator(".tl-area tbody").innerText(), /host: operator/)
  }))
})
