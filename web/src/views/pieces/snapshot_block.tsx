/** What a memory snapshot tells: the peak, memory over time, who held it, leaks, what was unused, and requests that did not fit. */
import type { JSX } from "preact"
import { useState } from "preact/hooks"
import type { Figure, Snapshot, SnapshotDevice, Table } from "../../data/types"
import { choice, choose } from "../../data/choice"
import { capitalised } from "../../base/format"
import { MarkGlyph } from "../../components/parts"
import { Segments } from "../../components/segments"
import { DataTable } from "../../components/table/table"
import "../memory.css"
import { ArrangedTable } from "./arranged_table"
import { CategoryParts, bytes, momentOf, seriesOf } from "./category_parts"
import { PageTop, type Total } from "./page_top"
import { SnapshotCurvePart } from "./snapshot_curve"

const TABLES = [
  { value: "line", label: "By source line" },
  { value: "category", label: "By category" },
  { value: "phase", label: "By phase" },
  { value: "module", label: "By module" },
  { value: "block", label: "Blocks" },
  { value: "step", label: "Steps" },
] as const
const HEIGHT = "max(240px, calc(100vh - 520px))"

/** `resource` is where the curve's detail is asked for. */
export function SnapshotBlock(props: { readonly value: Snapshot; readonly resource: string }): JSX.Element {
  const { value } = props
  const names = value.devices.map((device) => device.name)
  const chosen = choice("device", names, names[0] ?? "")
  const device = value.devices.find((candidate) => candidate.name === chosen)
  if (!device) return <p class="note-line">This snapshot holds nothing of any device.</p>
  return (
    <div class="page memory">
      <PageTop says={device.says} totals={totalsOf(device)}>
        {names.length > 1 && (
          <Segments label="Device" options={names.map((name) => ({ value: name, label: name }))} chosen={chosen}
            onChoose={(name) => choose({ device: name === names[0] ? "" : name, zoom: "" })} />
        )}
      </PageTop>
      {value.notes.map((note) => <p key={note} class="note-line">{capitalised(note)}.</p>)}
      {device.out_of_memory && <OutOfMemory device={device} />}
      {device.history ? <NoCurve device={device} says={device.history} /> : <SnapshotCurvePart key={device.name} device={device} resource={props.resource} />}
      <Tables device={device} />
      {device.layers && (
        <section class="told">
          <h2>Saved for the backward pass</h2>
          <p>{device.layers.says}.</p>
        </section>
      )}
      {device.optimizer && (
        <section class="told">
          <h2>The optimizer's memory</h2>
          <p>{capitalised(device.optimizer.says)}.</p>
        </section>
      )}
      <Leaks device={device} />
      <Unused device={device} />
    </div>
  )
}

/** What was held when the snapshot was made: without a history there is nothing to draw over time. */
function NoCurve(props: { readonly device: SnapshotDevice; readonly says: string }): JSX.Element {
  const { curve, peak } = props.device
  return (
    <div class="curve-and-parts">
      <p class="quiet">No curve: {props.says}.</p>
      <CategoryParts series={seriesOf(curve.series)} cursor={0} at={0} peak={peak} reserved={{ at: curve.reserved[0] ?? 0, peak: peak.reserved_bytes }} />
    </div>
  )
}

function totalsOf(device: SnapshotDevice): readonly Total[] {
  const { peak } = device
  const when = (ns: number): string => (device.history ? "" : ` at ${momentOf(device.timed)(ns)}`)
  const step = peak.step === null ? "" : `, step ${peak.step}`
  return [
    { heading: "Peak allocated", text: `${bytes(peak.bytes)}${when(peak.at_ns)}${step}`, says: "the most that tensors held at once, as torch.cuda.max_memory_allocated counts" },
    { heading: "Peak reserved", text: `${bytes(peak.reserved_bytes)}${when(peak.reserved_at_ns)}`, says: "the most that torch held from the device, as torch.cuda.max_memory_reserved counts" },
  ]
}

function Tables(props: { readonly device: SnapshotDevice }): JSX.Element {
  const { device } = props
  const shown = choice("show", TABLES.map((option) => option.value), "line")
  const table = device.tables[shown]
  return (
    <section>
      <div class="section-title">
        <Segments label={shown === "step" ? "Show" : "At the peak"} options={TABLES} chosen={shown} onChoose={(value) => choose({ show: value === "line" ? "" : value, sort: "", q: "" })} />
        <span class="caption">{table.says}</span>
      </div>
      {shown === "block" ? <Blocks device={device} /> : <ArrangedTable key={shown} table={table} first={[shown]} title={shown === "step" ? "Steps" : "Held at the peak"} sort={shown === "step" ? "" : "-held_bytes"} height={HEIGHT} />}
    </section>
  )
}

/** The largest blocks, and the stack of the one that was clicked. */
function Blocks(props: { readonly device: SnapshotDevice }): JSX.Element {
  const { tables, stacks } = props.device
  const [row, setRow] = useState<number | null>(null)
  const frames = row === null ? null : (stacks.frames[stacks.of_block[row] ?? -1] ?? [])
  return (
    <div class="blocks-and-stack">
      <ArrangedTable table={tables.block} first={["size_bytes", "line", "category", "phase", "lived_ns"]} hide={["address", "pool", "stream"]} title="Blocks" sort="-size_bytes" height={HEIGHT} onPoint={setRow} />
      <StackPanel title="Stack of the block" frames={frames} hint="Click a block to see where it was allocated." />
    </div>
  )
}

/** A stack, innermost frame first. */
export function StackPanel(props: { readonly title: string; readonly frames: readonly string[] | null; readonly hint: string }): JSX.Element {
  const { frames } = props
  return (
    <section class="stack" aria-label={props.title} aria-live="polite">
      <h3>{props.title}</h3>
      {frames === null && <p class="quiet">{props.hint}</p>}
      {frames?.length === 0 && <p class="quiet">No stack was recorded for it: allocated before the history, or by autograd's own threads.</p>}
      {frames !== null && frames.length > 0 && (
        <ol>
          {frames.map((frame, depth) => <li key={depth} class="code" title={frame}>{frame}</li>)}
        </ol>
      )}
    </section>
  )
}

function Leaks(props: { readonly device: SnapshotDevice }): JSX.Element {
  const { leaks } = props.device
  const [row, setRow] = useState<number | null>(null)
  return (
    <section class="told">
      <h2><MarkGlyph mark={leaks.mark} /> Leaks</h2>
      <p>{capitalised(leaks.says)}.</p>
      {leaks.table && (
        <div class="blocks-and-stack">
          <DataTable id="leak" table={leaks.table} title="What each step keeps" unfiltered onPoint={setRow} />
          <StackPanel title="Where it is allocated" frames={leaks.stacks[row ?? 0] ?? []} hint="" />
        </div>
      )}
      {leaks.repetitions && <DataTable id="repetition" table={leaks.repetitions} title="Steps that show it" unfiltered />}
      {leaks.hint && <p class="caption">{leaks.hint}</p>}
    </section>
  )
}

function Unused(props: { readonly device: SnapshotDevice }): JSX.Element {
  const { unused } = props.device
  return (
    <section class="told">
      <h2><MarkGlyph mark={unused.mark} /> Fragmentation</h2>
      <p>{capitalised(unused.says)}.</p>
      {unused.flushes && <p>{capitalised(unused.flushes)}.</p>}
      {unused.beside && <p>{capitalised(unused.beside)}.</p>}
      <table class="figures" aria-label="What torch held from the device">
        <thead>
          <tr>
            <th scope="col">Memory</th>
            <th scope="col" class="number">At the peak</th>
            <th scope="col" class="number">At the end</th>
          </tr>
        </thead>
        <tbody>
          {unused.figures.map((figure) => (
            <tr key={figure.label}>
              <th scope="row">{capitalised(figure.label)}</th>
              <td class="number">{figure.at_peak}</td>
              <td class="number">{figure.at_end}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {unused.advice.map((advice) => (
        <p key={advice.setting}>
          <code>{advice.setting}</code>: {advice.reason}.
        </p>
      ))}
      {unused.advice.length === 0 && <p class="caption">No setting of the allocator is likely to help.</p>}
    </section>
  )
}

function OutOfMemory(props: { readonly device: SnapshotDevice }): JSX.Element | null {
  const short = props.device.out_of_memory
  if (!short) return null
  return (
    <section class="told short">
      <h2><MarkGlyph mark="bad" /> Out of memory at <span class="code">{short.where}</span></h2>
      <p>{capitalised(short.why)}.</p>
      <p><strong>Would fit with</strong> {short.would_fit}.</p>
      <Figures figures={short.figures} />
      <Holders table={short.holders} />
      {short.more && <p class="caption">{capitalised(short.more)}.</p>}
    </section>
  )
}

function Figures(props: { readonly figures: readonly Figure[] }): JSX.Element {
  return (
    <dl class="figures">
      {props.figures.map((figure) => (
        <div key={figure.label}>
          <dt>{capitalised(figure.label)}</dt>
          <dd>{figure.value}</dd>
        </div>
      ))}
    </dl>
  )
}

function Holders(props: { readonly table: Table }): JSX.Element {
  return <DataTable id="held" table={props.table} title="Who held most then" unfiltered />
}
