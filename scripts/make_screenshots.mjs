#!/usr/bin/env node
/**
 * Pictures of `foretrace serve`, 1440 × 900 in 256 colours. Needs Chromium, node, `npm ci` in web/, and a foretrace with its page:
 *
 *   node scripts/make_screenshots.mjs                    # docs/images/page/: those that the documents show. Those of naive_attention
 *                                                        # are of the sample, whose numbers `foretrace demo` prints
 *   node scripts/make_screenshots.mjs FOLDER [PAGE...]   # every page, for two recordings of the shared corpus, light and dark
 */
import { mkdirSync, statSync, writeFileSync } from "node:fs"
import { dirname, join } from "node:path"
import { fileURLToPath } from "node:url"
import { launch, shown, startServer } from "../web/browser/harness.mjs"
import { decodePng, encodePalettePng } from "../web/browser/picture.mjs"
import { PAGES } from "../web/browser/recordings.mjs"

const REPOSITORY = dirname(dirname(fileURLToPath(import.meta.url)))
const CORPUS = process.env.FORETRACE_CORPUS ?? join(REPOSITORY, "..", "shared", "corpus")
const [folder, ...wanted] = process.argv.slice(2)
const OUT = folder ?? join(REPOSITORY, "docs", "images", "page")
/** What the documents show. */
const SHOWN = ["overview-naive_attention-light", "findings-slow_dataloader-light", "roofline-naive_attention-light"]
const SIZE = { width: 1440, height: 900 }

/** `timeline`: what it shows; `at_ms`: the moment on the first GPU lane that is clicked. */
const RECORDINGS = {
  naive_attention: { run: "naive_attention.slow.rich", other: "naive_attention.fixed.rich", timeline: "t=101.35-108.35ms&sel=102.17-104.47", at_ms: 102.67, view: [101.35, 108.35] },
  slow_dataloader: { run: "slow_dataloader.slow.rich", other: "slow_dataloader.fixed.rich", timeline: "t=324-346ms&sel=329.42-345.52", at_ms: 330.4, view: [324, 346] },
}
/** These have one rank: this is what more of them look like. */
const RANKS = { run: "rank0", files: "other/multirank_gloo" }

async function takePicture(page, name) {
  await shown(page)
  await page.mouse.move(5, 880)
  await page.waitForTimeout(400)
  const path = join(OUT, `${name}.png`)
  writeFileSync(path, encodePalettePng(decodePng(await page.screenshot({ caret: "hide" }))))
  return statSync(path).size
}

/** Selects the span of the first GPU lane at a moment. */
async function clickSpan(page, { at_ms: at, view: [from, to] }) {
  await shown(page)
  const canvas = await page.locator("canvas.tl-tracks").boundingBox()
  const lane = await page.locator(".tl-fold", { hasText: "GPU 0" }).first().boundingBox()
  await page.mouse.click(canvas.x + ((at - from) / (to - from)) * canvas.width, lane.y + 12)
  await page.locator(".tl-span dl dt").first().waitFor()
}

const isWanted = (view, name) => (folder ? wanted.length === 0 || wanted.includes(view) : SHOWN.includes(name))
mkdirSync(OUT, { recursive: true })
const names = Object.values(RECORDINGS).flatMap((each) => [each.run, each.other])
const paths = [...names.map((name) => join(CORPUS, "h200", `${name}.json.gz`)), join(CORPUS, RANKS.files)]
const foretrace = (process.env.FORETRACE ?? "foretrace").split(" ")
const server = await startServer(foretrace, paths)
const ofSample = folder ? null : await startServer(foretrace, [])
const browser = await launch()
let bytes = 0
try {
  const runs = await server.ready()
  const sample = ofSample ? Object.values(await ofSample.ready())[0] : null
  await new Promise((resolve) => setTimeout(resolve, 5000)) // the list of runs gets their step times a little later
  for (const theme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: SIZE, colorScheme: theme, reducedMotion: "reduce" })
    const page = await context.newPage()
    // A fresh page each time: only the fragment would change otherwise, and what was chosen before would stay.
    const open = async (fragment, from = server) => {
      await page.goto("about:blank")
      await page.goto(`${from.url}${fragment}`)
    }
    for (const [recording, { run, other, timeline, ...span }] of Object.entries(RECORDINGS)) {
      for (const { name } of PAGES.filter((each) => isWanted(each.name, `${each.name}-${recording}-${theme}`))) {
        const query = name === "timeline" ? `${timeline}&` : name === "compare" ? `other=${runs[other]}&` : ""
        if (ofSample && recording === "naive_attention") await open(`#/${name}?run=${sample}`, ofSample)
        else await open(`#/${name}?${query}run=${runs[run]}`)
        if (name === "timeline") await clickSpan(page, span)
        bytes += await takePicture(page, `${name}-${recording}-${theme}`)
      }
    }
    if (isWanted("ranks", `ranks-four_ranks-${theme}`)) {
      await open(`#/ranks?run=${runs[RANKS.run]}`)
      bytes += await takePicture(page, `ranks-four_ranks-${theme}`)
    }
    await context.close()
  }
  console.log(`${OUT}: ${(bytes / 1e6).toFixed(2)} MB`)
} finally {
  await browser.close()
  server.stop()
  ofSample?.stop()
}
