/**
 * Builds the page: `node build.mjs OUT` writes app.js (one script, no modules: it must run from file://), app.css and
 * index.html. `--watch` keeps building, `--test` runs the unit tests, `--sizes` prints what the page weighs.
 */
import { spawnSync } from "node:child_process"
import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { dirname, join, resolve } from "node:path"
import { fileURLToPath } from "node:url"
import { gzipSync } from "node:zlib"
import * as esbuild from "esbuild"

const here = dirname(fileURLToPath(import.meta.url))
const jsx = { jsx: "automatic", jsxImportSource: "preact" }
const options = process.argv.slice(2).filter((word) => word.startsWith("--"))
const words = process.argv.slice(2).filter((word) => !word.startsWith("--"))

const HTML = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Foretrace</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="app.css">
</head>
<body>
<div id="page"><noscript>This page needs JavaScript.</noscript></div>
<script src="app.js"></script>
</body>
</html>
`

const BUNDLED = ["preact", "@preact/signals", "@preact/signals-core"]

/** The licences of what the script carries: they ask to go wherever it goes. */
function licences() {
  const texts = new Map()
  for (const name of BUNDLED) {
    const folder = join(here, "node_modules", name)
    const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"))
    const text = readFileSync(join(folder, "LICENSE"), "utf8").trim()
    texts.set(text, [...(texts.get(text) ?? []), `${name} ${version}`])
  }
  const parts = [...texts].map(([text, names]) => `${names.join(", ")}\n\n${text}`)
  return `/*! Bundled here:\n\n${parts.join("\n\n")}\n*/`
}

async function buildPage(out) {
  mkdirSync(out, { recursive: true })
  const context = await esbuild.context({
    absWorkingDir: here,
    entryPoints: { app: "src/main.tsx" },
    outdir: out,
    bundle: true,
    minify: !options.includes("--watch"),
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    footer: { js: licences() },
    logLevel: "warning",
    ...jsx,
  })
  await context.rebuild()
  writeFileSync(join(out, "index.html"), HTML)
  if (options.includes("--sizes")) printSizes(out)
  if (options.includes("--watch")) await context.watch()
  else await context.dispose()
}

function printSizes(out) {
  const sizes = ["app.js", "app.css", "index.html"].map((name) => {
    const bytes = readFileSync(join(out, name))
    return { name, bytes: bytes.length, gzipped: gzipSync(bytes, { level: 9 }).length }
  })
  for (const file of sizes) console.log(`${file.name}  ${file.bytes} B, ${file.gzipped} B gzipped`)
  console.log(`all  ${sizes.reduce((sum, file) => sum + file.gzipped, 0)} B gzipped`)
}

/** Bundles each test file on its own, so that node needs neither a loader nor the types, and runs them. */
async function runTests(names) {
  const folder = join(here, "test")
  const tests = readdirSync(folder).filter((name) => /\.test\.tsx?$/.test(name))
  const chosen = names.length ? tests.filter((test) => names.some((name) => test.startsWith(name))) : tests
  const out = mkdtempSync(join(tmpdir(), "foretrace-page-"))
  try {
    await esbuild.build({
      absWorkingDir: here,
      entryPoints: chosen.map((name) => join("test", name)),
      outdir: out,
      bundle: true,
      platform: "node",
      format: "esm",
      outExtension: { ".js": ".mjs" },
      loader: { ".css": "empty" },
      define: { WEB_FOLDER: JSON.stringify(here) },
      logLevel: "warning",
      ...jsx,
    })
    const files = readdirSync(out).filter((name) => name.endsWith(".mjs")).map((name) => join(out, name))
    return spawnSync(process.execPath, ["--test", ...files], { stdio: "inherit" }).status ?? 1
  } finally {
    rmSync(out, { recursive: true })
  }
}

if (options.includes("--test")) process.exitCode = await runTests(words)
else if (words.length === 1) await buildPage(resolve(words[0]))
else {
  console.error("usage: node build.mjs OUT [--watch] [--sizes] | node build.mjs --test [NAME...]")
  process.exitCode = 2
}
