/** What can be chosen on a page: colours and flows of the timeline, times of kernels; tiles, no matches, and small screens. */
import assert from "node:assert/strict"
import { describe, test } from "node:test"
import { addressOf, at, changed, eventually, framesDrawn, noSidewaysScroll, opened, parameter, until, useBrowser, withPage } from "./harness.mjs"
import { QUESTIONS } from "./recordings.mjs"

const browser = await useBrowser()
const RUN = "naive_attention"
const TELEPHONE = { viewport: { width: 390, height: 844 } }

/** A picture of the tracks as a number, to see whether they were drawn anew. */
const drawn = (page) => page.evaluate(() => {
  const canvas = document.querySelector("canvas.tl-tracks")
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true })
  copy.drawImage(canvas, 0, 0)
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height)
  let sum = 0
  for (let place = 0; place < data.length; place++) sum = (Math.imul(sum, 31) + data[place]) | 0
  return sum
})

/** The tracks once two pictures in a row are the same: nothing is still being drawn. */
async function restingTracks(page) {
  let before = null
  return until(async () => {
    await framesDrawn(page)
    const now = await drawn(page)
    const rests = now === before
    before = now
    return rests && String(now)
  }, "tracks that rest")
}

describe("controls of the timeline", () => {
  test("colours stand for kind, name or finding", () => withPage(browser, addressOf(at("timeline", RUN)), async (page) => {
    await until(async () => (await page.locator(".tl-table tbody tr").count()) > 0, "names")
    const pictures = new Set([await restingTracks(page)])
    for (const by of ["name", "finding"]) {
      await page.getByLabel("Colour").selectOption(by)
      await until(async () => (await parameter(page, "colour")) === by, `${by} in the address`)
      await until(async () => !pictures.has(await drawn(page)), `colours by ${by}`)
      pictures.add(await restingTracks(page))
    }
    await page.getByLabel("Colour").selectOption("kind")
    await until(async () => (await parameter(page, "colour")) === null, "the first choice is not in the address")
  }))

  test("flows can be turned off", () => withPage(browser, addressOf(at("timeline", QUESTIONS.run, "t=80-90ms")), async (page) => {
    await page.keyboard.press(".")
    await until(async () => /Launched/.test(await page.locator(".tl-span").innerText()), "a kernel and its launch")
    const before = await restingTracks(page)
    await page.getByLabel("Flows").selectOption("off")
    await until(async () => (await drawn(page)) !== before, "no flow")
    await until(async () => (await parameter(page, "flows")) === "off", "the choice in the address")
  }))
})

describe("kernels", () => {
  test("friendly names come first, bars are scaled to the largest", () => withPage(browser, addressOf(at("kernels", RUN)), async (page) => {
    await page.locator(".data-table tbody td a").first().waitFor()
    const heads = await page.locator(".data-table thead th").allInnerTexts()
    assert.equal(heads[0], "Kernel")
    assert.ok(heads.includes("Whole name"))
    assert.doesNotMatch(await page.locator(".data-table tbody tr td a").first().innerText(), /::|</)
    const widths = await page.locator(".data-table tbody td.share .bar > span").evaluateAll((bars) => bars.map((bar) => parseFloat(bar.style.width)))
    assert.equal(Math.max(...widths), 100)
  }))

  test("times are in total or per step", () => withPage(browser, addressOf(at("kernels", QUESTIONS.run)), async (page) => {
    // Eight kernels of 4 ms in each of five steps, each with a name of its own.
    await until(async () => /\b5\s+20\.0 ms/.test(await page.locator(".data-table tbody tr:not(.spacer)").first().innerText()), "times in total")
    await page.locator(".segments button", { hasText: "Per step" }).click()
    await until(async () => /\b1\s+4\.00 ms/.test(await page.locator(".data-table tbody tr:not(.spacer)").first().innerText()), "times per step")
    assert.equal(await parameter(page, "times"), "step")
  }))
})

describe("tiles of the Overview", () => {
  test("say how well the GPU was used and lead to more", () => withPage(browser, addressOf(at("overview", RUN)), async (page) => {
    await eventually(async () => {
      const tiles = await page.locator(".gpu-tiles li").allInnerTexts()
      assert.ok(tiles.length >= 5, tiles.join())
      assert.match(tiles[0], /Kernels running\s+93\.8 %/)
      assert.match(tiles[1], /GPU idle\s+1\.6 %/)
    })
    assert.match(await page.locator(".headline").innerText(), /Kernels run 93\.8 % of the time, and the GPU is idle 1\.6 %/, "one number for one thing")
    await page.locator(".gpu-tiles a").first().click()
    await opened(page, "waiting")
  }))

  test("are absent without a GPU", () => withPage(browser, addressOf(at("overview", "recompile_cpu")), async (page) => {
    await page.locator(".headline").waitFor()
    assert.equal(await page.locator(".gpu-tiles").count(), 0)
  }))
})

describe("no matches", () => {
  test("the search field says so", () => withPage(browser, addressOf(at("overview", RUN)), async (page) => {
    await page.locator("#search").fill("no such thing")
    await until(async () => (await page.locator(".search .no-matches").innerText()) === "No matches", "words")
    await page.locator("#search").fill("softmax")
    await page.locator("#search-choices li").first().waitFor()
    await until(async () => (await page.locator(".search .no-matches").count()) === 0, "no such words")
  }))
})

describe("a Run", () => {
  test("is one entry titled by its program, with its passes inside", () => withPage(browser, addressOf(at("overview", QUESTIONS.run)), async (page) => {
    const section = page.locator("nav section", { hasText: "Run monday" })
    await eventually(async () => assert.deepEqual(await section.locator("a > span:first-child").allInnerTexts(), ["train.py"]))
    await section.locator("a", { hasText: "train.py" }).click()
    await until(async () => (await section.locator(".passes a").count()) === 2, "its passes")
    assert.deepEqual(await section.locator(".passes a > span:first-child").allInnerTexts(), ["light", "rich"])
    await until(async () => (await page.locator(".top .run strong").innerText()) === "train.py", "the first pass")
    await section.locator(".passes a", { hasText: "rich" }).click()
    await until(async () => (await page.locator(".top .run strong").innerText()) === "train.py, rich pass", "the rich pass")
  }))
})

describe("a telephone", () => {
  for (const view of ["timeline", "kernels", "waiting", "overview"]) {
    test(`${view}: nothing to scroll sideways`, () => withPage(browser, addressOf(at(view, RUN)), async (page) => {
      await noSidewaysScroll(page)
    }, TELEPHONE))
  }

  test("kernels show their numbers beside their names", () => withPage(browser, addressOf(at("kernels", RUN)), async (page) => {
    for (const heading of ["Kernel", "Calls", "Total"]) {
      const head = page.locator(".data-table thead th", { hasText: new RegExp(`^${heading}\\s*[↓↑]?$`) }).first()
      await eventually(async () => {
        const box = await head.boundingBox()
        assert.ok(box.x >= 0 && box.x + box.width <= 391, `${heading} ends at ${box.x + box.width} px`)
      })
    }
  }, TELEPHONE))

  test("the timeline is zoomed by buttons, and details stand below the tracks", () => withPage(browser, addressOf(at("timeline", QUESTIONS.run)), async (page) => {
    const toolbar = page.locator(".tl-toolbar")
    const whole = await toolbar.innerText()
    await page.locator(".tl-zoom button[aria-label='Zoom in']").click()
    await until(() => parameter(page, "t"), "a closer view")
    await changed(toolbar, whole, "the closer view in the toolbar")
    await page.locator(".tl-zoom button", { hasText: "Fit" }).click()
    await until(async () => (await toolbar.innerText()) === whole, "the whole again")
    const canvas = await page.locator("canvas.tl-tracks").boundingBox()
    assert.ok(canvas.width > 270, `${canvas.width} px for the tracks`)
    const label = await page.locator(".tl-label", { hasText: "GPU 0 idle" }).boundingBox()
    await page.mouse.click(canvas.x + (canvas.width * 103) / 220, label.y + 14)
    await until(async () => /Idle: host: operator/.test(await page.locator(".tl-span").innerText()), "the gap")
    await eventually(async () => {
      const details = await page.locator(".tl-span").boundingBox()
      assert.ok(details.y < 844, `details begin at ${details.y} px`)
    })
  }, TELEPHONE))
})
