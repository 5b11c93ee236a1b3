/**
 * Runs the tests that drive a browser: `npm run browser`, or `npm run browser -- NAME...` for some files. `--core`
 * (`npm run browser:core`) leaves out what repeats a proof on another recording, in the other theme or in the report.
 *
 * One Chromium, one `foretrace serve` with every recording and a few reports serve all tests. `foretrace` is the one on
 * the PATH, or FORETRACE. Chromium is FORETRACE_CHROMIUM, else /usr/bin/chromium. FORETRACE_PICTURES=write
 * writes the pictures that pages are compared with.
 */
import { spawn, spawnSync } from "node:child_process"
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { launchServer, startServer } from "./harness.mjs"
import { OURS, SHARED, WEB, benchDocument, hostileTrace, isThere, questionsTrace, rankTrace, snapshotFile } from "./recordings.mjs"

const FORETRACE = (process.env.FORETRACE ?? "foretrace").split(" ")
const HOSTILE_FILE = "hostile <img src=x onerror=window.hacked=7>.json"

/** What is tested must be what this tree says, not an older install. */
async function checkBuild(folder, url) {
  const built = spawnSync(process.execPath, ["build.mjs", join(folder, "page")], { cwd: WEB, encoding: "utf8" })
  if (built.status !== 0) throw new Error(built.stderr)
  const cookie = (await fetch(url, { redirect: "manual" })).headers.get("set-cookie").split(";")[0]
  for (const name of ["app.js", "app.css"]) {
    const served = await fetch(new URL(name, url), { headers: { cookie } })
    if ((await served.text()) !== readFileSync(join(folder, "page", name), "utf8")) {
      throw new Error(`foretrace serves another ${name} than this tree builds: pip install . again, or node build.mjs ../src/foretrace/present/web/static`)
    }
  }
}

function writeReport(path, recordings) {
  const made = spawnSync(FORETRACE[0], [...FORETRACE.slice(1), "report", ...recordings, "-o", path], { encoding: "utf8" })
  if (made.status !== 0) throw new Error(`foretrace report: ${made.stderr}`)
}

function runTests(files, settings) {
  return new Promise((resolve) => {
    const child = spawn(process.execPath, ["--test", "--test-concurrency=2", "--test-reporter=spec", ...files], {
      stdio: "inherit", env: { ...process.env, FORETRACE_BROWSER: JSON.stringify(settings) },
    }) // prettier-ignore
    child.on("exit", (code) => resolve(code ?? 1))
  })
}

const folder = mkdtempSync(join(tmpdir(), "foretrace-browser-"))
const hostile = join(folder, HOSTILE_FILE)
writeFileSync(hostile, hostileTrace())
const ranks = join(folder, "two_ranks")
const watched = join(folder, "watched")
for (const each of [ranks, watched]) mkdirSync(each)
for (const rank of [0, 1]) writeFileSync(join(ranks, `made_rank${rank}.json`), rankTrace(rank))
const questions = join(folder, "questions.json")
writeFileSync(questions, questionsTrace())
const runFolder = join(folder, "runs", "monday", "rank0")
mkdirSync(runFolder, { recursive: true })
const passes = ["light", "rich"].map((kind) => ({ kind, file: `${kind}.json` }))
for (const { file } of passes) writeFileSync(join(runFolder, file), questionsTrace())
writeFileSync(join(runFolder, "rank.json"), JSON.stringify({ passes, command: ["python", "train.py"] }))
const benches = [1, 0.5].map((factor) => join(folder, `sweep_${factor === 1 ? "before" : "after"}.json`))
benches.forEach((path, at) => writeFileSync(path, benchDocument(at === 0 ? 1 : 0.5)))
const snapshots = [2, 4].map((kept) => join(folder, `memory_${kept === 2 ? "before" : "after"}.pickle`))
snapshots.forEach((path, at) => writeFileSync(path, snapshotFile(at === 0 ? 2 : 4)))
const words = process.argv.slice(2)
const core = words.includes("--core")
const there = [...OURS, ...(core ? [] : SHARED)].filter(isThere)
const server = await startServer(FORETRACE, [...there.map((each) => each.path), hostile, questions, join(folder, "runs"), ranks, watched, ...benches, ...snapshots])
const chromium = await launchServer()
try {
  const report = join(folder, "report.html")
  const hostileReport = join(folder, "hostile.html")
  writeReport(report, [...OURS.map((each) => each.path), join(ranks, "made_rank0.json"), join(ranks, "made_rank1.json")])
  writeReport(hostileReport, [hostile])
  const benchReport = join(folder, "benches.html")
  writeReport(benchReport, benches)
  const snapshotReport = join(folder, "snapshots.html")
  writeReport(snapshotReport, snapshots)
  await checkBuild(folder, server.url)
  const runs = await server.ready()
  const names = words.filter((word) => word !== "--core")
  const tests = readdirSync(join(WEB, "browser")).filter((name) => name.endsWith(".test.mjs") && (names.length === 0 || names.some((each) => name.startsWith(each))))
  const settings = { core, browser: chromium.wsEndpoint(), url: server.url, runs, report, hostileReport, benchReport, snapshotReport, watched }
  process.exitCode = await runTests(tests.map((name) => join(WEB, "browser", name)), settings) // prettier-ignore
} finally {
  server.stop()
  await chromium.close()
  rmSync(folder, { recursive: true })
}
