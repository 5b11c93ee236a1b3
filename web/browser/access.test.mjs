/** For everyone: axe finds nothing serious on any page in light and dark, and everything is done by keyboard alone. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { addAxe, inBothThemes, violations } from "./axe.mjs"
import { SETTINGS, WHOLE_ONLY, addressOf, at, hashOf, open, opened, shown, until, useBrowser, withPage } from "./harness.mjs"
import { ALL, MADE, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const RUN = "naive_attention"

/** With kernels, without, and with something on every page. */
const CHECKED = ALL.filter((recording) => ["naive_attention", "recompile_cpu", "made_rank0"].includes(recording.run))
/** In the core, pages that share no part. */
const VIEWS = PAGES.filter((view) => !SETTINGS.core || ["overview", "findings", "timeline", "ranks"].includes(view.name))
const BYPASS = { colorScheme: "light", bypassCSP: true }

describe("axe, light and dark", () => {
  for (const recording of CHECKED) {
    test(recording.name, recording === MADE ? {} : WHOLE_ONLY, () => withPage(browser, addressOf(at("overview", recording.run)), async (page) => {
      await addAxe(page)
      const faults = {}
      for (const view of VIEWS) {
        await open(page, view)
        // The frame round the pages is the same on all of them.
        const within = view === PAGES[0] ? "html" : "main"
        faults[view.name] = SETTINGS.core ? await violations(page, { within }) : await inBothThemes(page, { within })
      }
      const nothing = SETTINGS.core ? [] : {}
      assert.deepEqual(faults, Object.fromEntries(VIEWS.map((view) => [view.name, nothing])))
    }, BYPASS))
  }

  test("help and palette", WHOLE_ONLY, () => withPage(browser, addressOf(at("overview", RUN)), async (page) => {
    await addAxe(page)
    await page.keyboard.press("?")
    await page.locator("dialog[open]").waitFor()
    assert.deepEqual(await inBothThemes(page), {})
    await page.keyboard.press("Escape")
    await page.locator("dialog[open]").waitFor({ state: "detached" })
    await page.keyboard.press("Control+k")
    await page.locator("#palette-choices [role=option]").first().waitFor()
    assert.deepEqual(await inBothThemes(page), {})
  }, BYPASS))

  test("timeline with a span and an area selected", WHOLE_ONLY, () => withPage(browser, addressOf(at("timeline", RUN, "sel=10-40")), async (page) => {
    await addAxe(page)
    await page.keyboard.press(".")
    await page.locator(".tl-span dl dt").first().waitFor()
    assert.deepEqual(await inBothThemes(page), {})
  }, BYPASS))
})

const focused = (page) => page.evaluate(() => {
  const element = document.activeElement
  const style = getComputedStyle(element)
  element.dataset.met ??= String(Math.random())
  return {
    id: element.dataset.met, control: element.matches("a, button, input, select, summary"),
    tag: element.tagName, name: element.getAttribute("aria-label") ?? element.textContent.trim().slice(0, 60), inMain: document.getElementById("main").contains(element),
    // A mark of a drawing has its own line thicker instead.
    ring: (style.outlineStyle !== "none" && Number.parseFloat(style.outlineWidth) >= 2) || (element instanceof SVGElement && Number.parseFloat(style.strokeWidth) >= 2)
  } // prettier-ignore
})

/** Presses Tab until `wanted` has the focus. */
async function tabTo(page, wanted, most = 120) {
  for (let press = 0; press < most; press++) {
    await page.keyboard.press("Tab")
    const now = await focused(page)
    if (wanted(now)) return now
  }
  assert.fail("not reached with Tab")
}

describe("keyboard only", () => {
  test("from the top to a page, its table and back, without a pointer", () => withPage(browser, addressOf(at("overview", RUN)), async (page) => {
    await page.keyboard.press("Tab")
    assert.equal((await focused(page)).name, "Skip to content")
    await page.keyboard.press("Enter")
    await until(() => page.evaluate(() => document.activeElement.id === "main"), "the focus on the content")
    await page.reload()
    await shown(page)
    const link = await tabTo(page, (each) => each.tag === "A" && each.name.startsWith("Kernels"))
    assert.ok(link.ring, "the focus is seen")
    await page.keyboard.press("Enter")
    await opened(page, "kernels")
    await tabTo(page, (each) => each.inMain && each.tag === "BUTTON" && /^Total|^Calls|^Mean/.test(each.name))
    await page.keyboard.press("Enter")
    await until(async () => (await page.locator("main th[aria-sort]").count()) > 0, "a sorted column")
    await page.goBack() // the browser's own key does not reach a page that is driven
    await opened(page, "overview")
  }))

  test("every control of every page can be reached, and shows where the focus is", WHOLE_ONLY, () => withPage(browser, addressOf(at("overview", "made_rank0")), async (page) => {
    for (const view of PAGES) {
      await open(page, view)
      const wanted = await page.evaluate(() => [...document.querySelectorAll("main a[href], main button, main input, main select, main summary")]
        .filter((each) => !each.disabled && each.checkVisibility() && each.tabIndex >= 0 && !(each.type === "radio" && !each.checked)).length)
      await page.evaluate(() => document.getElementById("main").focus())
      const met = new Set()
      for (let press = 0; press < wanted + 40; press++) {
        await page.keyboard.press("Tab")
        const { ring, name, inMain, control, id } = await focused(page)
        if (!inMain) break
        assert.ok(ring, `${view.name}: the focus on “${name}” cannot be seen`)
        if (control) met.add(id)
      }
      assert.ok(met.size >= wanted * 0.95, `${view.name}: Tab reaches ${met.size} of ${wanted} controls`)
    }
  }))

  test("ticking findings, opening one on the timeline, stepping, and back", () => withPage(browser, addressOf(at("findings", RUN)), async (page) => {
    await tabTo(page, (each) => each.tag === "INPUT" && each.name.startsWith("Combine finding"))
    await page.keyboard.press("Space")
    await until(async () => /tick=\d/.test(await hashOf(page)), "a tick")
    await tabTo(page, (each) => each.tag === "A" && each.name === "Show on timeline")
    await page.keyboard.press("Enter")
    await page.locator("canvas.tl-tracks").waitFor()
    await shown(page)
    await page.keyboard.press(".")
    await until(async () => /span=\d+/.test(await hashOf(page)), "a span")
    await until(async () => /ms|µs|ns/.test(await page.locator(".tl-span [role=status]").textContent()), "its time in words")
    await page.keyboard.press("Escape")
    await until(async () => !/span=\d+/.test(await hashOf(page)), "no span")
  }))
})
