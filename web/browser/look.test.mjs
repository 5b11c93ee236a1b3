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
import { SETTINGS, WHOLE_ONLY, addressOf, at, eventually, framesDrawn, noSidewaysScroll, opened, shown, until, useBrowser, withPage } from "./harness.mjs"
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
const IN_CORE = ["overview", "timeline"]
const RICH = ["modules", "memory", "roofline", "ranks", "compare"]
const inReport = (view) => `${pathToFileURL(SETTINGS.report)}#/${view}?run=${RICH.includes(view) ? OURS.length + 1 : 1}`

/** Opens a page of the report with every text in boxes. */
async function inBoxes(view, theme, use) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, reducedMotion: "reduce", colorScheme: theme, offline: true })
  try {
    await context.addInitScript(drawInBoxes, FONT)
    const page = await context.newPage()
    await page.goto(inReport(view))
    await until(() => page.evaluate(() => window.boxesReady), "the font")
    await shown(page)
    // What is drawn on a canvas may have been drawn before the font was there.
    await page.evaluate(() => dispatchEvent(new Event("resize")))
    await framesDrawn(page)
    await use(page)
  } finally {
    await context.close()
  }
}

async function picture(page) {
  return shrink(decodePng(await page.screenshot({ caret: "hide" })), SQUARE)
}

async function writePicture(page, path) {
  mkdirSync(BASELINE, { recursive: true })
  writeFileSync(path, encodePng(await restingPicture(page)))
}

/** A picture that the next one equals: everything has been drawn. */
async function restingPicture(page) {
  let before = await picture(page)
  return until(async () => {
    await framesDrawn(page)
    const now = await picture(page)
    const rests = difference(now, before, 0) === 0
    before = now
    return rests && now
  }, "a page that rests")
}

async function checkPicture(page, name) {
  const path = join(BASELINE, `${name}.png`)
  if (WRITE) return writePicture(page, path)
  assert.ok(existsSync(path), `no picture ${path}: FORETRACE_PICTURES=write npm run browser -- look`)
  const wanted = decodePng(readFileSync(path))
  try {
    await eventually(async () => {
      const share = difference(await picture(page), wanted, SLACK)
      assert.ok(share <= MOST, percent(share))
    })
  } catch (error) {
    writeFileSync(join(tmpdir(), `foretrace-${name}.png`), await page.screenshot())
    throw error
  }
}

const percent = (share) => `${(share * 100).toFixed(1)} % of the picture differs, ${MOST * 100} % may`

for (const theme of ["light", "dark"]) {
  describe(`pictures, ${theme}`, () => {
    for (const view of PAGES) {
      test(view.title, theme === "light" && IN_CORE.includes(view.name) ? {} : WHOLE_ONLY, () => inBoxes(view.name, theme, (page) => checkPicture(page, `${view.name}-${theme}`)))
    }
  })
}

describe("the comparison", WHOLE_ONLY, () => {
  /** Fails unless a page differs from its picture after `change`. */
  const checkNoticed = (view, change, words) => inBoxes(view, "light", async (page) => {
    const name = `${view}-light`
    await checkPicture(page, name)
    await page.evaluate(change)
    const share = difference(await restingPicture(page), decodePng(readFileSync(join(BASELINE, `${name}.png`))), SLACK)
    assert.ok(share > MOST, `${words}, and only ${percent(share)}`)
  })

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
      await checkNoticed(view, change, words)
    }
  })
})

/** What the browser's zoom of 200 % does: half as many pixels of CSS, each twice as large. */
const ZOOMED = { viewport: { width: 720, height: 450 }, deviceScaleFactor: 2 }

describe("200 % zoom", () => {
  for (const recording of [...OURS, MADE]) {
    test(`${recording.name}: every page in one column, nothing to scroll sideways`, recording === MADE ? {} : WHOLE_ONLY, () => withPage(browser, addressOf(at("overview", recording.run)), async (page) => {
      for (const view of PAGES) {
        await page.evaluate((hash) => { location.hash = hash }, at(view.name, recording.run)) // prettier-ignore
        await opened(page, view.name)
        await noSidewaysScroll(page).catch((error) => assert.fail(`${view.name}: ${error.message}`))
        // A drawing that shrinks with the window must not take its words along; 11 px of text are about 12 high.
        await eventually(async () => {
          const small = await page.evaluate(() => [...document.querySelectorAll("main svg text")].filter((each) => !each.getAttribute("transform") && each.getBoundingClientRect().height < 11).map((each) => each.textContent))
          assert.deepEqual(small, [], `${view.name}: words too small to read`)
        })
      }
    }, ZOOMED))
  }

  test("the Overview's columns stand below one another", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    await eventually(async () => {
      const boxes = await Promise.all([".top-half > :first-child", ".top-half > :last-child", ".bottom-half > :first-child", ".bottom-half > aside"].map((each) => page.locator(each).boundingBox()))
      for (let each = 1; each < boxes.length; each++) assert.ok(boxes[each].y >= boxes[each - 1].y + boxes[each - 1].height - 1, `part ${each} stands beside the one before`)
    })
  }, ZOOMED))

  test("the navigation opens over the page and closes", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    const button = page.locator("button.pages")
    assert.equal(await button.getAttribute("aria-expanded"), "false")
    await button.click()
    await page.locator("#navigation > ul a", { hasText: "Kernels" }).click()
    await opened(page, "kernels")
    await button.click()
    await page.locator("#navigation").waitFor({ state: "hidden" })
  }, ZOOMED))
})

describe("forced colours and print", () => {
  test("pages are drawn with the system's colours", () => withPage(browser, addressOf(at("overview", "naive_attention")), async (page) => {
    await page.emulateMedia({ forcedColors: "active" })
    await eventually(async () => assert.ok((await page.locator("main").innerText()).length > 200))
    await page.emulateMedia({ forcedColors: "none", media: "print" })
    await eventually(async () => assert.equal(await page.locator("nav").isVisible(), false))
  }))
})
