/**
 * How pages look: compared with pictures of them, drawn with a font of our own, so that they are the same everywhere.
 *
 * The pictures are of the report of the repository's own recordings, so they do not depend on what else is there.
 * `FORETRACE_PICTURES=write npm run browser -- look` writes them anew.
 */
import assert from "node:assert/strict"
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { describe, test } from "node:test"
import { pathToFileURL } from "node:url"
import { SETTINGS, addressOf, at, noSidewaysScroll, shown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { boxFont, drawInBoxes } from "./box_font.mjs"
import { decodePng, difference, encodePng, shrink } from "./picture.mjs"
import { MADE, OURS, PAGES, WEB } from "./recordings.mjs"

const browser = await useBrowser()
const BASELINE = join(WEB, "browser", "baseline")
const WRITE = process.env.FORETRACE_PICTURES === "write"
const SQUARE = 12 // 1440 × 900 becomes 120 × 75
const SLACK = 20 // of 255: edges are smoothed a little differently by each Chromium
const MOST = 0.01 // of all squares
const FONT = boxFont().toString("base64")

/** The shipped recording, and for what it lacks the one that has everything: they follow those of the repository. */
const RICH = ["modules", "memory", "roofline", "ranks", "compare"]
const inReport = (view) => `${pathToFileURL(SETTINGS.report)}#/${view}?run=${RICH.includes(view) ? OURS.length + 1 : 1}`

/** Opens a page of the report with every text in boxes. */
async function inBoxes(view, theme, use) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", colorScheme: theme, offline: true })
  try {
    await context.addInitScript(drawInBoxes, FONT)
    const page = await context.newPage()
    await page.goto(inReport(view))
    assert.equal(await page.evaluate(() => window.boxesReady), true)
    await shown(page)
    // What is drawn on a canvas may have been drawn before the font was there.
    await page.evaluate(() => dispatchEvent(new Event("resize")))
    await page.waitForTimeout(250)
    await use(page)
  } finally {
    await context.close()
  }
}

async function picture(page) {
  return shrink(decodePng(await page.screenshot({ caret: "hide" })), SQUARE)
}

async function matches(page, name) {
  const path = join(BASELINE, `${name}.png`)
  const now = await picture(page)
  if (WRITE) {
    mkdirSync(BASELINE, { recursive: true })
    writeFileSync(path, encodePng(now))
    return 0
  }
  assert.ok(existsSync(path), `no picture ${path}: FORETRACE_PICTURES=write npm run browser -- look`)
  const share = difference(now, decodePng(readFileSync(path)), SLACK)
  if (share > MOST) writeFileSync(join(tmpdir(), `foretrace-${name}.png`), await page.screenshot())
  return share
}

const percent = (share) => `${(share * 100).toFixed(1)} % of the picture differs, ${MOST * 100} % may`

for (const theme of ["light", "dark"]) {
  describe(`pictures, ${theme}`, () => {
    for (const view of PAGES) {
      test(view.title, () => inBoxes(view.name, theme, async (page) => {
        const share = await matches(page, `${view.name}-${theme}`)
        assert.ok(share <= MOST, percent(share))
      }))
    }
  })
}

describe("the comparison", () => {
  /** The difference of a page after something was done to it. */
  const after = async (view, change) => {
    let share = 0
    await inBoxes(view, "light", async (page) => {
      await page.evaluate(change)
      await page.waitForTimeout(100)
      share = difference(await picture(page), decodePng(readFileSync(join(BASELINE, `${view}-light.png`))), SLACK)
    })
    return share
  }

  test("does not depend on the fonts of the machine", () => inBoxes("overview", "light", async (page) => {
    const session = await page.context().newCDPSession(page)
    await session.send("DOM.enable")
    await session.send("CSS.enable")
    const { root } = await session.send("DOM.getDocument", { depth: 0 })
    const { nodeIds } = await session.send("DOM.querySelectorAll", { nodeId: root.nodeId, selector: "body *" })
    const fonts = new Set()
    for (const nodeId of nodeIds.slice(0, 400)) {
      const found = await session.send("CSS.getPlatformFontsForNode", { nodeId })
      for (const font of found.fonts) fonts.add(font.familyName)
    }
    assert.deepEqual([...fonts], ["Foretrace Boxes"])
  }))

  test("fails when a panel is gone, or the style", async () => {
    const changes = {
      "the waterfall is gone": ["overview", () => document.querySelector(".top-half").lastElementChild.remove()],
      "the side is gone": ["overview", () => document.querySelector("main aside").remove()],
      "the findings are gone": ["overview", () => document.querySelector(".finding-table").remove()],
      "the navigation is gone": ["overview", () => document.querySelector("nav").remove()],
      "there is no style": ["overview", () => document.querySelectorAll("style, link").forEach((each) => each.remove())],
      "the curve is gone": ["memory", () => document.querySelector("main canvas").remove()],
      "the roofs are gone": ["roofline", () => document.querySelector("main svg").remove()],
      "the heat map is gone": ["ranks", () => document.querySelector("main table").remove()],
      "the tracks are gone": ["timeline", () => document.querySelector("canvas.tl-tracks").remove()],
      "the panel is gone": ["timeline", () => document.querySelector(".tl-panel").remove()],
    }
    for (const [words, [view, change]] of Object.entries(changes)) {
      const share = await after(view, change)
      assert.ok(share > MOST, `${words}, and only ${percent(share)}`)
    }
  })
})

/** What the browser's zoom of 200 % does: half as many pixels of CSS, each twice as large. */
const ZOOMED = { viewport: { width: 720, height: 450 }, deviceScaleFactor: 2 }

describe("200 % zoom", () => {
  for (const recording of [...OURS, MADE]) {
    test(`${recording.name}: every page in one column, nothing to scroll sideways`, () => withPage(browser, addressOf(at("overview", recording.run)), async (page) => {
      for (const view of PAGES) {
        await page.evaluate((hash) => { location.hash = hash }, at(view.name, recording.run)) // prettier-ignore
        await until(async () => (await viewOf(page)) === view.name, view.name)
        await shown(page)
        await noSidewaysScroll(page).catch((error) => assert.fail(`${view.name}: ${error.message}`))
        // A drawing that shrinks with the window must not take its words along; 11 px of text are about 12 high.
        const small = await page.evaluate(() => [...document.querySelectorAll("main svg text")].filter((each) => !each.getAttribute("transform") && each.getBoundingClientRect().height < 11).map((each) => each.textContent))
        assert.deepEqual(small, [], `${view.name}: words too small to read`)
      }
    }, ZOOMED))
  }

  test("the Overview's columns stand below one another", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    const boxes = await Promise.all([".top-half > :first-child", ".top-half > :last-child", ".bottom-half > :first-child", ".bottom-half > aside"].map((each) => page.locator(each).boundingBox()))
    for (let each = 1; each < boxes.length; each++) assert.ok(boxes[each].y >= boxes[each - 1].y + boxes[each - 1].height - 1, `part ${each} stands beside the one before`)
  }, ZOOMED))

  test("the navigation opens over the page and closes", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    const button = page.locator("button.pages")
    assert.equal(await button.getAttribute("aria-expanded"), "false")
    await button.click()
    await page.locator("#navigation > ul a", { hasText: "Kernels" }).click()
    await until(async () => (await viewOf(page)) === "kernels", "kernels")
  }, ZOOMED))
})

describe("forced colours and print", () => {
  test("pages are drawn with the system's colours", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    await page.emulateMedia({ forcedColors: "active" })
    assert.ok((await page.locator("main").innerText()).length > 200)
    await page.emulateMedia({ forcedColors: "none", media: "print" })
    assert.equal(await page.locator("nav").isVisible(), false)
  }))
})
