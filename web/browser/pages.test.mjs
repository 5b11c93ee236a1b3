/** Every page on every recording: it is reached, has a title, shows its data or says what to record, and complains of nothing. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { SETTINGS, WHOLE_ONLY, addressOf, at, eventually, open, opened, testsOf, until, useBrowser, withPage } from "./harness.mjs"
import { ALL, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const CLICKED = ["naive_attention", "recompile_cpu"]

/** What the run's overview says about a page without data. */
const missingOf = (page, run) =>
  page.evaluate(async (id) => (await (await fetch(`api/runs/${id}/overview`)).json()).missing, SETTINGS.runs[run])

/** What a page must hold when it has data. */
const CONTENT = {
  overview: { says: /step|idle|GPU|host/i, at_least: { "h1, h2": 2 } },
  findings: { says: /./, at_least: { h2: 1 } },
  timeline: { says: /View .* ms/, at_least: { canvas: 3, ".tl-label": 3, ".tl-table tbody tr": 1 } },
  waiting: { says: /idle/i, at_least: { "table tbody tr": 2, h2: 4 } },
  operators: { says: /./, at_least: { "table tbody tr": 1 } },
  kernels: { says: /./, at_least: { "table tbody tr": 1 } },
  modules: { says: /./, at_least: { "svg, canvas, table tbody tr": 1 } },
  sections: { says: /./, at_least: { "table tbody tr": 1 } },
  memory: { says: /./, at_least: { "svg, canvas": 1 } },
  roofline: { says: /./, at_least: { "svg, canvas": 1 } },
  ranks: { says: /./, at_least: { "table tbody tr": 1 } },
  compare: { says: /./, at_least: { "a, button, select, table": 1 } },
}

async function checkPage(page, view, missing) {
  await until(async () => new RegExp(`${view.title}.*Foretrace`).test(await page.title()), `the title of ${view.name}`)
  assert.equal(await page.locator("nav [aria-current=page] span").first().innerText(), view.title)
  assert.ok((await page.locator("main h1").count()) >= 1, `${view.name} has no h1`)
  const content = () => page.locator("main").innerText()
  if (missing !== undefined) {
    const link = page.locator("nav a.missing", { hasText: view.title })
    assert.equal(await link.getAttribute("title"), missing, `${view.name} is listed with its reason`)
    await eventually(async () => {
      const text = await content()
      const says = text.includes(missing.slice(0, 30)) || (await page.locator("main .empty p").count()) > 0
      assert.ok(says, `${view.name} does not say why it is empty: ${text.slice(0, 200)}`)
    })
  } else {
    const { says, at_least } = CONTENT[view.name]
    await eventually(async () => assert.match(await content(), says))
    for (const [selector, least] of Object.entries(at_least)) {
      const enough = async () => (await page.locator("main").locator(selector).count()) >= least
      await until(enough, `${least} of ${selector} on ${view.name}`)
    }
  }
  assert.doesNotMatch(await content(), /could not be loaded|could not be read|not drawn yet|undefined|\bNaN\b|\[object/, view.name)
}

for (const recording of ALL) {
  describe(recording.name, testsOf(recording), () => {
    test("every page, by its key", async () => {
      await withPage(browser, addressOf(at("overview", recording.run)), async (page) => {
        const missing = await missingOf(page, recording.run)
        if (!recording.gpu) assert.ok(missing.kernels, "a recording without a GPU says why there are no kernels")
        for (const view of PAGES) {
          await open(page, view)
          await checkPage(page, view, missing[view.name])
        }
      })
    })

    if (!CLICKED.includes(recording.run)) return
    test("every page, by a click in the navigation", WHOLE_ONLY, async () => {
      await withPage(browser, addressOf(at("compare", recording.run)), async (page) => {
        for (const view of PAGES) {
          await page.locator("#navigation > ul a", { hasText: view.title }).click()
          await opened(page, view.name)
        }
      })
    })
  })
}
