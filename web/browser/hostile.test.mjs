/** Hostile strings of a recording: shown as text on every page, served and in the report, and nothing of them runs. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { SETTINGS, addressOf, at, noSidewaysScroll, shown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { HOSTILE, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const RUN = Object.keys(SETTINGS?.runs ?? {}).find((name) => name.startsWith("hostile"))
const UNSEEN = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069]/

/** What a browser made of the page: nothing may come from the recording but text. */
const elements = (page) =>
  page.evaluate(() => ({
    hacked: window.hacked ?? null,
    images: document.querySelectorAll("img, iframe, object, embed, base, form[action]").length,
    scripts: [...document.scripts].filter((script) => script.type !== "application/gzip+base64").length,
    handlers: [...document.querySelectorAll("*")].filter((each) => [...each.attributes].some((attribute) => attribute.name.startsWith("on"))).length,
    links: [...document.querySelectorAll("a[href]")].filter((link) => !/^(#|https:\/\/|perfetto\/[0-9a-f]{12}$)/.test(link.getAttribute("href"))).map((link) => link.getAttribute("href")),
  }))

async function checkHarmless(page, view) {
  const found = await elements(page)
  assert.deepEqual(found, { hacked: null, images: 0, scripts: 1, handlers: 0, links: [] }, view)
  const text = await page.locator("body").innerText()
  const at = UNSEEN.exec(text)
  assert.equal(at === null ? "" : JSON.stringify(text.slice(Math.max(0, at.index - 30), at.index + 10)), "", `${view} shows characters that cannot be seen`)
  await noSidewaysScroll(page).catch((error) => assert.fail(`${view}: ${error.message}`))
}

const PLACES = { served: () => addressOf(at("overview", RUN)), "in the report": () => `${pathToFileURL(SETTINGS.hostileReport)}#/overview?run=1` }

for (const [place, address] of Object.entries(PLACES)) {
  describe(place, () => {
    test("every page shows them as text", () => withPage(browser, address(), async (page) => {
      assert.match(await page.title(), /hostile <img src=x/)
      for (const view of PAGES) {
        await page.keyboard.press(view.key)
        await until(async () => (await viewOf(page)) === view.name, view.name)
        await shown(page)
        await checkHarmless(page, view.name)
      }
    }))

    test("kernels and operators name them", () => withPage(browser, address(), async (page) => {
      for (const key of ["4", "5"]) {
        await page.keyboard.press(key)
        await shown(page)
        await page.locator("main tbody tr").first().waitFor()
        const text = await page.locator("main").innerText()
        assert.ok(text.includes("<script>window.hacked=1</script>"), "the tag is there to be read")
        assert.ok(text.includes("\\u202e"), "the bidi character is spelled out")
        assert.ok(text.includes("long_kernel<int,"))
        assert.ok(!text.includes(HOSTILE.long), "10 kB are not put into one cell")
      }
    }))

    test("timeline, details, tip, search and palette", () => withPage(browser, address(), async (page) => {
      await page.keyboard.press("3")
      await page.locator("canvas.tl-tracks").waitFor()
      await shown(page)
      for (const text of ["<script>", "long_", "\\u202e", "onload"]) {
        await page.keyboard.press("/")
        await page.locator("#search").fill(text)
        await checkHarmless(page, `search for ${text}`)
        await page.keyboard.press("Enter")
        await page.keyboard.press("Escape")
      }
      await page.keyboard.press(".")
      for (let step = 0; step < 24; step++) {
        await page.keyboard.press(step % 3 === 2 ? "ArrowDown" : ".")
        await checkHarmless(page, `span ${step}`)
      }
      const box = await page.locator("canvas.tl-tracks").boundingBox()
      for (let y = 20; y < box.height; y += 30) await page.mouse.move(box.x + box.width / 3, box.y + y)
      await checkHarmless(page, "tip")
      await page.keyboard.press("Control+k")
      await page.locator("dialog[open]").waitFor()
      await page.keyboard.type("hacked")
      await checkHarmless(page, "palette")
      await page.keyboard.press("Escape")
    }))
  })
}

describe("addresses", () => {
  const WORDS = "<img src=x onerror=window.hacked=8>"
  for (const fragment of [`#/${WORDS}`, `#/overview?run=${encodeURIComponent(WORDS)}`, `#/kernels?q=${encodeURIComponent(WORDS)}&sort=${encodeURIComponent(WORDS)}`,
    `#/findings?finding=${encodeURIComponent(WORDS)}&kernel=${encodeURIComponent(WORDS)}&factor=2`, "#/timeline?t=9e99-1e999ms&sel=--&span=-1&marks=a,b,NaN", "#/%", "#/kernels?q=%E0%A4%A"]) {
    test(`a link may hold anything: ${fragment.slice(0, 60)}`, async () => {
      const context = await browser.newContext()
      const page = await context.newPage()
      const uncaught = []
      page.on("pageerror", (error) => uncaught.push(error.message))
      try {
        await page.goto(addressOf(fragment))
        await shown(page)
        const { hacked, images } = await elements(page)
        assert.deepEqual({ hacked, images, uncaught }, { hacked: null, images: 0, uncaught: [] })
      } finally {
        await context.close()
      }
    })
  }
})

describe("copies", () => {
  test("a copied table stays a table, and cells do not become formulas or rows", () => withPage(browser, addressOf(at("kernels", RUN)), async (page) => {
    await page.locator("p.actions button", { hasText: "Markdown" }).first().click()
    const text = await until(() => page.evaluate(() => navigator.clipboard.readText()), "a copy")
    const lines = text.trim().split("\n").filter((line) => line.startsWith("|"))
    const cells = (line) => line.replaceAll("\\|", "").split("|").length
    assert.ok(lines.length >= 3)
    for (const line of lines) assert.equal(cells(line), cells(lines[0]), `another number of cells: ${line.slice(0, 120)}`)
  }, { permissions: ["clipboard-read", "clipboard-write"] }))
})
