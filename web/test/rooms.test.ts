/** The rooms of the page: base <- data <- components <- views. A file imports from its own room and from those before it. */
import assert from "node:assert/strict"
import { readFileSync, readdirSync } from "node:fs"
import { dirname, join, normalize } from "node:path/posix"
import { test } from "node:test"

declare const WEB_FOLDER: string

const ROOMS = ["base", "data", "components", "views"]
/** The page begins in main.tsx, above all rooms; css.d.ts declares what a style sheet is. */
const ABOVE = ["main.tsx", "css.d.ts"]

type Sources = ReadonlyMap<string, string> // path below src/ -> text

function roomOf(path: string): number {
  return ROOMS.indexOf(path.split("/")[0] ?? "")
}

/** What a file imports from beside it, as written: also what only its types need, and what it exports again. */
function importsOf(text: string): readonly string[] {
  return [...text.matchAll(/\b(?:from|import)\s*\(?\s*["'](\.[^"']*)["']/g)].map((found) => found[1] ?? "")
}

function target(path: string, specifier: string): string {
  return normalize(join(dirname(path), specifier))
}

/** A sentence for every file outside the rooms and for every import that points up, or out of src/. */
function violations(sources: Sources): readonly string[] {
  return [...sources].flatMap(([path, text]) => {
    if (ABOVE.includes(path)) return []
    if (roomOf(path) < 0) return [`src/${path} is in no room: move it to one of ${ROOMS.join(", ")}`]
    const wrong = importsOf(text).filter((each) => roomOf(target(path, each)) < 0 || roomOf(target(path, each)) > roomOf(path))
    return wrong.map((each) => `src/${path} imports "${each}": ${path.split("/")[0]} may import only ${ROOMS.slice(0, roomOf(path) + 1).join(", ")}`)
  })
}

/** Files that import each other in a circle, as "a -> b -> a". */
function circles(sources: Sources): readonly string[] {
  const resolved = (path: string, specifier: string): string | undefined => {
    const at = target(path, specifier)
    return [at, `${at}.ts`, `${at}.tsx`, `${at}/index.ts`].find((each) => sources.has(each))
  }
  const done = new Set<string>()
  const visit = (path: string, way: readonly string[]): readonly string[] => {
    if (way.includes(path)) return [[...way.slice(way.indexOf(path)), path].join(" -> ")]
    if (done.has(path)) return []
    const found = importsOf(sources.get(path) ?? "").flatMap((each) => visit(resolved(path, each) ?? "", [...way, path]))
    done.add(path)
    return found
  }
  return [...sources.keys()].flatMap((path) => visit(path, []))
}

function page(): Sources {
  const folder = join(WEB_FOLDER, "src")
  const paths = readdirSync(folder, { recursive: true, encoding: "utf8" }).map((path) => path.replaceAll("\\", "/"))
  return new Map(paths.filter((path) => /\.tsx?$/.test(path)).map((path) => [path, readFileSync(join(folder, path), "utf8")]))
}

test("every import of the page points down", () => {
  const sources = page()
  for (const room of ROOMS) assert.ok([...sources.keys()].some((path) => path.startsWith(`${room}/`)), `src/${room} is empty`)
  assert.deepEqual(violations(sources), [])
})

test("no files of the page import each other in a circle", () => {
  assert.deepEqual(circles(page()), [])
})

test("an import that points up is named with its file, however it is written", () => {
  const written = ['import { go } from "../data/state"', 'import type { Table } from "../data/types"', 'export {\n  go,\n} from "../data/state"', 'import "../views/page.css"', 'const later = import("../views/shell")']
  for (const text of written) {
    const [specifier] = importsOf(text)
    assert.deepEqual(violations(new Map([["base/format.ts", text]])), [`src/base/format.ts imports "${specifier}": base may import only base`])
  }
})

test("imports of the own room, of a lower one and of a package are fine; a file outside the rooms is not", () => {
  const text = 'import { signal } from "@preact/signals"\nimport { Bar } from "../parts"\nimport { fixed } from "../../base/format"'
  assert.deepEqual(violations(new Map([["components/table/table.tsx", text], ["main.tsx", 'import { Shell } from "./views/shell"']])), [])
  assert.deepEqual(violations(new Map([["lib/table.tsx", ""]])), ["src/lib/table.tsx is in no room: move it to one of base, data, components, views"])
  assert.equal(violations(new Map([["views/shell.tsx", 'import "../../test/format.json"']])).length, 1)
})

test("a circle is shown as the way around it", () => {
  const sources = new Map([["data/a.ts", 'import "./b"'], ["data/b.ts", 'import type { A } from "./a"'], ["data/c.ts", 'import "./a"']])
  assert.deepEqual(circles(sources), ["data/a.ts -> data/b.ts -> data/a.ts"])
})
