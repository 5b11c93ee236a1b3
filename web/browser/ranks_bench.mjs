/**
 * Times the Ranks page by what a hand does on it. Pointer, wheel and keys come from outside, as real ones do; frames are the times between
 * animation frames meanwhile. A click counts to its next frame, and one that loads something also until that is drawn.
 */
import { inBrowser, quantile, rendererBytes, spentOf } from "./bench_browser.mjs"

const LOADING = "main .loading"

/** In the page: the times of frames and the long tasks, from now until `stop`. */
function watchFrames() {
  const watch = { times: [], long: [], on: true }
  const observer = new PerformanceObserver((list) => watch.long.push(...list.getEntries().map((entry) => entry.duration)))
  observer.observe({ entryTypes: ["longtask"] })
  const frame = (now) => {
    watch.times.push(now)
    if (watch.on) requestAnimationFrame(frame)
  }
  requestAnimationFrame(frame)
  watch.stop = () => {
    watch.on = false
    observer.disconnect()
    return { intervals: watch.times.slice(1).map((time, at) => time - watch.times[at]), long: watch.long }
  }
  window.watch = watch
}

/** In the page: for every click, key or choice the time to its next frame, and to the one without anything that is loading. */
function watchClicks(loading) {
  window.clicks = []
  const begun = (event) => {
    const click = { next: null, done: null }
    window.clicks.push(click)
    const look = () => {
      // After the frame's own work: a task behind the animation frame begins when it is painted.
      requestAnimationFrame(() => setTimeout(() => {
        const now = performance.now() - event.timeStamp
        click.next ??= now
        if (document.querySelector(loading) === null) click.done = now
        else look()
      }))
    }
    look()
  }
  for (const kind of ["click", "change", "input", "keydown"]) addEventListener(kind, begun, { capture: true })
}

async function during(page, spent, move) {
  await page.waitForTimeout(300)
  await page.evaluate(watchFrames)
  const before = await spent()
  await move()
  const after = await spent()
  const { intervals, long } = await page.evaluate(() => window.watch.stop())
  return { intervals, long, script: (after.ScriptDuration - before.ScriptDuration) * 1000, task: (after.TaskDuration - before.TaskDuration) * 1000 }
}

/** Where an element is on the screen, once it is scrolled to. */
async function boxOf(page, selector) {
  const element = page.locator(selector).first()
  await element.scrollIntoViewIfNeeded()
  return element.boundingBox()
}

/** So many moves across an element, each about as far from the one before as in two frames of a quick hand. */
async function hover(page, selector, moves) {
  const box = await boxOf(page, selector)
  for (let at = 0; at < moves; at++) {
    const turn = (at / moves) * 6 * Math.PI
    await page.mouse.move(box.x + box.width * (0.1 + (0.85 * at) / moves), box.y + Math.min(box.height, 760 - box.y) * (0.5 + 0.45 * Math.sin(turn)))
    await page.waitForTimeout(8)
  }
}

/** Down and up again by turns of a wheel over an element. */
async function wheel(page, selector, turns, px) {
  const box = await boxOf(page, selector)
  await page.mouse.move(box.x + 4, box.y + Math.min(box.height / 2, 100))
  for (let at = 0; at < turns; at++) {
    await page.mouse.wheel(0, at < turns / 2 ? px : -px)
    await page.waitForTimeout(8)
  }
}

/** After each, what was begun by it is waited for. */
async function each(page, actions) {
  for (const act of actions) {
    await act()
    await page.waitForTimeout(60)
    await page.waitForFunction(() => window.clicks.every((click) => click.done !== null), null, { polling: 50, timeout: 60000 })
  }
}

function clicksOnMap(page, count) {
  return Array.from({ length: count }, (_, at) => async () => {
    const box = await boxOf(page, ".late-map")
    await page.mouse.click(box.x + 60 + ((box.width - 80) * (at * 3 % count)) / count, box.y + 10 + ((Math.min(box.height, 760 - box.y) - 20) * at) / count)
  })
}

async function stepsOf(page) {
  const options = await page.locator(".rank-stack select option").evaluateAll((all) => all.map((option) => option.value))
  return options.map((value) => () => page.locator(".rank-stack select").selectOption(value))
}

/** What is moved without anything being loaded. */
const MOVES = {
  map: (page) => hover(page, ".late-map", 120),
  stack: (page) => hover(page, ".rank-stack canvas", 120),
  page: async (page) => {
    await page.locator("main").evaluate((main) => main.scrollTo(0, 0))
    await wheel(page, "main", 120, 120)
  },
  shares: (page) => wheel(page, ".shares-scroller", 120, 300),
  table: (page) => wheel(page, ".data-table .scroller", 120, 300),
  runs: (page) => wheel(page, "nav .run", 120, 300),
}

async function clicks(page, actions) {
  await page.evaluate(() => (window.clicks.length = 0))
  await each(page, actions)
  return page.evaluate(() => window.clicks)
}

function togglesOf(page) {
  const heading = (at) => () => page.locator(".data-table thead button").nth(at).click()
  const type = (text) => () => page.locator(".data-table input").first().fill(text)
  const key = (name) => () => page.keyboard.press(name)
  return [heading(2), heading(2), heading(0), heading(4), type("rank10"), type(""), () => page.locator("main").focus(), key("["), key("["), ...["dark", "light", "system"].map((name) => () => page.locator(`.themes input[value=${name}] + span`).click())]
}

export async function benchRanks(url) {
  return inBrowser(async (page, process) => {
    let sent = 0
    page.on("response", (response) => (sent += Number(response.headers()["content-length"] ?? 0)))
    await page.goto(`${url}#/ranks`)
    // A canvas that was not drawn yet is 300 pixels wide.
    const shown = () => ([".late-map", ".rank-stack canvas", ".arrivals"].every((each) => document.querySelector(each)?.width > 300) ? performance.now() : null)
    const firstPaint = await (await page.waitForFunction(shown, null, { timeout: 60000, polling: "raf" })).jsonValue()
    await page.waitForTimeout(1000)
    const sentAtFirst = sent
    await page.evaluate(watchClicks, LOADING)
    const spent = await spentOf(page)
    const found = {}
    for (const [name, move] of Object.entries(MOVES)) found[name] = await during(page, spent, () => move(page))
    const loads = await clicks(page, [...clicksOnMap(page, 8), ...(await stepsOf(page))])
    const toggles = await clicks(page, togglesOf(page))
    return { first_paint_ms: firstPaint, sent_bytes: sentAtFirst, renderer_bytes: rendererBytes(process), ...summed(found), ...clickTimes(loads, toggles), parts: Object.fromEntries(Object.entries(found).map(([name, part]) => [name, ofFrames([part])])) } // prettier-ignore
  })
}

function ofFrames(parts) {
  const intervals = parts.flatMap((part) => part.intervals)
  const sum = (what) => parts.reduce((total, part) => total + part[what], 0)
  const long = parts.flatMap((part) => part.long)
  return {
    frame_p50_ms: quantile(intervals, 0.5), frame_p95_ms: quantile(intervals, 0.95), frame_worst_ms: Math.max(...intervals),
    script_per_frame_ms: sum("script") / intervals.length, task_per_frame_ms: sum("task") / intervals.length,
    long_tasks: long.length, longest_task_ms: Math.max(0, ...long),
  } // prettier-ignore
}

const summed = (found) => ofFrames(Object.values(found))

function clickTimes(loads, toggles) {
  const of = (all, what) => all.map((click) => click[what])
  return {
    load_next_ms: quantile(of(loads, "next"), 0.95), load_done_ms: quantile(of(loads, "done"), 0.95),
    toggle_ms: quantile(of(toggles, "next"), 0.5), toggle_worst_ms: Math.max(...of(toggles, "next")),
  } // prettier-ignore
}
