/**
 * The page over a folder of resources, without Python: `node dev.mjs DATA [PORT]`.
 *
 * DATA holds one folder per run; a resource is a file in it with the resource's name (and .json or .bin behind it).
 * The page is built again on every load.
 */
import { execFileSync } from "node:child_process"
import { existsSync, mkdtempSync, readFileSync, readdirSync, statSync } from "node:fs"
import { createServer } from "node:http"
import { tmpdir } from "node:os"
import { dirname, join, normalize } from "node:path"
import { fileURLToPath } from "node:url"

const here = dirname(fileURLToPath(import.meta.url))
const [data = ".", port = "8123"] = process.argv.slice(2)
const out = mkdtempSync(join(tmpdir(), "foretrace-page-"))
const TYPES = { js: "text/javascript", css: "text/css", html: "text/html", json: "application/json", bin: "application/octet-stream" }

function resource(path) {
  if (path === "runs") return { body: JSON.stringify(runs()), type: TYPES.json }
  const plain = normalize(decodeURIComponent(path.replace(/^runs\//, ""))).replaceAll("..", "")
  for (const [suffix, type] of [["", TYPES.json], [".json", TYPES.json], [".bin", TYPES.bin]]) {
    const file = join(data, plain + suffix)
    if (existsSync(file) && statSync(file).isFile()) return { body: readFileSync(file), type }
  }
  return { status: 404, body: JSON.stringify({ says: `${plain} is not in ${data}` }), type: TYPES.json }
}

function runs() {
  const given = join(data, "runs.json")
  if (existsSync(given)) return JSON.parse(readFileSync(given, "utf8"))
  const names = readdirSync(data).filter((name) => existsSync(join(data, name, "overview.json")))
  const entry = (name) => {
    const step_ms = JSON.parse(readFileSync(join(data, name, "overview.json"), "utf8")).headline.before_ms
    return { id: name, name, group: name.split(".")[0], label: name.split(".").slice(1).join(".") || name, state: "ready", progress_pct: null, says: null, step_ms }
  }
  return { schema: 1, foretrace: "dev", embedded: false, runs: names.map(entry) }
}

function page(path) {
  const name = path === "" ? "index.html" : path
  if (name === "index.html") execFileSync(process.execPath, [join(here, "build.mjs"), out])
  const file = join(out, name)
  if (!["index.html", "app.js", "app.css"].includes(name) || !existsSync(file)) return { status: 404, body: "", type: TYPES.html }
  return { body: readFileSync(file), type: TYPES[name.split(".").pop()] }
}

createServer((request, response) => {
  const path = (request.url ?? "/").slice(1).split("?")[0]
  const { status = 200, body, type } = path.startsWith("api/") ? resource(path.slice(4)) : page(path)
  const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:"
  response.writeHead(status, { "Content-Type": `${type}; charset=utf-8`, "Content-Security-Policy": policy, "Cache-Control": "no-store" }).end(body)
}).listen(Number(port), "127.0.0.1", () => console.log(`http://127.0.0.1:${port}/`))
