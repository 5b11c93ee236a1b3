/** Hostile strings of a recording: shown as text on every page, served and in the report, and nothing of them runs. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { SETTINGS, WHOLE_ONLY, addressOf, at, eventually, noSidewaysScroll, open, shown, until, useBrowser, withPage } from "./harness.mjs"
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
  describe(place, place === "served" ? {} : WHOLE_ONLY, () => {
    test("every page shows them as text", () => withPage(browser, address(), async (page) => {
      await eventually(async () => assert.match(await page.title(), /hostile <img src=x/))
      for (const view of PAGES) {
        await open(page, view)
        await checkHarmless(page, view.name)
      }
    }))

    test("kernels and operators name them", () => withPage(browser, address(), async (page) => {
      for (const view of PAGES.filter((view) => ["operators", "kernels"].includes(view.name))) {
        await open(page, view)
        await eventually(async () => {
          const text = await page.locator("main").innerText()
          assert.ok(text.includes("<script>window.hacked=1</script>"), "the tag is there to be read")
          assert.ok(text.includes("\\u202e"), "the bidi character is spelled out")
          assert.ok(text.includes("long_kernel<int,"))
          assert.ok(!text.includes(HOSTILE.long), "10 kB are not put into one cell")
        })
      }
    }))

    test("timeline, details, tip, search and palette", () => withPage(browser, address(), async (page) => {
      await open(page, PAGES.find((view) => view.name === "timeline"))
      for (const text of ["<script>", "long_", "\\u202e", "onload"]) {
        await page.keyboard.press("/")
        await page.locator("#search").fill(text)
        await page.locator("#search-choices li").first().waitFor()
        await checkHarmless(page, `search for ${text}`)
        await page.keyboard.press("Enter")
        await page.locator(".tl-toolbar [role=status]").waitFor()
        await page.keyboard.press("Escape")
        await page.locator(".tl-toolbar [role=status]").waitFor({ state: "detached" })
      }
      await page.keyboard.press(".")
      await page.locator(".tl-span dl dt").first().waitFor()
      for (let step = 0; step < 24; step++) {
        await page.keyboard.press(step % 3 === 2 ? "ArrowDown" : ".")
        await checkHarmless(page, `span ${step}`)
      }
      const box = await page.locator("canvas.tl-tracks").boundingBox()
      let y = 0
      await until(async () => {
        y = (y + 30) % box.height
        await page.mouse.move(box.x + box.width / 3, box.y + y)
        return page.locator(".tl-tip").isVisible()
      }, "a tip")
      await checkHarmless(page, "tip")
      await page.keyboard.press("Control+k")
      await page.locator("dialog[open]").waitFor()
      await page.keyboard.type("hacked")
      await page.locator("#palette-choices [role=option]").first().waitFor()
      await checkHarmless(page, "palette")
      await page.keyboard.press("Escape")
    }))
  })
}

describe("addresses", () => {
  const WORDS = "<img src=x onerror=window.hacked=8>"
  for (const fragment of [`#/${WORDS}`, `#/overview?run=${encodeURIComponent(WORDS)}`, `#/kernels?q=${encodeURIComponent(WORDS)}&sort=${encodeURIComponent(WORDS)}`,
    `#/findings?finding=${encodeURIComponent(WORDS)}&kernel=${encodeURIComponent(WORDS)}&factor=2`, "#/timeline?t=9e99-1e999ms&sel=--&span=-1&marks=a,b,NaN", "#/%", "#/kernels?q=%E0%A4%A"]) {
    test(`a link may hold anything: ${fragment.slice(0, 60)}`, () => withPage(browser, addressOf(fragment), async (page) => {
      const { hacked, images } = await elements(page)
      assert.deepEqual({ hacked, images }, { hacked: null, images: 0 })
    }, { forgiven: /^(console|\d+)/ }))
  }
})
