/** Verdicts: what people read is one scale, whatever the payload's values are called. */
import assert from "node:assert/strict"
import { test } from "node:test"
import { verdictText } from "../src/base/verdict"
import type { Finding } from "../src/data/types"
import { alternativeText, findingMarkdown } from "../src/views/pieces/finding_text"

test("the scale is gain, maybe, none", () => {
  assert.deepEqual((["gain", "uncertain", "no gain"] as const).map(verdictText), ["gain", "maybe", "none"])
})

test("a finding to paste says its verdict on that scale", () => {
  const range = { point: 0, low: -1, high: 1 }
  const finding: Finding = {
    number: 1, rule: "launch-bound", severity: "low", title: "Title", says: "Says.", why: "Why.", unless: "", where: [], of: "for the recording", bars: [], facts: [], fix: null,
    label: "", alternatives: [],
    predicted: { verdict: "no gain", step_ms: 10, after_ms: range, saved_ms: range, speedup: { point: 1, low: 0.9, high: 1.05 }, basis: "basis", not_promised: "" },
    confidence: "Low", spans: [], span: null, from_ns: null, to_ns: null, manual: "",
  }
  assert.match(findingMarkdown(finding), /verdict: none\); basis/)
  assert.match(findingMarkdown(finding), / of 10\.0 ms for the recording \(/)
  assert.doesNotMatch(findingMarkdown(finding), /no gain|per step/)
})

test("another fix says its worth on that scale", () => {
  const range = { point: 0, low: -1, high: 1 }
  const predicted = { verdict: "uncertain", step_ms: 10, after_ms: range, saved_ms: range, speedup: { point: 1.4, low: 1.2, high: 1.6 }, basis: "basis", not_promised: "" } as const
  const other = { label: "bf16-autocast", fix: { says: "Cast.", code: "" }, unless: "", predicted }
  assert.equal(alternativeText(other), "1.40× (1.20–1.60), maybe")
  assert.equal(alternativeText({ ...other, predicted: null }), "not predicted")
})

test("a finding to paste shows names as text", () => {
  const hostile = "a | `c` <img src=x> [l](javascript:x) **d** https://evil.example \u001b[31m"
  const finding: Finding = {
    number: 1, rule: "launch-bound", severity: "low", title: hostile, says: hostile, why: "", unless: "", bars: [], label: "", alternatives: [],
    where: [{ file: "a`.py", line: 3, function: "\u202ef", text: "a`.py:3 in \u202ef" }], facts: [{ label: "name", value: hostile }], fix: { says: hostile, code: "x\n```\n<b>" },
    predicted: null, confidence: "Low", spans: [], from_ns: null, to_ns: null, manual: "",
  } as unknown as Finding
  const text = findingMarkdown(finding)
  const shown = "a \\| \\`c\\` \\<img src=x\\> \\[l\\](javascript:x) \\*\\*d\\*\\* https\\://evil.example \\\\x1b\\[31m"
  assert.equal(text.split(shown).length - 1, 4)
  assert.ok(text.includes("Where: ``a`.py:3 in \\u202ef``"))
  assert.ok(text.includes("````\nx\n```\n<b>\n````"))
})
