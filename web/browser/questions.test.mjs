/** What people ask of a recording: each answered within three clicks of the Overview. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { addressOf, at, eventually, opened, parameter, timeShown, until, useBrowser, withPage } from "./harness.mjs"
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
const stops = (page) => page.locator(".tl-stops").innerText()
const details = (page) => page.locator(".tl-span")

/** The middle of a moment of a track on the screen, while the whole capture is in view. */
async function placeOf(page, track, ms, whole) {
  const canvas = await page.locator("canvas.tl-tracks").boundingBox()
  const label = await page.locator(".tl-label", { hasText: track }).boundingBox()
  return { x: canvas.x + (canvas.width * ms) / whole, y: label.y + 14 }
}

describe("how many tokens per second?", () => {
  test("the Overview says so without a click: 4 × 2,048 tokens in 51.1 ms", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    await eventually(async () => {
      assert.match(await page.locator(".gpu-tiles").innerText(), /Tokens, as recorded\s+160 k\/s/)
      assert.match(await page.locator("aside").innerText(), /8,192 tokens a step/)
    })
  }))
})

describe("why is the GPU idle between 102 and 104 ms?", () => {
  const answered = async (page) => {
    await eventually(async () => {
      const text = await details(page).innerText()
      assert.match(text, /nonzero/, "what the GPU waited for")
      assert.match(text, /Idle: host: operator/)
      assert.match(text, /2\.00 ms, from 102\.000 ms/)
      assert.match(text, /The host was inside an operator/)
      assert.match(text, /Launched by\s+cudaLaunchKernel/)
    })
  }

  test("on the timeline: the gap itself is clicked", () => asking(QUESTIONS.run, async (page, { click, clickAt }) => {
    await click(pageLink(page, "Timeline"))
    await opened(page, "timeline")
    const whole = Number((await until(async () => /of ([\d.]+)/.exec(await page.locator(".tl-toolbar").innerText()), "its length"))[1])
    const { x, y } = await placeOf(page, "GPU 0 idle", 103, whole)
    await clickAt(x, y)
    await answered(page)
  }))

  test("on the Waiting page: from the list of gaps to the timeline", () => asking(QUESTIONS.run, async (page, { click }) => {
    await click(pageLink(page, "Waiting"))
    await eventually(async () => assert.match(await page.locator(".waiting").innerText(), /GPU idle/))
    await click(page.locator(".waiting a", { hasText: /^102 ms$/ }))
    await page.locator("canvas.tl-tracks").waitFor()
    await answered(page)
  }))

  test("the host's span that it waited for is one click further", () => asking(QUESTIONS.run, async (page, { click }) => {
    await click(pageLink(page, "Waiting"))
    await click(page.locator(".waiting a", { hasText: /^102 ms$/ }))
    await answered(page)
    const gap = await parameter(page, "span")
    await click(page.locator(".tl-links button", { hasText: "waited for" }))
    await until(async () => (await parameter(page, "span")) !== gap, "the span that was waited for")
    await until(async () => /^nonzero/.test(await details(page).locator("h2").innerText()), "its details")
  }))
})

describe("which call launched this?", () => {
  test("from a kernel's name to a call, its launch in words, and to the launch", () => asking(QUESTIONS.run, async (page, { click }) => {
    await click(pageLink(page, "Kernels"))
    await click(page.locator(".data-table tbody a", { hasText: "gemm_3" }))
    await page.locator("canvas.tl-tracks").waitFor()
    await until(async () => /Launched\s+[\d.]+ ms earlier by cudaLaunchKernel/.test(await details(page).innerText()), "the launch in words")
    assert.match(await details(page).innerText(), /Step\s+12/, "a call in a middle step")
    await until(async () => /^3 of 5 calls of gemm_3/.test(await stops(page)), "which call it is")
    await click(page.locator(".tl-links button", { hasText: /^launch: cudaLaunchKernel/ }))
    await until(async () => (await details(page).locator("h2").innerText()) === "cudaLaunchKernel", "the call")
  }))
})

describe("where else does this finding occur?", () => {
  test("Show on timeline selects a span of a middle step and steps through the others", () => asking("naive_attention", async (page, { click }) => {
    await click(page.locator("a", { hasText: "Show on timeline" }).first())
    await page.locator("canvas.tl-tracks").waitFor()
    const first = await until(async () => /^(\d+) of (\d+) occurrences of finding 1: Attention is not fused/.exec(await stops(page)), "which one it is")
    // Twelve layers, three steps: those of the second are 13 to 24.
    assert.equal(first[2], "36")
    assert.ok(Number(first[1]) > 12 && Number(first[1]) <= 24, `${first[1]} is in the middle step`)
    await eventually(async () => assert.match(await details(page).innerText(), /Step\s+11/))
    const span = await parameter(page, "span")
    await click(page.locator(".tl-stops button[aria-label=Next]"))
    await until(async () => (await stops(page)).startsWith(`${Number(first[1]) + 1} of 36`), "the next")
    await until(async () => (await parameter(page, "span")) !== span, "another span")
    await click(page.locator(".tl-stops button[aria-label=Previous]"))
    await until(async () => (await parameter(page, "span")) === span, "the one before")
  }))

  test("the rest is dimmed until all is shown again", () => withPage(browser, addressOf(at("timeline", "naive_attention", "finding=1")), async (page) => {
    await page.locator(".tl-stops").waitFor()
    const strong = () => page.evaluate(() => {
      const canvas = document.querySelector("canvas.tl-tracks")
      const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
      copy.drawImage(canvas, 0, 0)
      const { data } = copy.getImageData(0, 0, canvas.width, canvas.height)
      let sum = 0
      for (let at = 0; at < data.length; at += 4) sum += Math.max(data[at], data[at + 1], data[at + 2]) - Math.min(data[at], data[at + 1], data[at + 2])
      return sum
    })
    const dimmed = await until(strong, "tracks that are drawn")
    await page.locator(".tl-stops button", { hasText: "show all" }).click()
    await until(async () => (await page.locator(".tl-stops").count()) === 0, "all of it")
    await until(async () => (await strong()) > dimmed * 1.05, "stronger colours")
    assert.equal(await parameter(page, "finding"), null)
  }))
})

describe("which step is odd, and why?", () => {
  test("the Overview marks it and says why; a click shows it on the timeline", () => asking(QUESTIONS.run, async (page, { click }) => {
    await eventually(async () => {
      assert.deepEqual((await page.locator(".step-time tr.odd th").allInnerTexts()).map((text) => /\d+$/.exec(text)?.[0]), ["13"])
      assert.match(await page.locator(".odd-step").innerText(), /Step 13 is 20\.0 ms longer than the median step of 40\.0 ms: 20\.0 ms more waiting for data/)
    })
    await click(page.locator(".odd-step a"))
    await page.locator("canvas.tl-tracks").waitFor()
    const area = await until(() => timeShown(page, "sel"), "the step as an area")
    assert.ok(Math.abs(area.to - area.from - 60) < 0.1, `${area.from}-${area.to}`)
  }))
})

describe("the Waiting page", () => {
  test("holds idle causes, gaps, blocking calls, launches and the critical path", () => withPage(browser, addressOf(at("waiting", QUESTIONS.run)), async (page) => {
    await eventually(async () => {
      const titles = await page.locator(".waiting h2").allInnerTexts()
      assert.deepEqual(titles, ["Why the GPU was idle", "Longest gaps", "Blocking calls", "Launches", "Critical path"])
      assert.match(await page.locator(".waiting").innerText(), /cudaDeviceSynchronize/)
    })
  }))

  test("an area of the timeline adds up to causes", () => withPage(browser, addressOf(at("timeline", QUESTIONS.run, "sel=101-105ms")), async (page) => {
    await page.locator(".tl-groups button", { hasText: "Idle" }).click()
    await until(async () => /1 idle gap, 50\.0 % idle/.test(await page.locator(".tl-area").innerText()), "the causes of the area")
    assert.match(await page.locator(".tl-area tbody").innerText(), /host: operator/)
  }))
})
