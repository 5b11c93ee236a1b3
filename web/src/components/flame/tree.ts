/**
 * A tree of time, as the page draws it: frames laid out side by side, callers and callees of one name, and rows that
 * open and close. Totals come with the tree; what is added up here is only which frames stand together.
 */
import type { Tree } from "../../data/types"

/** A frame's place: its share of the whole from left to right, and how many frames are above it. */
export interface Box {
  readonly node: number
  readonly depth: number
  readonly from: number
  readonly to: number
}

export type Order = "recorded" | "heavy"

/** For each node its children, then the roots. */
export function childrenOf(tree: Tree): { readonly roots: readonly number[]; readonly children: readonly (readonly number[])[] } {
  const roots: number[] = []
  const children: number[][] = tree.name.map(() => [])
  tree.parent.forEach((parent, node) => (parent < 0 ? roots : children[parent])?.push(node))
  return { roots, children }
}

export function wholeOf(tree: Tree): number {
  return tree.parent.reduce((sum, parent, node) => (parent < 0 ? sum + (tree.total[node] ?? 0) : sum), 0)
}

/** Every frame's place, callers before what they call. */
export function layOut(tree: Tree, order: Order): readonly Box[] {
  const { roots, children } = childrenOf(tree)
  const whole = wholeOf(tree)
  if (whole <= 0) return []
  const boxes: Box[] = []
  const total = (node: number): number => Math.max(0, tree.total[node] ?? 0)
  const place = (nodes: readonly number[], depth: number, from: number, room: number): void => {
    const wide = nodes.reduce((sum, node) => sum + total(node), 0)
    // Damaged totals may exceed their caller's: they share its room.
    const scale = wide > 0 ? Math.min(1 / whole, room / wide) : 0
    const sorted = order === "heavy" ? [...nodes].sort((a, b) => total(b) - total(a)) : nodes
    let left = from
    for (const node of sorted) {
      const width = total(node) * scale
      if (width <= 0) continue
      boxes.push({ node, depth, from: left, to: left + width })
      place(children[node] ?? [], depth + 1, left, width)
      left += width
    }
  }
  place(roots, 0, 0, 1)
  return boxes
}

/** All frames of one name that are in no other frame of that name. */
export function outermost(tree: Tree, name: string): readonly number[] {
  const inside = new Uint8Array(tree.name.length)
  const nodes: number[] = []
  tree.name.forEach((candidate, node) => {
    const parent = tree.parent[node] ?? -1
    const within = parent >= 0 && inside[parent] === 1
    if (candidate === name && !within) nodes.push(node)
    inside[node] = within || candidate === name ? 1 : 0
  })
  return nodes
}

/** A tree under construction: frames of one name under one caller are one frame. */
class Joined {
  readonly parent: number[] = []
  readonly name: string[] = []
  readonly total: number[] = []
  readonly self: number[] = []
  readonly #places = new Map<string, number>()

  add(parent: number, name: string, total: number, self: number): number {
    const key = `${parent} ${name}`
    let node = this.#places.get(key)
    if (node === undefined) {
      node = this.name.length
      this.#places.set(key, node)
      this.parent.push(parent)
      this.name.push(name)
      this.total.push(0)
      this.self.push(0)
    }
    this.total[node]! += total
    this.self[node]! += self
    return node
  }

  tree(like: Tree): Tree {
    return { title: like.title, measure: like.measure, parent: this.parent, name: this.name, total: this.total, self: this.self, calls: this.name.map(() => null) }
  }
}

/** What the frames of one name call, together. */
export function calleesOf(tree: Tree, name: string): Tree {
  const { children } = childrenOf(tree)
  const joined = new Joined()
  const add = (node: number, parent: number): void => {
    const at = joined.add(parent, tree.name[node] ?? "", tree.total[node] ?? 0, tree.self[node] ?? 0)
    for (const child of children[node] ?? []) add(child, at)
  }
  for (const node of outermost(tree, name)) add(node, -1)
  return joined.tree(tree)
}

/** Who calls the frames of one name: the name is the root, its callers stand on it. */
export function callersOf(tree: Tree, name: string): Tree {
  const joined = new Joined()
  for (const node of outermost(tree, name)) {
    const weight = tree.total[node] ?? 0
    let at = -1
    for (let caller = node; caller >= 0; caller = tree.parent[caller] ?? -1) at = joined.add(at, tree.name[caller] ?? "", weight, 0)
  }
  return joined.tree(tree)
}

export interface Named {
  readonly name: string
  readonly total: number
  readonly self: number
  readonly frames: number
}

/** Each name once; a frame within one of its own name adds nothing to the total. The largest own time first. */
export function byName(tree: Tree): readonly Named[] {
  const { roots, children } = childrenOf(tree)
  const names = new Map<string, { name: string; total: number; self: number; frames: number }>()
  const open = new Map<string, number>()
  const visit = (node: number): void => {
    const name = tree.name[node] ?? ""
    const entry = names.get(name) ?? { name, total: 0, self: 0, frames: 0 }
    names.set(name, entry)
    const depth = open.get(name) ?? 0
    entry.self += tree.self[node] ?? 0
    entry.frames += 1
    if (depth === 0) entry.total += tree.total[node] ?? 0
    open.set(name, depth + 1)
    for (const child of children[node] ?? []) visit(child)
    open.set(name, depth)
  }
  roots.forEach(visit)
  return [...names.values()].sort((a, b) => b.self - a.self)
}

/** Nodes that are open at first: all of a small tree, else those that hold at least `share` of the whole. */
export function openAtFirst(tree: Tree, share = 0.02, small = 200): ReadonlySet<number> {
  const least = tree.name.length <= small ? 0 : share * wholeOf(tree)
  return new Set(tree.total.flatMap((total, node) => (total >= least ? [node] : [])))
}

export interface TreeRow {
  readonly node: number
  readonly depth: number
  readonly children: number
}

/** The rows in sight of the open nodes, the largest of each caller first. */
export function shownTreeRows(tree: Tree, open: ReadonlySet<number>): readonly TreeRow[] {
  const { roots, children } = childrenOf(tree)
  const rows: TreeRow[] = []
  const add = (nodes: readonly number[], depth: number): void => {
    for (const node of [...nodes].sort((a, b) => (tree.total[b] ?? 0) - (tree.total[a] ?? 0))) {
      const below = children[node] ?? []
      rows.push({ node, depth, children: below.length })
      if (open.has(node)) add(below, depth + 1)
    }
  }
  add(roots, 0)
  return rows
}

/** What sort of frame it is, for its tint: trees of modules hold nothing else. */
export function frameSort(tree: Tree, name: string): "module" | "function" | "work" {
  if (name.startsWith("nn.Module: ") || tree.title.startsWith("Modules")) return "module"
  return /\((?:\S+:\d+|\S+\.py)\)$/.test(name) || name.startsWith("<built-in") ? "function" : "work"
}
