/** Modules: trees of time as a table, a flame graph, left heavy, or the callers and callees of one name. */
import type { JSX } from "preact"
import { useMemo, useState } from "preact/hooks"
import { place } from "../data/state"
import type { Tree, Trees } from "../data/types"
import { choice, choose } from "../data/choice"
import { Flame } from "../components/flame/flame"
import { byName, calleesOf, callersOf } from "../components/flame/tree"
import { TreeTable } from "../components/flame/tree_table"
import { formatNs, shorten } from "../base/format"
import { LinkButton } from "../components/parts"
import { Recorded } from "../components/recorded"
import { Segments } from "../components/segments"
import { useResource } from "../data/use_resource"
import { PageTop } from "./pieces/page_top"

const LAYOUTS = [
  { value: "tree", label: "Table" },
  { value: "flame", label: "Flame graph", title: "Frames in the order recorded" },
  { value: "heavy", label: "Left heavy", title: "The largest frames first" },
  { value: "sandwich", label: "Sandwich", title: "Callers and callees of one name" },
] as const
type Layout = (typeof LAYOUTS)[number]["value"]
const MOST_NAMES = 400

export function Modules(): JSX.Element {
  return (
    <Recorded<Trees> view="modules" title="Modules" ask={() => useResource<Trees>("modules")} empty={(value) => value.trees.length === 0}
      otherwise="No modules or stacks were recorded. Record with with_stack=True or with_modules=True.">
      {(value) => <ModulesPage value={value} />}
    </Recorded>
  )
}

function ModulesPage(props: { readonly value: Trees }): JSX.Element {
  const { trees, says } = props.value
  const titles = trees.map((tree) => tree.title)
  const title = choice("tree", titles, titles[0] ?? "")
  const tree = trees.find((candidate) => candidate.title === title)
  const layout = choice("layout", LAYOUTS.map((option) => option.value), "tree")
  return (
    <div class="page">
      <PageTop says={says || title}>
        <Segments label="Tree" options={titles.map((value) => ({ value, label: value }))} chosen={title} onChoose={(value) => choose({ tree: value === titles[0] ? "" : value, zoom: "", of: "" })} />
        <Segments label="Layout" options={LAYOUTS} chosen={layout} onChoose={(value) => choose({ layout: value === "tree" ? "" : value, zoom: "" })} />
        {layout !== "tree" && <Tints modulesOnly={title.startsWith("Modules")} />}
      </PageTop>
      {tree && <OneTree tree={tree} layout={layout} />}
    </div>
  )
}

function OneTree(props: { readonly tree: Tree; readonly layout: Layout }): JSX.Element {
  const { tree, layout } = props
  if (layout === "tree") return <TreeTable tree={tree} onOpen={(node) => choose({ layout: "heavy", zoom: String(node) })} />
  if (layout === "sandwich") return <Sandwich tree={tree} />
  return (
    <Flame tree={tree} title={tree.title} order={layout === "heavy" ? "heavy" : "recorded"} zoom={zoomed(tree)}
      onZoom={(node) => choose({ zoom: node === null ? "" : String(node) })}
      actions={(node) => <LinkButton onClick={() => choose({ layout: "sandwich", of: tree.name[node] ?? "", zoom: "" })}>Callers and callees</LinkButton>} />
  )
}

function zoomed(tree: Tree): number | null {
  const text = place.value.rest["zoom"] ?? ""
  return /^\d+$/.test(text) && Number(text) < tree.name.length ? Number(text) : null
}

function Sandwich(props: { readonly tree: Tree }): JSX.Element {
  const { tree } = props
  const names = useMemo(() => byName(tree), [tree])
  const asked = place.value.rest["of"]
  const chosen = names.find((entry) => entry.name === asked) ?? names[0]
  const name = chosen?.name ?? ""
  const callers = useMemo(() => callersOf(tree, name), [tree, name])
  const callees = useMemo(() => calleesOf(tree, name), [tree, name])
  return (
    <div class="sandwich">
      <div>
        <h2>Names by self time</h2>
        <ol>
          {names.slice(0, MOST_NAMES).map((entry) => (
            <li key={entry.name}>
              <button type="button" aria-pressed={entry === chosen} title={shorten(entry.name, 600)} onClick={() => choose({ of: entry.name }, { replace: true })}>
                <code>{shorten(entry.name, 60)}</code>
                <span>{formatNs(entry.self)}</span>
              </button>
            </li>
          ))}
        </ol>
      </div>
      <div>
        <h2>Callers of {shorten(name, 80)}</h2>
        <Half key={`callers ${name}`} tree={callers} title={`Callers of ${name}`} inverted />
        <h2>Callees of {shorten(name, 80)}</h2>
        <Half key={`callees ${name}`} tree={callees} title={`Callees of ${name}`} inverted={false} />
      </div>
    </div>
  )
}

function Half(props: { readonly tree: Tree; readonly title: string; readonly inverted: boolean }): JSX.Element {
  const { tree } = props
  const [zoom, setZoom] = useState<number | null>(null)
  return (
    <Flame tree={tree} title={props.title} order="heavy" inverted={props.inverted} zoom={zoom} onZoom={setZoom}
      actions={(node) => <LinkButton onClick={() => choose({ of: tree.name[node] ?? "" })}>Callers and callees of this</LinkButton>} />
  )
}

function Tints(props: { readonly modulesOnly: boolean }): JSX.Element {
  return (
    <ul class="tints">
      <li><span class="swatch" style={{ background: "var(--h-note)" }} />module</li>
      {!props.modulesOnly && <li><span class="swatch" style={{ background: "var(--h-op)" }} />function</li>}
      {!props.modulesOnly && <li><span class="swatch" style={{ background: "var(--h-rt)" }} />kernel or operator</li>}
      <li><span class="own" />self time</li>
    </ul>
  )
}
