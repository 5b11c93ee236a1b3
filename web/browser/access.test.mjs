/** For everyone: axe finds nothing serious on any page in light and dark, and everything is done by keyboard alone. */
import assert from "node:assert/strict"
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { describe, test } from "node:test"
import { addressOf, at, hashOf, shown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { ALL, PAGES, isThere } from "./recordings.mjs"

const browser = await useBrowser()
const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")
const RUN = "naive_attention"

/** Violations that matter, each in one line. The dark theme changes colours alone: there only contrast is asked for. */
async function violations(page, theme) {
  const rules = theme === "dark" ? { runOnly: { type: "rule", values: ["color-contrast"] } } : {}
  const found = await page.evaluate(async (only) => (await window.axe.run(document, { resultTypes: ["violations"], preload: false, ...only })).violations, rules)
  return found.filter((each) => ["serious", "critical"].includes(each.impact))
    .map((each) => `${each.impact} ${each.id}: ${each.nodes.length} × ${each.nodes[0].html.slice(0, 160)} ${each.nodes[0].failureSummary?.split("\n")[1] ?? ""}`)
}

const CHECKED = ALL.filter((each) => ["naive_attention", "recompile_cpu", "made_rank0", "slow_dataloader.slow.rich"].includes(each.run))
const THEMES = ["light", "dark"]

/** What axe finds on the page as it is now, in each theme by its name; nothing where all is well. */
async function inBothThemes(page) {
  const found = {}
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme })
    await until(() => page.evaluate((wanted) => getComputedStyle(document.documentElement).colorScheme === wanted, theme), theme)
    await shown(page) // a drawing has been drawn anew
    const here = await violations(page, theme)
    if (here.length) found[theme] = here
  }
  return found
}

describe("axe, light and dark", () => {
  const options = { colorScheme: "light", bypassCSP: true }
  for (const recording of CHECKED) {
    test(recording.name, { skip: !isThere(recording) && `not here: ${recording.path}` }, () => withPage(browser, addressOf(at("overview", recording.run)), async (page) => {
      await page.addScriptTag({ content: AXE })
      const found = {}
      for (const view of PAGES) {
        await page.keyboard.press(view.key)
        await until(async () => (await viewOf(page)) === view.name, view.name)
        await shown(page)
        found[view.name] = await inBothThemes(page)
      }
      await page.keyboard.press("?")
      await page.locator("dialog[open]").waitFor()
      found.help = await inBothThemes(page)
      await page.keyboard.press("Escape")
      await page.keyboard.press("Control+k")
      await page.locator("#palette-choices [role=option]").first().waitFor()
      found.palette = await inBothThemes(page)
      const nothing = [...PAGES.map((view) => view.name), "help", "palette"].map((name) => [name, {}])
      assert.deepEqual(found, Object.fromEntries(nothing))
    }, options))
  }

  test("timeline with a span and an area selected", () => withPage(browser, addressOf(at("timeline", RUN, "sel=10-40")), async (page) => {
    await page.addScriptTag({ content: AXE })
    await page.keyboard.press(".")
    await page.locator(".tl-span dl dt").first().waitFor()
    assert.deepEqual(await inBothThemes(page), {})
  }, options))
})

const focused = (page) => page.evaluate(() => {
  const element = document.activeElement
  const style = getComputedStyle(element)
  return {
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
    assert.equal(await page.evaluate(() => document.activeElement.id), "main")
    await page.reload()
    await shown(page)
    const link = await tabTo(page, (each) => each.tag === "A" && each.name.startsWith("Kernels"))
    assert.ok(link.ring, "the focus is seen")
    await page.keyboard.press("Enter")
    await until(async () => (await viewOf(page)) === "kernels", "kernels")
    await shown(page)
    await tabTo(page, (each) => each.inMain && each.tag === "BUTTON" && /^Total|^Calls|^Mean/.test(each.name))
    await page.keyboard.press("Enter")
    await until(async () => (await page.locator("main th[aria-sort]").count()) > 0, "a sorted column")
    await page.goBack() // the browser's own key does not reach a page that is driven
    await until(async () => (await viewOf(page)) === "overview", "back")
  }))

  test("every control of every page can be reached, and shows where the focus is", () => withPage(browser, addressOf(at("overview", "made_rank0")), async (page) => {
    for (const view of PAGES) {
      await page.keyboard.press(view.key)
      await until(async () => (await viewOf(page)) === view.name, view.name)
      await shown(page)
      const wanted = await page.evaluate(() => [...document.querySelectorAll("main a[href], main button, main input, main select, main summary")]
        .filter((each) => !each.disabled && each.checkVisibility() && each.tabIndex >= 0 && !(each.type === "radio" && !each.checked)).length)
      await page.evaluate(() => document.getElementById("main").focus())
      const met = new Set()
      for (let press = 0; press < wanted + 40; press++) {
        await page.keyboard.press("Tab")
        const now = await page.evaluate(() => {
          const element = document.activeElement
          if (!document.getElementById("main").contains(element)) return null
          element.dataset.met ??= String(Math.random())
          return { id: element.dataset.met, control: element.matches("a, button, input, select, summary") }
        })
        if (now === null) break
        const { ring, name } = await focused(page)
        assert.ok(ring, `${view.name}: the focus on “${name}” cannot be seen`)
        if (now.control) met.add(now.id)
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
    assert.match(await page.locator(".tl-span [role=status]").textContent(), /ms|µs|ns/)
    await page.keyboard.press("Escape")
    await until(async () => !/span=\d+/.test(await hashOf(page)), "no span")
  }))
})
