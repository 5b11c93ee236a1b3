/**
 * Moving about: keys, palette, search, tables, what-if, themes, a folder that is watched. All tests that copy are here:
 * files run at the same time, and share a clipboard.
 */
import assert from "node:assert/strict"
import { copyFileSync } from "node:fs"
import { join } from "node:path"
import { describe, test } from "node:test"
import { SETTINGS, WHOLE_ONLY, addressOf, at, hashOf, opened, parameter, shown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { OURS, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const RUN = "naive_attention"
const on = (view, use, options = {}) => withPage(browser, addressOf(at(view, RUN)), use, options)
const comes = (page, view) => until(async () => (await viewOf(page)) === view, `page ${view}`)
const themeOf = (page) => page.evaluate(() => document.documentElement.dataset.theme)

/** The words of the what-if panel once it holds an answer that begins with `words`. */
const answer = (page, words) => until(async () => {
  const text = await page.locator(".what-if").innerText()
  return text.startsWith(words) && /\d\s*(ms|µs)/.test(text) && !text.includes("Replaying") && text
}, words)

describe("keys everywhere", () => {
  test("the pages have the keys 1 to 9 and 0, and Back undoes each", () => on("overview", async (page) => {
    for (const view of PAGES) {
      await page.keyboard.press(view.key)
      await comes(page, view.name)
    }
    for (const view of PAGES.slice(0, -1).reverse()) {
      await page.goBack()
      await comes(page, view.name)
    }
    await page.goForward()
    await comes(page, PAGES[1].name)
  }))

  test("[ hides the navigation, ? shows the keys, Esc closes them", () => on("overview", async (page) => {
    await page.keyboard.press("[")
    await page.locator("#navigation").waitFor({ state: "hidden" })
    await page.keyboard.press("[")
    await page.locator("#navigation").waitFor({ state: "visible" })
    await page.keyboard.press("?")
    const dialog = page.locator("dialog[open]")
    await dialog.waitFor()
    const text = await dialog.innerText()
    for (const view of PAGES) assert.ok(text.includes(view.title))
    for (const words of ["search", "zoom", "mark", "select an area", "previous, next"]) assert.ok(text.includes(words), words)
    await page.keyboard.press("Escape")
    await until(async () => (await dialog.count()) === 0, "no dialog")
  }))

  test("Ctrl+K goes to pages, findings, kernels, runs and themes", () => on("overview", async (page) => {
    const choose = async (text) => {
      await page.keyboard.press("Control+k")
      await page.locator("dialog[open] input").waitFor()
      await page.keyboard.type(text)
      await page.locator("#palette-choices [role=option]").first().waitFor()
      await page.keyboard.press("Enter")
      await until(async () => (await page.locator("dialog").count()) === 0, "the palette to close")
    }
    await choose("roofl")
    await comes(page, "roofline")
    await choose("dark theme")
    await until(async () => (await themeOf(page)) === "dark", "dark")
    await choose("softmax")
    await until(async () => /^#\/(kernels|operators|findings)\?.*(softmax|finding)/i.test(await hashOf(page)), "what the first choice leads to")
    await choose("recompile_cpu")
    await until(async () => (await parameter(page, "run")) === SETTINGS.runs["recompile_cpu"], "the other run")
    await page.keyboard.press("Control+k")
    await page.locator("dialog[open]").waitFor()
    await page.keyboard.press("Escape")
    await until(async () => (await page.locator("dialog").count()) === 0, "Esc closes it")
  }))

  test("/ searches what was recorded, arrows choose, Enter opens", () => on("overview", async (page) => {
    await page.keyboard.press("/")
    await until(() => page.evaluate(() => document.activeElement.id === "search"), "the search field")
    await page.keyboard.type("aten::mm")
    const options = page.locator("#search-choices [role=option]")
    await options.first().waitFor()
    await page.keyboard.press("ArrowDown")
    await until(async () => (await options.first().getAttribute("aria-selected")) === "true", "the first choice")
    assert.equal(await page.locator("#search").getAttribute("aria-activedescendant"), "search-0")
    await page.keyboard.press("Enter")
    await comes(page, "operators")
    assert.match(await parameter(page, "q"), /aten::mm/)
  }))
})

describe("tables", () => {
  for (const view of ["operators", "kernels"]) {
    test(`${view}: sort, filter, arrow keys, copy`, view === "kernels" ? {} : WHOLE_ONLY, () => on(view, async (page) => {
      const table = page.locator("main .data-table").first()
      await table.locator("tbody tr[aria-rowindex]").first().waitFor()
      const heads = table.locator("thead th button")
      await heads.nth(1).click()
      const sorted = table.locator("th[aria-sort]")
      await until(async () => (await sorted.count()) === 1, "one sorted column")
      const before = await sorted.getAttribute("aria-sort")
      await sorted.locator("button").click()
      await until(async () => (await sorted.getAttribute("aria-sort")) !== before, "the other way")
      await table.locator(".scroller").focus()
      await page.keyboard.press("ArrowDown")
      await page.keyboard.press("ArrowDown")
      await until(async () => (await table.locator("tr[aria-current=true]").getAttribute("aria-rowindex")) === "3", "the second row")
      await table.locator("p.actions button", { hasText: "Markdown" }).click()
      await until(async () => /^\|.*\|\n\|[-:| ]+\|/.test(await page.evaluate(() => navigator.clipboard.readText())), "a Markdown table in the clipboard")
      const rowsCopied = (await page.evaluate(() => navigator.clipboard.readText())).trim().split("\n").filter((line) => line.startsWith("|"))
      const cells = (line) => line.replaceAll("\\|", "").split("|").length
      assert.ok(rowsCopied.length >= 3)
      for (const line of rowsCopied) assert.equal(cells(line), cells(rowsCopied[0]), `another number of cells: ${line.slice(0, 120)}`)
      await table.locator("p.actions button", { hasText: "CSV" }).click()
      await until(async () => (await page.evaluate(() => navigator.clipboard.readText())).split("\n")[0].split(",").length > 2, "CSV in the clipboard")
      const rows = Number(await table.locator("table").getAttribute("aria-rowcount"))
      const filter = page.locator("main .filter input").first()
      if (await filter.count()) {
        await filter.fill("gemm")
        await until(async () => Number(await table.locator("table").getAttribute("aria-rowcount")) < rows, "fewer rows")
        await filter.fill("no such name")
        await until(async () => /No matches for “/.test(await table.innerText()), "words instead of an empty table")
      }
    }, { permissions: ["clipboard-read", "clipboard-write"] }))
  }
})

describe("findings", () => {
  test("ticked findings are replayed together, and the address keeps them", () => on("findings", async (page) => {
    const ticks = page.locator(".finding-list input:not([disabled])")
    await ticks.first().check()
    await until(() => parameter(page, "tick"), "the tick in the address")
    const words = await answer(page, "Step time, replayed with")
    await page.reload()
    await shown(page)
    await until(async () => (await page.locator(".what-if").innerText()) === words, "the same prediction after a reload")
    await page.goBack()
    await until(async () => (await parameter(page, "tick")) === null, "Back unticks")
  }))

  test("a kernel's duration is changed by hand", () => on("findings", async (page) => {
    const before = await answer(page, "Step time now")
    await page.locator(".kernel-what-if .step").nth(1).click()
    await until(() => parameter(page, "kernel"), "the kernel in the address")
    await until(async () => (await page.locator(".what-if").innerText()) !== before, "another step time")
  }))

  test("a comma and a full stop go through the findings, and the manual opens", () => on("findings", async (page) => {
    const title = () => page.locator(".one-finding h2").innerText()
    const first = await title()
    assert.ok((await page.locator(".finding-list li").count()) > 1)
    await page.keyboard.press(".")
    await until(async () => (await title()) !== first, "the next finding")
    await page.keyboard.press(",")
    await until(async () => (await title()) === first, "the one before")
    await page.locator(".one-finding summary").click()
    await until(async () => (await page.locator(".one-finding details").innerText()).length > 200, "the manual")
  }))

  test("the Overview opens a finding and leads to the timeline and back", () => on("overview", async (page) => {
    const first = page.locator(".finding-table th button").first()
    await until(async () => (await first.getAttribute("aria-expanded")) === "true", "the first to be open")
    await page.locator(".finding-table a", { hasText: "Show on timeline" }).first().click()
    await page.locator("canvas.tl-tracks").waitFor()
    await page.goBack()
    await until(async () => (await first.getAttribute("aria-expanded")) === "true", "the first to be open again")
    await first.click()
    await until(async () => (await first.getAttribute("aria-expanded")) === "false", "the first to close")
  }))

  test("the diagnosis is copied as Markdown", () => on("overview", async (page) => {
    await page.getByRole("button", { name: "Copy as Markdown" }).click()
    await page.locator(".said").waitFor()
    const text = await until(() => page.evaluate(() => navigator.clipboard.readText()), "a copy")
    assert.ok(text.includes("|") || text.includes("#") || text.includes("- "), text.slice(0, 200))
    assert.ok(text.length > 200)
  }, { permissions: ["clipboard-read", "clipboard-write"] }))
})

describe("themes", () => {
  test("the system's, then the reader's own, which is kept", () => on("overview", async (page) => {
    const paper = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
    assert.equal(await themeOf(page), "dark")
    const dark = await paper()
    await page.locator(".themes label", { hasText: "light" }).click()
    await until(async () => (await themeOf(page)) === "light", "light")
    assert.notEqual(await paper(), dark)
    await page.reload()
    await shown(page)
    assert.equal(await themeOf(page), "light")
    await page.locator(".themes label", { hasText: "system" }).click()
    await until(async () => (await themeOf(page)) === "dark", "dark again")
    await page.emulateMedia({ colorScheme: "light" })
    await until(async () => (await themeOf(page)) === "light", "the system's change is followed")
  }, { colorScheme: "dark" }))

  test("the timeline is drawn anew in the other theme", () => on("timeline", async (page) => {
    const corner = () => page.evaluate(() => {
      const canvas = document.querySelector("canvas.tl-tracks")
      const copy = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true })
      copy.drawImage(canvas, 2, canvas.height - 3, 1, 1, 0, 0, 1, 1)
      return [...copy.getImageData(0, 0, 1, 1).data].join()
    })
    assert.equal(await themeOf(page), "light")
    const light = await until(async () => ((await corner()) === "0,0,0,0" ? null : corner()), "tracks that are drawn")
    await page.emulateMedia({ colorScheme: "dark" })
    await until(async () => (await corner()) !== light, "dark tracks")
  }))
})

describe("runs", () => {
  test("a recording that appears in a watched folder appears on the page", () => on("overview", async (page) => {
    const known = await page.locator("nav a.run").count()
    copyFileSync(OURS[3].path, join(SETTINGS.watched, "appeared_by_itself.json.gz"))
    const fresh = page.locator("nav a.run", { hasText: "appeared_by_itself" })
    await fresh.waitFor()
    assert.equal(await page.locator("nav a.run").count(), known + 1)
    await until(async () => !/waiting|…|%/.test(await fresh.innerText()), "it to be read")
    await fresh.click()
    await until(async () => /appeared_by_itself/.test(await page.title()), "its page")
    await shown(page)
  }))

  test("when the server goes away the page says so, and what is there can be read", WHOLE_ONLY, () => on("kernels", async (page, context) => {
    await context.setOffline(true)
    const lost = page.locator("main [role=alert]")
    await lost.waitFor()
    assert.match(await lost.innerText(), /still be read/)
    assert.ok((await page.locator(".data-table tbody tr").count()) > 3)
    await context.setOffline(false)
    await lost.waitFor({ state: "detached" })
  }, { forgiven: /ERR_INTERNET_DISCONNECTED/ }))

  test("another run is shown at the same page", () => on("timeline", async (page) => {
    await page.locator("nav a.run", { hasText: "recompile_cpu" }).click()
    await until(async () => (await parameter(page, "run")) === SETTINGS.runs["recompile_cpu"], "the run in the address")
    await opened(page, "timeline")
    await page.goBack()
    await until(async () => (await parameter(page, "run")) === SETTINGS.runs[RUN], "the run before")
  }))

  test("an unknown run and an unknown page say so", async () => {
    await withPage(browser, addressOf("#/overview?run=nobody"), async (page) => {
      await until(async () => /Run not found/.test(await page.locator("main").innerText()), "Run not found")
    })
    await withPage(browser, addressOf(at("nowhere", RUN)), async (page) => {
      await until(async () => /Page not found/.test(await page.locator("main").innerText()), "Page not found")
    })
  })
})
