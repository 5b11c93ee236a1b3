/** The timeline: keys, pointer, search, areas, details, links; on the shipped recording unless said otherwise. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { addressOf, at, changed, framesDrawn, hashOf, moved, open, parameter, testsOf, timeShown, until, useBrowser, withPage } from "./harness.mjs"
import { ALL, PAGES } from "./recordings.mjs"

const browser = await useBrowser()
const RUN = "naive_attention"
const on = (use, query = "", options = {}) => withPage(browser, addressOf(at("timeline", RUN, query)), use, options)

/** Where the tracks are on the screen. */
const tracksBox = (page) => page.locator("canvas.tl-tracks").boundingBox()
const press = (page, key) => page.keyboard.press(key)
const spanOf = (page) => parameter(page, "span")
const panelTitle = (page) => page.locator(".tl-area h2").innerText()

async function dragArea(page, from = 0.3, to = 0.6) {
  const box = await tracksBox(page)
  await page.mouse.move(box.x + box.width * from, box.y + 40)
  await page.mouse.down()
  await page.mouse.move(box.x + box.width * (from + to) / 2, box.y + 60, { steps: 3 })
  await page.mouse.move(box.x + box.width * to, box.y + 60, { steps: 3 })
  await page.mouse.up()
}

/** How many colours the tracks are drawn in: a blank canvas has one. */
const coloursDrawn = (page) =>
  page.evaluate(() => {
    const canvas = document.querySelector("canvas.tl-tracks")
    // A copy: reading the canvas itself makes the browser warn and draw it more slowly.
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
    copy.drawImage(canvas, 0, 0)
    const { data } = copy.getImageData(0, 0, canvas.width, canvas.height)
    return new Set(new Uint32Array(data.buffer)).size
  })

const tracksDrawn = (page) => until(async () => (await coloursDrawn(page)) > 8, "tracks in more than eight colours")

describe("timeline of each recording", () => {
  for (const recording of ALL) {
    test(recording.name, testsOf(recording), async () => {
      await withPage(browser, addressOf(at("timeline", recording.run)), async (page) => {
        await tracksDrawn(page)
        await press(page, ".")
        await until(() => spanOf(page), "a selected span")
        await page.locator(".tl-span dl dt").first().waitFor()
        assert.ok((await page.locator(".tl-span h2").innerText()).length > 0)
        await press(page, "f")
        const close = await moved(page, null)
        await dragArea(page)
        await until(async () => /^Selection /.test(await panelTitle(page)), "the panel of the area")
        const area = await until(() => timeShown(page, "sel"), "the area in the address")
        assert.ok(area.from >= close.from - 0.001 && area.to <= close.to + 0.001, "the area lies in what is shown")
        await press(page, "Escape")
        await until(async () => (await spanOf(page)) === null && (await parameter(page, "sel")) === null, "nothing selected")
      })
    })
  }
})

describe("keys", () => {
  test("W and S zoom at the pointer, A and D move, F fits", () => on(async (page) => {
    const box = await tracksBox(page)
    await page.mouse.move(box.x + box.width / 2, box.y + 60)
    await press(page, "w")
    const closer = await moved(page, null)
    await press(page, "w")
    const closest = await moved(page, closer)
    assert.ok(closest.to - closest.from < (closer.to - closer.from) * 0.7)
    const middle = (window) => (window.from + window.to) / 2
    assert.ok(Math.abs(middle(closest) - middle(closer)) < (closer.to - closer.from) * 0.02, "the moment under the pointer stays")
    await press(page, "d")
    const right = await moved(page, closest)
    assert.ok(right.from > closest.from)
    await press(page, "a")
    const back = await moved(page, right)
    assert.ok(Math.abs(back.from - closest.from) < 0.01)
    await press(page, "s")
    const wider = await moved(page, back)
    assert.ok(wider.to - wider.from > back.to - back.from)
    await press(page, "f")
    const whole = await moved(page, wider)
    assert.ok(whole.to - whole.from > closer.to - closer.from)
    await page.goBack()
    assert.deepEqual(await moved(page, whole), wider, "Back undoes the fit")
  }))

  test("a comma and a full stop step through spans, the arrows through the nesting", () => on(async (page) => {
    await press(page, ".")
    const first = await until(() => spanOf(page), "the first span")
    await press(page, ".")
    const second = await until(async () => (await spanOf(page)) !== first && (await spanOf(page)), "the next span")
    await press(page, ",")
    assert.equal(await until(async () => (await spanOf(page)) !== second && (await spanOf(page)), "the span before"), first)
    await until(async () => /, from [\d.]+ ms/.test(await page.locator(".tl-span [aria-live]").textContent()), "the span in words")
    await press(page, "Escape")
    await until(async () => (await spanOf(page)) === null, "no span")
    await press(page, "ArrowDown")
    await until(() => spanOf(page), "a span by arrow")
  }))

  test("M marks, and again takes the mark away", () => on(async (page) => {
    await press(page, ".")
    await until(() => spanOf(page), "a span")
    await press(page, "m")
    await until(() => parameter(page, "marks"), "a mark in the address")
    await press(page, "m")
    await until(async () => (await parameter(page, "marks")) === null, "no mark")
  }))

  test("letters typed into the search stay there", () => on(async (page) => {
    await press(page, "/")
    await page.keyboard.type("wasd1")
    await until(async () => (await page.locator("#search").inputValue()) === "wasd1", "the letters")
    const inView = async () => /View [^\n]*/.exec(await page.locator(".tl-toolbar").innerText())[0]
    const whole = await inView()
    await press(page, "Escape")
    await press(page, "f")
    await moved(page, null)
    assert.equal(await inView(), whole)
  }))
})

describe("pointer", () => {
  test("a drag selects an area, which adds up to a table", () => on(async (page) => {
    await dragArea(page)
    await until(async () => /^Selection /.test(await panelTitle(page)), "the table of the area")
    await until(async () => (await page.locator(".tl-table tbody tr").count()) > 2, "rows")
    await until(async () => /GPU events?, [\d.]+ % busy/.test(await page.locator(".tl-says").first().innerText()), "the sum of the area")
    const shares = await page.locator(".tl-table tbody td:nth-child(4)").allInnerTexts()
    const sum = shares.reduce((total, text) => total + Number.parseFloat(text), 0)
    assert.ok(sum > 5 && sum <= 101, `shares of the time add up to ${sum} %`)
    for (const group of ["Host", "GPU"]) {
      await page.locator(".tl-groups button", { hasText: group }).click()
      await until(async () => (await page.locator(`.tl-groups button[aria-pressed=true]`).innerText()) === group, group)
    }
    const area = await until(() => timeShown(page, "sel"), "the area in the address")
    await page.locator(".tl-area .tl-actions button", { hasText: "Zoom to" }).click()
    const zoomed = await moved(page, null)
    assert.ok(zoomed.from <= area.from && zoomed.to >= area.to)
    await page.locator(".tl-go").first().click()
    await until(() => spanOf(page), "the longest call of the first name")
  }))

  test("an area of the address is the same area", () => on(async (page) => {
    const says = page.locator(".tl-area .tl-says")
    const before = await changed(says, "", "the sum of all")
    await dragArea(page)
    const area = await until(() => timeShown(page, "sel"), "an area")
    const words = await changed(says, before, "the sum of the area")
    await withPage(browser, addressOf(await page.evaluate(() => location.hash)), async (again) => {
      assert.deepEqual(await timeShown(again, "sel"), area)
      await until(async () => (await again.locator(".tl-says").first().innerText()) === words, `the same sum: ${words}`)
    })
  }))

  test("a click selects the span under it, Shift and a click grow the area", () => on(async (page) => {
    await press(page, ".")
    const span = await until(() => spanOf(page), "a span")
    await press(page, "f")
    await moved(page, null)
    await press(page, "Escape")
    await until(async () => (await spanOf(page)) === null, "no span")
    const box = await tracksBox(page)
    const x = box.x + box.width / 2
    let y = box.y - 3
    await until(async () => {
      y = y + 9 < box.y + box.height ? y + 9 : box.y + 6
      await page.mouse.click(x, y)
      await framesDrawn(page)
      return (await spanOf(page)) === span
    }, "the span that fills the view to be clicked")
    await page.keyboard.down("Shift")
    await page.mouse.click(x, y)
    await page.keyboard.up("Shift")
    const area = await until(() => timeShown(page, "sel"), "the span's area")
    assert.ok(area.to > area.from)
    const tip = page.locator(".tl-tip")
    await page.mouse.move(x + 4, y)
    await tip.waitFor({ state: "visible" })
    await until(async () => /[µmn]?s$/.test(await tip.innerText()), "its duration")
  }))

  test("Ctrl and the wheel zoom, Shift and the wheel pan, the minimap jumps", () => on(async (page) => {
    const box = await tracksBox(page)
    await page.mouse.move(box.x + box.width * 0.4, box.y + 60)
    await page.keyboard.down("Control")
    await page.mouse.wheel(0, -300)
    await page.keyboard.up("Control")
    const closer = await moved(page, null)
    await page.keyboard.down("Shift")
    await page.mouse.wheel(0, 200)
    await page.keyboard.up("Shift")
    const panned = await moved(page, closer)
    assert.ok(Math.abs((panned.to - panned.from) - (closer.to - closer.from)) < 0.01)
    const map = await page.locator(".tl-minimap canvas").boundingBox()
    await page.mouse.click(map.x + map.width * 0.9, map.y + map.height / 2)
    const jumped = await moved(page, panned)
    assert.ok(jumped.from > panned.from)
  }))

  test("a track folds and opens", () => on(async (page) => {
    const fold = page.locator(".tl-fold[aria-expanded=true]").first()
    const name = await fold.getAttribute("aria-label")
    await fold.click()
    const same = page.locator(`.tl-fold[aria-label="${name}"]`).first()
    await until(async () => (await same.getAttribute("aria-expanded")) === "false", "folded")
    await same.click()
    await until(async () => (await same.getAttribute("aria-expanded")) === "true", "open")
  }))
})

describe("search", () => {
  test("finds, counts, steps through the hits, and Esc clears", () => on(async (page) => {
    await press(page, "/")
    await page.keyboard.type("softmax")
    await page.keyboard.press("Enter")
    const status = page.locator(".tl-toolbar [role=status]")
    await status.waitFor()
    await until(async () => /^1 of [\d,]+ hits for “softmax”/.test(await status.innerText()), "the count")
    const first = await until(() => spanOf(page), "the first hit")
    await until(() => page.evaluate(() => document.activeElement.id !== "search"), "the keys to be the timeline's again")
    await press(page, ".")
    await until(async () => (await spanOf(page)) !== first && (await spanOf(page)), "the next hit")
    await until(async () => /softmax/i.test((await page.locator(".tl-span h2").getAttribute("title")) + (await page.locator(".tl-span").innerText())), "its details")
    await press(page, ",")
    await until(async () => (await spanOf(page)) === first, "the hit before")
    await press(page, "Escape")
    await until(async () => (await status.count()) === 0, "no search")
    await until(async () => (await page.locator("#search").inputValue()) === "", "an empty field")
  }))

  test("says when there is no hit", () => on(async (page) => {
    await press(page, "/")
    await page.keyboard.type("no such name at all")
    await page.keyboard.press("Enter")
    await until(async () => /^No matches for “/.test(await page.locator(".tl-toolbar [role=status]").innerText()), "no matches")
  }))
})

describe("links", () => {
  test("view, span and area of a link are restored", () => on(async (page) => {
    await press(page, ".")
    const span = await until(() => spanOf(page), "a span")
    await press(page, "f")
    const view = await moved(page, null)
    await page.locator(".tl-span dl dt").first().waitFor()
    const title = await page.locator(".tl-span h2").innerText()
    await withPage(browser, addressOf(at("timeline", RUN, `t=${view.from}-${view.to}ms&span=${span}`)), async (again) => {
      await again.locator(".tl-span dl dt").first().waitFor()
      assert.equal(await again.locator(".tl-span h2").innerText(), title)
      assert.deepEqual(await timeShown(again), view)
      assert.match(await again.locator(".tl-toolbar").innerText(), new RegExp(`View ${view.from.toFixed(2).slice(0, 4).replace(".", "\\.")}`))
    })
  }))

  test("a link to a span that is not there still shows the timeline", () => on(async (page) => {
    await tracksDrawn(page)
  }, "span=4000000000&t=5000-6000ms&sel=nonsense"))

  test("from a kernel to its operator or launch and back", () => on(async (page) => {
    await press(page, "/")
    await page.keyboard.type("softmax")
    await page.keyboard.press("Enter")
    await until(() => spanOf(page), "a hit")
    await until(async () => (await page.locator(".tl-links button").count()) > 0, "somewhere to go to")
    const before = await spanOf(page)
    await page.locator(".tl-links button").first().click()
    await until(async () => (await spanOf(page)) !== before, "another span")
    await page.goBack()
    await until(async () => (await spanOf(page)) === before, "the span before")
  }))

  test("a finding leads to the timeline, and Back to the finding", async () => {
    await withPage(browser, addressOf(at("findings", RUN, "finding=1")), async (page) => {
      const title = await page.locator(".one-finding h2").innerText()
      await page.locator(".one-finding a", { hasText: "Show on timeline" }).click()
      await page.locator("canvas.tl-tracks").waitFor()
      await until(() => timeShown(page), "the finding's place")
      assert.equal(await parameter(page, "finding"), "1")
      await page.goBack()
      await until(async () => (await page.locator(".one-finding h2").allInnerTexts()).join() === title, "the finding")
    })
  })

  test("a span leads to its finding", async () => {
    await withPage(browser, addressOf(at("findings", RUN, "finding=1")), async (page) => {
      await page.locator(".one-finding a", { hasText: "Show on timeline" }).click()
      await page.locator("canvas.tl-tracks").waitFor()
      const chip = page.locator(".tl-table a.chip", { hasText: /^Finding \d/ }).first()
      await chip.click()
      await page.locator(".one-finding").waitFor()
      assert.match(await hashOf(page), /^#\/findings\?.*finding=\d/)
    })
  })

  test("the selection stays while other pages are read", () => on(async (page) => {
    await dragArea(page)
    const area = await until(() => timeShown(page, "sel"), "an area")
    await open(page, PAGES[4])
    assert.deepEqual(await timeShown(page, "sel"), area)
    await open(page, PAGES[2])
    await until(async () => /^Selection /.test(await panelTitle(page)), "the area")
  }))
})

describe("layouts", () => {
  for (const [mode, title] of [["heavy", "Left heavy"], ["steps", "Steps"]]) {
    test(title, () => on(async (page) => {
      await page.locator(".tl-modes button", { hasText: title }).click()
      await until(async () => (await parameter(page, "mode")) === mode, "the layout in the address")
      await tracksDrawn(page)
      await page.goBack()
      await until(async () => (await page.locator(".tl-modes button[aria-pressed=true]").innerText()) === "Time", "the layout by time")
    }))
  }
})
