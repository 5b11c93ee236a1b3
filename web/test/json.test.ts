/** Strings of a trace, as they may be shown. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { parseJson } from "../src/base/json"

test("what hides or turns text around is spelled out, wherever it stands", () => {
  const text = JSON.stringify({ names: ["a\u202eb", "<script>alert(1)</script>"], deep: { code: "x\n\ty\u0007", wide: "漢字 é 🚀" } })
  assert.deepEqual(parseJson(text), { names: ["a\\u202eb", "<script>alert(1)</script>"], deep: { code: "x\n\ty\\x07", wide: "漢字 é 🚀" } })
})

test("escaped characters are found too", () => {
  assert.deepEqual(parseJson('["\\u200bhidden", "caf\\u00e9"]'), ["\\u200bhidden", "café"])
})
