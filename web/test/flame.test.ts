/** Trees of time: where frames stand, who calls whom, which rows are in sight. */
import assert from "node:assert/strict"
import { test } from "node:test"
import type { Tree } from "../src/data/types"
import { type FlameScene, fitted, frameAt, neighbourFrame } from "../src/components/flame/draw"
import { byName, calleesOf, callersOf, frameSort, layOut, openAtFirst, outermost, shownTreeRows } from "../src/components/flame/tree"
import { asTable } from "../src/components/flame/tree_table"

// main 10 = own 1 + f 3 (own 1, calls g 2) + g 6 (own 2, calls f 4 = own 1 + g 3)
const tree: Tree = {
  title: "Python stacks, by host time", measure: "host_ns",
  parent: [-1, 0, 1, 0, 3, 4], name: ["main", "f", "g", "g", "f", "g"], total: [10, 3, 2, 6, 4, 3], self: [1, 1, 2, 2, 1, 3], calls: [1, 1, 1, 1, 1, 1],
}

test("frames stand in the order recorded, or the largest first", () => {
  const at = (order: "recorded" | "heavy") => layOut(tree, order).map(({ node, depth, from, to }) => [node, depth, Number(from.toFixed(6)), Number(to.toFixed(6))])
  assert.deepEqual(at("recorded"), [[0, 0, 0, 1], [1, 1, 0, 0.3], [2, 2, 0, 0.2], [3, 1, 0.3, 0.9], [4, 2, 0.3, 0.7], [5, 3, 0.3, 0.6]])
  assert.deepEqual(at("heavy").map(([node]) => node), [0, 3, 4, 5, 1, 2])
})

test("children that claim more than their caller share its room", () => {
  const damaged: Tree = { ...tree, parent: [-1, 0, 0], name: ["a", "b", "c"], total: [10, 15, 5], self: [0, 15, 5], calls: [1, 1, 1] }
  assert.deepEqual(layOut(damaged, "recorded").map(({ to }) => to), [1, 0.75, 1])
})

test("a tree without time has no frames", () => {
  assert.deepEqual(layOut({ ...tree, total: tree.total.map(() => 0) }, "heavy"), [])
})

test("a recursive name counts its outermost frames", () => {
  assert.deepEqual(outermost(tree, "g"), [2, 3])
  assert.deepEqual(byName(tree).map(({ name, total, self, frames }) => [name, total, self, frames]), [["g", 8, 7, 3], ["f", 7, 2, 2], ["main", 10, 1, 1]])
})

test("callees join what the frames of one name call", () => {
  const callees = calleesOf(tree, "g")
  assert.deepEqual([callees.name, callees.parent, callees.total], [["g", "f", "g"], [-1, 0, 1], [8, 4, 3]])
})

test("callers stand on the name, with its time", () => {
  const callers = callersOf(tree, "g")
  assert.deepEqual([callers.name, callers.parent, callers.total], [["g", "f", "main", "main"], [-1, 0, 1, 0], [8, 2, 2, 6]])
})

test("rows of closed nodes are out of sight; a small tree is open", () => {
  assert.equal(openAtFirst(tree).size, 6)
  assert.deepEqual([...openAtFirst(tree, 0.5, 3)], [0, 3])
  assert.deepEqual(shownTreeRows(tree, new Set([0])).map(({ node, depth, children }) => [node, depth, children]), [[0, 0, 1 + 1], [3, 1, 1], [1, 1, 1]])
})

test("rows are copied with their indentation and shares", () => {
  const table = asTable(tree, shownTreeRows(tree, new Set([0])), 10)
  assert.deepEqual(table.data.map((column) => column[1]), ["  g", 6, 60, 2, 20, 1])
})

test("a point finds its frame, also where roots are at the foot", () => {
  const boxes = layOut(tree, "recorded")
  const scene: FlameScene = { tree, boxes, from: 0, to: 1, depths: 4, inverted: false, selected: null, matches: null }
  assert.equal(frameAt(scene, 100, 50, 25)?.node, 3)
  assert.equal(frameAt({ ...scene, inverted: true }, 100, 50, 45)?.node, 3)
  assert.equal(frameAt(scene, 100, 95, 25), null)
})

test("keys lead to the caller, the largest callee and the neighbours", () => {
  const boxes = layOut(tree, "recorded")
  const box = (node: number) => boxes.find((each) => each.node === node) ?? null
  const to = (node: number, key: "up" | "down" | "left" | "right") => neighbourFrame(boxes, tree, box(node), key)?.node
  assert.deepEqual([to(0, "down"), to(1, "right"), to(3, "left"), to(5, "up"), to(0, "up"), to(5, "down")], [3, 3, 1, 4, 0, 5])
  assert.equal(neighbourFrame(boxes, tree, null, "down")?.node, 0)
})

test("frames are told apart by their names, and cut to their room", () => {
  assert.deepEqual(["nn.Module: Block_0", "forward (model.py:12)", "<built-in method mm>", "gemm"].map((name) => frameSort(tree, name)), ["module", "function", "function", "work"])
  assert.equal(frameSort({ ...tree, title: "Modules, by GPU time" }, "Block_0"), "module")
  assert.deepEqual([fitted("nn.Module: Block_0", 9), fitted("forward (model.py:12)", 8)], ["Block_0", "forward…"])
})
