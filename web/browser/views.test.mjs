/** What pages other than the timeline let one do: trees, curves, marks, ranks, comparisons. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { SETTINGS, WHOLE_ONLY, addressOf, at, changed, eventually, framesDrawn, opened, parameter, shown, testsOf, timeShown, until, useBrowser, viewOf, withPage } from "./harness.mjs"
import { MADE, SHARED } from "./recordings.mjs"

const browser = await useBrowser()
const on = (view, use, run = MADE.run, query = "") => withPage(browser, addressOf(at(view, run, query)), use)
const choose = (page, words) => page.locator(".segments button", { hasText: new RegExp(`^${words}$`) }).first().click()
const rich = SHARED[0]

describe("modules", () => {
  for (const run of [MADE.run, "naive_attention"]) {
    test(`${run}: the tree opens and closes, by pointer and by keys`, run === MADE.run ? {} : WHOLE_ONLY, () => on("modules", async (page) => {
      const grid = page.locator("[role=treegrid]")
      const rows = async () => Number(await grid.getAttribute("aria-rowcount"))
      await page.getByRole("button", { name: "Expand all" }).click()
      await until(async () => (await grid.locator("tbody tr[aria-expanded=false]").count()) === 0, "all of it")
      const open = await rows()
      await page.getByRole("button", { name: "Collapse all" }).click()
      await until(async () => (await rows()) < open && (await grid.locator("tbody tr[aria-expanded=true]").count()) === 0, "only the roots")
      const closed = await rows()
      await page.getByRole("button", { name: "Expand all" }).click()
      await until(async () => (await rows()) === open, "all of it again")
      await page.getByRole("button", { name: "Collapse all" }).click()
      await until(async () => (await rows()) === closed, "only the roots")
      await page.locator(".tree-table .scroller").focus()
      const row = grid.locator("tr[aria-expanded=false]").first()
      const steps = Number(await row.getAttribute("aria-rowindex")) - 1
      for (let step = 0; step < steps; step++) await page.keyboard.press("ArrowDown")
      await until(async () => (await row.getAttribute("aria-current")) === "true", "the row that can be opened")
      await page.keyboard.press("ArrowRight")
      await until(async () => (await rows()) > closed, "the first one open")
      await page.keyboard.press("ArrowLeft")
      await until(async () => (await rows()) === closed, "closed again")
    }, run))
  }

  test("flame graph: keys select a frame, Enter zooms, Back undoes", () => on("modules", async (page) => {
    for (const [layout, words] of [["flame", "Flame graph"], ["heavy", "Left heavy"]]) {
      await choose(page, words)
      await until(async () => (await parameter(page, "layout")) === layout, layout)
      await page.locator(".flame-canvas").focus()
      await page.keyboard.press("ArrowDown")
      await page.keyboard.press("ArrowUp")
      await page.keyboard.press("Enter")
      await until(() => parameter(page, "zoom"), "zoomed")
      await until(async () => /ms|µs/.test(await page.locator(".flame").innerText()), "the frame's time")
      await page.goBack()
      await until(async () => (await parameter(page, "zoom")) === null, "not zoomed")
    }
  }))

  test("sandwich: callers and callees of a name", () => on("modules", async (page) => {
    await choose(page, "Sandwich")
    const names = page.locator(".sandwich ol button")
    await names.first().waitFor()
    await names.nth(1).click()
    await until(() => parameter(page, "of"), "the name in the address")
    await until(async () => (await names.nth(1).getAttribute("aria-pressed")) === "true", "the name that was chosen")
    await until(async () => (await page.locator(".sandwich canvas").count()) === 2, "callers and callees")
  }))
})

describe("memory", () => {
  for (const recording of [MADE, rich]) {
    test(`${recording.name}: the cursor moves, P is the peak, Enter shows the moment`, testsOf(recording), () => on("memory", async (page) => {
      const curve = page.locator("[role=slider]")
      const words = () => curve.getAttribute("aria-valuetext")
      const peak = await until(async () => /ms: .*B/.test(await words()) && words(), "the peak in words")
      await curve.focus()
      await page.keyboard.press("ArrowRight")
      await until(async () => (await words()) !== peak, "another moment")
      await page.keyboard.press("p")
      await until(async () => (await words()) === peak, "the peak")
      await page.keyboard.press("Enter")
      await until(async () => (await viewOf(page)) === "timeline", "the timeline")
      const view = await until(() => timeShown(page), "a place")
      const moment = Number.parseFloat(peak)
      assert.ok(view.from <= moment && view.to >= moment, `${moment} ms lies in ${view.from} to ${view.to}`)
    }, recording.run))
  }

  test("the tables beside it", () => on("memory", async (page) => {
    for (const words of ["By category", "By operator", "By module", "Largest at the peak"]) {
      await choose(page, words)
      await page.locator(".segments button[aria-pressed=true]", { hasText: words }).waitFor()
      await page.locator(".data-table tbody tr").first().waitFor()
    }
  }))
})

describe("roofline", () => {
  test("marks are reached by keys and lead to the timeline", () => on("roofline", async (page) => {
    const marks = page.locator("circle[role=button]")
    await until(async () => (await marks.count()) > 2, "marks")
    await page.locator("circle[tabindex='0']").focus()
    const facts = page.locator("main aside section").first()
    const before = (await facts.innerText()).trim()
    for (const key of ["ArrowRight", "ArrowLeft", "ArrowDown"]) await page.keyboard.press(key)
    await changed(facts, before, "another kernel's facts")
    await page.keyboard.press("Enter")
    await until(async () => (await viewOf(page)) === "timeline", "the timeline")
    await until(() => parameter(page, "span"), "the kernel's longest call")
  }, "naive_attention"))

  test("a mark under the pointer says what it is", () => on("roofline", async (page) => {
    await page.locator("circle[role=button]").last().hover()
    await until(async () => /of its roof/.test(await page.locator("main aside").innerText()), "what it is")
  }, "naive_attention"))
})

describe("ranks", () => {
  test("two ranks side by side: shares, communication, collectives", () => on("ranks", async (page) => {
    assert.deepEqual(await page.locator("table.heat tbody th").allInnerTexts(), ["0", "1"])
    const shares = (await page.locator("table.heat tbody tr").first().locator("td").allInnerTexts()).map(Number.parseFloat)
    const sum = shares.reduce((total, share) => total + share, 0)
    assert.ok(sum > 95 && sum < 105, `the shares of a rank add up to ${sum} %`)
    await until(async () => /all_reduce|allreduce/i.test(await page.locator("main").innerText()), "the collective")
  }))

  test("ten thousand ranks: few are in the page, and the latest of those that share a row is named", WHOLE_ONLY, () => on("ranks", async (page) => {
    const count = 10_240
    const numbers = Array.from({ length: count }, (_, rank) => rank)
    await page.route(/\/api\/runs\/[^/]+\/ranks$/, async (route) => {
      const made = await (await route.fetch()).json()
      const repeated = (list) => numbers.map((rank) => list[rank % list.length])
      const data = made.table.columns.map((column, at) => (column.name === "rank" ? numbers : repeated(made.table.data[at])))
      const late = numbers.map((rank) => [rank === 5000 ? 9e6 : 1e3, 0])
      await route.fulfill({ json: { ...made, ranks: numbers, share_pct: repeated(made.share_pct), job: numbers, runs: numbers.map(String), steps: [3, 4], late_ns: late, table: { ...made.table, data, rows_count: count } } })
    })
    await page.route(/\/api\/runs$/, async (route) => {
      const made = await (await route.fetch()).json()
      const own = made.runs.find((run) => run.id === SETTINGS.runs[MADE.run])
      const others = numbers.map((rank) => ({ ...own, id: `many${rank}`, name: `rank${rank}`, label: `rank${rank}` }))
      await route.fulfill({ json: { ...made, runs: [...made.runs.filter((run) => run !== own), ...others.slice(0, 7000), own, ...others.slice(7000)] } })
    })
    await page.reload()
    await shown(page)
    await until(() => page.locator("nav a.run.current").isVisible(), "the run that is shown, among the others")
    assert.ok((await page.locator("nav a.run").count()) < 300, "not a link for every rank")
    const rows = page.locator("table.heat tbody tr")
    await until(async () => (await rows.count()) > 5, "the first ranks")
    assert.ok((await page.locator("main *").count()) < 3000, "only what is in sight")
    await page.locator(".shares-scroller").first().evaluate((box) => box.scrollTo(0, box.scrollHeight))
    await until(async () => (await page.locator("table.heat tbody th").last().innerText()) === "10239", "the last rank")
    const map = page.locator(".late-map")
    const box = await map.boundingBox()
    await map.hover({ position: { x: box.width / 4, y: ((box.height - 16) * 5000.5) / count } })
    await until(async () => /^rank 5000, step 3: 9\.00 ms after the median rank, the latest of rank \d+ to \d+$/.test(await page.locator(".rank-clock .quiet").first().innerText()), "the rank that is late")
  }))

  test("four recorded ranks", testsOf(SHARED[4]), () => on("ranks", async (page) => {
    await page.locator("table.heat tbody tr").first().waitFor()
    await eventually(async () => {
      assert.match(await page.locator("main").innerText(), /4 ranks, .*rank 2 arrives 7\.59 ms late/, "the job's answer, whichever rank is open")
      assert.match(await page.locator(".causes").innerText(), /slow-rank\s+rank 2/)
    })
    const map = page.locator(".late-map")
    const box = await map.boundingBox()
    const third = { x: box.width / 2, y: ((box.height - 16) * 2.5) / 4 } // the steps' numbers are below
    await map.hover({ position: third })
    await until(async () => /^rank 2, step \d+: .* after the median rank$/.test(await page.locator(".rank-clock .quiet").first().innerText()), "what is under the pointer")
    const stack = page.locator(".rank-stack")
    await until(async () => /^Framed: all_reduce, at which rank 2 arrived last, [78]\.\d+ ms after rank [013]/.test(await stack.locator(".stack-says").innerText()), "who is waited for longest")
    assert.deepEqual(await stack.locator("ol li").allInnerTexts(), ["0", "1", "2", "3"], "the ranks one below the other")
    await map.click({ position: third })
    await until(async () => (await stack.locator("li.picked").allInnerTexts()).join() === "2", "the rank that was chosen")
    const rows = stack.locator("canvas")
    const { width } = await rows.boundingBox()
    const states = new Set()
    for (let x = 2; x < width; x += width / 40) {
      await rows.hover({ position: { x, y: 8 } })
      const [, state] = await until(async () => /^rank 0: (\w+)/.exec(await stack.locator(".stack-says").innerText()), "what rank 0 does")
      states.add(state)
      await framesDrawn(page)
    }
    assert.ok(states.has("waiting") && states.has("communication"), [...states].join())
    const step = stack.locator("select")
    const other = await step.locator("option").first().getAttribute("value")
    await step.selectOption(other)
    await until(async () => (await rows.getAttribute("aria-label")).startsWith(`Step ${other} of 4 ranks`), "another step")
    await stack.getByRole("link", { name: "Timeline of rank 2" }).click()
    await until(async () => (await viewOf(page)) === "timeline", "the rank's own page")
    assert.equal(await parameter(page, "run"), SETTINGS.runs["rank2"])
  }, "rank0"))
})

describe("compare", () => {
  test("another run is chosen, and swapped", () => on("compare", async (page) => {
    const select = page.locator("main select")
    await select.selectOption({ value: SETTINGS.runs["made_rank1"] })
    await until(async () => /made_rank1/.test(await page.locator("main").innerText()), "the other's name")
    await page.locator(".way tbody tr").first().waitFor()
    await page.getByRole("button", { name: "Swap" }).click()
    await until(async () => (await parameter(page, "run")) === SETTINGS.runs["made_rank1"], "the other run")
    await shown(page)
    await until(async () => (await select.inputValue()) === SETTINGS.runs["made_rank0"], "the first as the other")
    await page.goBack()
    await until(async () => (await parameter(page, "run")) === SETTINGS.runs["made_rank0"], "the run before")
  }))

  test("slow and fixed: the way adds up", testsOf(rich), () => on("compare", async (page) => {
    await page.locator(".way tbody tr").first().waitFor()
    assert.match(await page.locator("main h1, main h2, main .says").first().innerText(), /./)
    assert.match(await page.locator("main .says").first().innerText(), /^Faster: .* times as fast/)
    assert.match(await page.locator(".way tbody tr:not(.whole) th").first().innerText(), /attention/)
    const frames = page.locator(".difference-flame [role=listitem]")
    await frames.first().waitFor()
    assert.ok((await frames.count()) > 20, "frames of both steps")
    assert.match(await frames.first().getAttribute("title"), /^the step: 51\.\d ms → 16\.\d ms$/)
    assert.ok((await page.locator(".difference-flame [role=listitem].more").count()) > 0, "fused attention is new")
    const numbers = (await page.locator(".way tbody tr:not(.whole) td:last-child").allInnerTexts()).map((text) => Number(text.replaceAll(/[ ,]/g, "").replace("−", "-")))
    const whole = Number((await page.locator(".way tbody tr.whole td:last-child").last().innerText()).replace(/[^\d.−-]/g, "").replace("−", "-"))
    const sum = numbers.reduce((total, each) => total + each, 0)
    assert.ok(Math.abs(sum - whole) < 0.6, `parts ${sum}, whole ${whole}`)
  }, rich.run, `other=${SETTINGS?.runs["naive_attention.fixed.rich"]}`))
})

describe("operators and kernels", () => {
  for (const view of ["operators", "kernels"]) {
    test(`${view}: other groups, and a row leads to the timeline`, view === "operators" ? {} : WHOLE_ONLY, () => on(view, async (page) => {
      const group = page.locator(".segments button[aria-pressed=false]").first()
      const words = await group.innerText()
      await group.click()
      await until(async () => (await page.locator(".segments button[aria-pressed=true]").first().innerText()) === words, words)
      await page.goBack()
      await until(async () => (await page.locator(".segments button[aria-pressed=true]").first().innerText()) !== words, "the group before")
      await page.locator(".data-table tbody tr[aria-rowindex]").first().waitFor()
      await page.locator(".data-table .scroller").first().focus()
      await page.keyboard.press("ArrowDown")
      await page.locator(".data-table tr[aria-current=true]").first().waitFor()
      await page.keyboard.press("Enter")
      await opened(page, "timeline")
    }, "naive_attention"))
  }
})
