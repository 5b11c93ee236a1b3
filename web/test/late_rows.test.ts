import assert from "node:assert/strict"
import { test } from "node:test"
import { lateRows, ranksOfRow } from "../src/views/pieces/late_rows"

test("with room for all, every rank has its own row", () => {
  const late = [[0, 5], [null, 7], [3, null]]
  const { rows, latest, most_ns: most } = lateRows(late, 2, 420)
  assert.equal(rows, 3)
  assert.deepEqual([...latest], [0, 0, -1, 1, 2, -1])
  assert.equal(most, 7)
})

test("where ranks share a row the latest one is shown, whichever it is", () => {
  for (const slow of [0, 1, 4095, 9999, 10_239]) {
    const late = Array.from({ length: 10_240 }, (_, rank) => [rank === slow ? 900 : rank % 7, rank % 3 === 0 ? null : 2])
    const { rows, latest, most_ns: most } = lateRows(late, 2, 420)
    assert.equal(rows, 420)
    assert.equal(most, 900)
    const shown = [...latest].flatMap((rank, at) => (rank === slow && at % 2 === 0 ? [at / 2] : []))
    assert.equal(shown.length, 1, `rank ${slow}`)
    const [from, until] = ranksOfRow(shown[0]!, 10_240, rows)
    assert.ok(from <= slow && slow <= until)
  }
})

test("every rank belongs to one row", () => {
  for (const [ranks, rows] of [[10_240, 420], [421, 420], [7, 7], [1000, 333]] as const) {
    let next = 0
    for (let row = 0; row < rows; row++) {
      const [from, until] = ranksOfRow(row, ranks, rows)
      assert.equal(from, next)
      assert.ok(until >= from)
      next = until + 1
    }
    assert.equal(next, ranks)
  }
})

test("a row in which nothing was recorded stays empty, and no lateness is kept apart from nothing", () => {
  assert.deepEqual([...lateRows([[null], [null], [0], [null]], 1, 2).latest], [-1, 2])
})
