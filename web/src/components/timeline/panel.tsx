/** The panel under the board: what the area adds up to, and the details of the selected span. */

import type { JSX } from "preact"
import { useEffect, useState } from "preact/hooks"
import { type Resource, addressOf, linkTo, overview, resourceOf, runId, valueOf } from "../../data/state"
import type { Finding, SpanDetail, Track } from "../../data/types"
import { HOST_KINDS, KINDS } from "../../data/types"
import { copyText } from "../copy"
import { counted, fixed, formatCount, formatNs, shorten, visible } from "../../base/format"
import { Bar, Chip, colourOf, kindText, LinkButton, Swatch } from "../parts"
import { type Aggregate, aggregate, type AggregateRow, groupsIn } from "./aggregate"
import { around, type View } from "./interaction"
import { isWhole, NO_SPAN } from "./model"
import { openSpan, selectSpan, showSpan, type TimelineState } from "./state"

const ALL_KINDS = [...KINDS, ...HOST_KINDS]
const SHOWN_ROWS = 40
const GROUP_NAMES: Readonly<Record<Track["group"], string>> = { gpu: "GPU", idle: "Idle", host: "Host", modules: "Modules", python: "Python", marks: "Marks" }
const GROUP_HEADINGS: Readonly<Record<Track["group"], string>> = { gpu: "Kernel", idle: "Cause", host: "Operator", modules: "Module", python: "Function", marks: "Mark" }

const NOUNS: Readonly<Record<Track["group"], string>> = { gpu: "GPU event", idle: "idle gap", host: "host span", modules: "module", python: "Python call", marks: "mark" }

export function Panel(props: { readonly state: TimelineState }): JSX.Element {
  return (
    <div class="tl-panel">
      <AreaPanel state={props.state} />
      <SpanPanel state={props.state} />
    </div>
  )
}

function findingOf(number: number | null): Finding | null {
  if (number === null || number === 0) return null
  return valueOf(overview.value)?.findings.find((finding) => finding.number === number) ?? null
}

function FindingChip(props: { readonly number: number; readonly words?: string }): JSX.Element {
  const finding = findingOf(props.number)
  return (
    <Chip href={linkTo({ view: "findings", rest: { finding: String(props.number) } })}>
      {props.words ?? `Finding ${props.number}`}
      {finding !== null && <span class="unseen">: {finding.title}</span>}
    </Chip>
  )
}

interface Sums {
  readonly groups: readonly Track["group"][]
  readonly sums: Aggregate | null
}

/** Adds up after the picture is drawn: over millions of spans it would be late. */
function useSums(state: TimelineState, area: View, chosen: Track["group"] | null): Sums | null {
  const [totals, setTotals] = useState<Sums | null>(null)
  const { model } = state
  useEffect(() => {
    if (!isWhole(model.columns)) return
    const timer = window.setTimeout(() => {
      const groups = groupsIn(model.timeline, model.columns, area)
      const group = chosen !== null && groups.includes(chosen) ? chosen : groups[0]
      setTotals({ groups, sums: group === undefined ? null : aggregate(model.timeline, model.columns, area, group) })
    }, 30)
    return () => clearTimeout(timer)
  }, [model, area.from, area.to, chosen])
  return totals
}

/** The view once it rests. */
function useRestingView(state: TimelineState): View {
  const [resting, setResting] = useState(state.view.peek())
  useEffect(() => {
    let timer = 0
    const stop = state.view.subscribe((view) => {
      clearTimeout(timer)
      timer = window.setTimeout(() => setResting(view), 200)
    })
    return () => {
      stop()
      clearTimeout(timer)
    }
  }, [state])
  return resting
}

/** A recording that comes in windows: spans thinner than a pixel are not all here. */
const THINNED = "; counts only spans wide enough to draw, zoom in for the rest"

/** Of the area; without one, of what is in view. */
function AreaPanel(props: { readonly state: TimelineState }): JSX.Element {
  const { state } = props
  const { model } = state
  const area = state.area.value
  const resting = useRestingView(state)
  const whole = area ?? resting
  const [chosen, choose] = useState<Track["group"] | null>(null)
  const totals = useSums(state, whole, chosen)
  const sums = totals?.sums ?? null
  const groups = totals?.groups ?? []
  const group = sums?.group
  const title = area === null ? `In view ${formatNs(whole.to - whole.from)}` : `Selection ${formatNs(whole.to - whole.from)}`
  return (
    <section class="tl-area" aria-label={area === null ? "What is in view" : "What is selected"}>
      <header>
        <h2>{title}</h2>
        <p class="tl-says">{totals === null ? "" : sums === null ? "nothing was recorded here" : saysOf(sums)}{sums !== null && model.timeline.tiled && THINNED}</p>
        {groups.length > 1 && <GroupChoice groups={groups} group={group} choose={choose} />}
        <p class="tl-actions">
          {sums !== null && <LinkButton onClick={() => copyText(markdownOf(state, sums, title), "the selection as Markdown")}>Copy</LinkButton>}
          {area !== null && <LinkButton onClick={() => state.moveTo(around(area.from, area.to, model.whole, 0.05), "step")}>Zoom to selection</LinkButton>}
          <LinkButton onClick={() => copyText(addressOf(), "a link to this selection")}>Link</LinkButton>
        </p>
      </header>
      {sums !== null && <AggregateTable state={state} sums={sums} detailed={area !== null && (group === "gpu" || group === "host")} />}
    </section>
  )
}

function GroupChoice(props: { readonly groups: readonly Track["group"][]; readonly group: Track["group"] | undefined; readonly choose: (group: Track["group"]) => void }): JSX.Element {
  return (
    <div class="tl-groups" role="group" aria-label="Tracks to add up">
      {props.groups.map((group) => (
        <button type="button" key={group} aria-pressed={group === props.group} onClick={() => props.choose(group)}>
          {GROUP_NAMES[group]}
        </button>
      ))}
    </div>
  )
}

function saysOf(sums: Aggregate): string {
  return `${counted(sums.events, NOUNS[sums.group])}, ${fixed(sums.busy * 100, 1)} % ${sums.group === "idle" ? "idle" : "busy"}`
}

function markdownOf(state: TimelineState, sums: Aggregate, title: string): string {
  const { names } = state.model.timeline
  const cell = (text: string): string => visible(text).replaceAll("|", "\\|")
  const rows = sums.rows.slice(0, SHOWN_ROWS).map((row) => `| ${cell(names[row.name] ?? "")} | ${row.calls} | ${formatNs(row.ns)} | ${fixed(row.share * 100, 1)} % |`)
  return [`${title}: ${saysOf(sums)}`, "", `| ${GROUP_HEADINGS[sums.group]} | Calls | Total | Share |`, "|---|--:|--:|--:|", ...rows].join("\n")
}

function AggregateTable(props: { readonly state: TimelineState; readonly sums: Aggregate; readonly detailed: boolean }): JSX.Element {
  const { sums, state, detailed } = props
  const nested = sums.group !== "gpu" && sums.group !== "idle"
  const most = sums.rows[0]?.share ?? 1
  return (
    <div class="tl-table" tabIndex={0} role="region" aria-label="The selection by name">
      <table>
        <thead>
          <tr>
            <th scope="col">{GROUP_HEADINGS[sums.group]}</th>
            <th scope="col" class="number">{sums.group === "idle" ? "Gaps" : "Calls"}</th>
            <th scope="col" class="number" title={nested ? "Excluding nested calls" : undefined}>{nested ? "Self" : "Total"}</th>
            <th scope="col" class="number">Share</th>
            <th aria-hidden="true" />
            {detailed && <th scope="col">{sums.group === "gpu" ? "Operator" : "Thread"}</th>}
            {detailed && <th scope="col">Source</th>}
            <th scope="col">Finding</th>
          </tr>
        </thead>
        <tbody>
          {sums.rows.slice(0, SHOWN_ROWS).map((row) => (
            <AggregateLine key={row.name} row={row} state={state} most={most} detailed={detailed} group={sums.group} />
          ))}
        </tbody>
      </table>
      {sums.rows.length > SHOWN_ROWS && <p class="quiet tl-rest">{counted(sums.rows.length - SHOWN_ROWS, "more name")} with less time.</p>}
    </div>
  )
}

interface LineProps {
  readonly row: AggregateRow
  readonly state: TimelineState
  readonly most: number
  readonly detailed: boolean
  readonly group: Track["group"]
}

function AggregateLine(props: LineProps): JSX.Element {
  const { row, state } = props
  const { timeline, columns } = state.model
  const kind = ALL_KINDS[row.kind] ?? "wait"
  const name = visible((timeline.names[row.name] ?? "").slice(0, 400))
  const hovered = state.selected.value !== null && columns.name[state.selected.value] === row.name
  return (
    <tr class={hovered ? "current" : undefined}>
      <td class="tl-name">
        <div>
          <Swatch kind={kind} />
          <button type="button" class="tl-go" title={`${name}: go to the longest call`} onClick={() => showSpan(state, row.longest)}>
            {name}
          </button>
        </div>
      </td>
      <td class="number">{formatCount(row.calls)}</td>
      <td class="number">{formatNs(row.ns)}</td>
      <td class="number">{fixed(row.share * 100, 1)} %</td>
      <td class="tl-bar">
        <Bar share={row.share / props.most} colour={colourOf(kind)} />
      </td>
      {props.detailed && <DetailCells id={columns.id.at(row.longest)!} group={props.group} />}
      <td>{row.finding > 0 && <FindingChip number={row.finding} />}</td>
    </tr>
  )
}

/** Operator and source of the longest call: read from its details, since the columns do not carry them. */
function DetailCells(props: { readonly id: number; readonly group: Track["group"] }): JSX.Element {
  const detail = useDetail(props.id)
  const first = props.group === "gpu" ? factOf(detail, "Operator")?.split(" ")[0] : detail?.subtitle
  return (
    <>
      <td class={props.group === "gpu" ? "code" : undefined}>{visible(first ?? "")}</td>
      <td class="code">{visible(factOf(detail, "Source")?.split(" ")[0] ?? "")}</td>
    </>
  )
}

function factOf(detail: SpanDetail | null, label: string): string | null {
  return detail?.facts.find((fact) => fact.label === label)?.value ?? null
}

function useDetail(id: number | null): SpanDetail | null {
  const resource = spanResource(id)
  return resource === null ? null : valueOf(resource)
}

function spanResource(id: number | null): Resource<SpanDetail> | null {
  const run = runId.value
  return id === null || run === null ? null : resourceOf<SpanDetail>(run, `span/${id}`, (from) => from.span(run, id)).value
}

/** The focusable mirror of the canvas: the selected span in words, read aloud when it changes. */
function SpanPanel(props: { readonly state: TimelineState }): JSX.Element {
  const { state } = props
  const position = state.selected.value
  const id = position === null ? NO_SPAN : state.model.columns.id.at(position)!
  const resource = spanResource(id === NO_SPAN ? null : id)
  const detail = resource === null ? null : valueOf(resource)
  useEffect(() => {
    state.detail.value = detail
  }, [detail])
  return (
    <aside class="tl-span" aria-label="Selected span">
      <p class="unseen" role="status" aria-live="polite">{position === null ? "" : spanWords(state, position)}</p>
      {position === null ? <NothingSelected /> : <SpanFacts state={state} position={position} detail={detail} />}
      {resource?.state === "failed" && <p class="quiet">{resource.says}</p>}
    </aside>
  )
}

function NothingSelected(): JSX.Element {
  return (
    <>
      <h2>Nothing selected</h2>
      <p class="quiet">
        Click a span to see its details, or drag across the tracks to select an area. <kbd>.</kbd> selects the next span; <kbd>↑</kbd> <kbd>↓</kbd> move between nested calls.
      </p>
    </>
  )
}

export function spanWords(state: TimelineState, position: number): string {
  const { columns, timeline } = state.model
  const name = visible((timeline.names[columns.name[position]!] ?? "").slice(0, 200))
  const kind = kindText(ALL_KINDS[columns.kind[position]!] ?? "wait")
  const finding = columns.finding[position]!
  return `${name}, ${kind}, ${formatNs(columns.dur[position]!)}, from ${fixed(columns.start[position]! / 1e6, 3)} ms${finding > 0 ? `, finding ${finding}` : ""}`
}

function SpanFacts(props: { readonly state: TimelineState; readonly position: number; readonly detail: SpanDetail | null }): JSX.Element {
  const { state, position, detail } = props
  const { columns, timeline } = state.model
  const number = detail?.finding ?? (columns.finding[position]! || null)
  const finding = findingOf(number)
  const facts = detail?.facts ?? [{ label: "Duration", value: formatNs(columns.dur[position]!), code: false }]
  return (
    <>
      <header>
        <h2 title={visible((detail?.name ?? "").slice(0, 2000))}>{visible((detail?.title ?? timeline.names[columns.name[position]!] ?? "").slice(0, 300))}</h2>
        <span class="tl-says">{visible(detail?.subtitle ?? "")}</span>
        <button type="button" class="link tl-close" aria-label="Close details" onClick={() => selectSpan(state, null)}>
          ✕
        </button>
      </header>
      {number !== null && (
        <p class="tl-finding">
          <FindingChip number={number} words={finding === null ? `Finding ${number}` : `${number} ${finding.title}`} />
        </p>
      )}
      <dl>
        {detail !== null && detail.links.length > 0 && <LinkFacts state={state} detail={detail} />}
        {facts.map((fact) => (
          <div key={fact.label}>
            <dt>{fact.label}</dt>
            <dd class={fact.code ? "code" : undefined}>{visible(fact.value.slice(0, 2000))}</dd>
          </div>
        ))}
      </dl>
    </>
  )
}

function LinkFacts(props: { readonly state: TimelineState; readonly detail: SpanDetail }): JSX.Element {
  const { state, detail } = props
  return (
    <div>
      <dt>Go to</dt>
      <dd class="tl-links">
        {detail.links.slice(0, 12).map((link) => (
          <LinkButton key={`${link.label} ${link.id}`} onClick={() => openSpan(state, { span: link.id, from: link.from_ns, to: link.to_ns })}>
            {visible(shorten(link.label, 56))}
          </LinkButton>
        ))}
      </dd>
    </div>
  )
}
