/** The runs that the page can show, in the navigation. */
import type { JSX } from "preact"
import { useEffect } from "preact/hooks"
import { formatCount, formatMs } from "../../base/format"
import { useRowsInSight } from "../../components/table/scrolling"
import { linkTo, place, run, runs, valueOf } from "../../data/state"
import type { RunEntry } from "../../data/types"
import "./run_lists.css"

const MANY = 100 // runs of a list that are too many to stand in the page at once
const ROW_PX = 29 // of a run: as in run_lists.css and page.css

export function RunLists(): JSX.Element {
  const all = valueOf(runs.value)?.runs ?? []
  const recordings = all.filter((entry) => entry.sort === "recording")
  const others = [["Benchmarks", all.filter((entry) => entry.sort === "benchmark")], ["Memory snapshots", all.filter((entry) => entry.sort === "snapshot")]] as const
  const groups = [...new Set(recordings.map((entry) => entry.group))]
  return (
    <>
      {groups.map((group) => (
        <section key={group}>
          <RunGroup group={group} entries={recordings.filter((entry) => entry.group === group)} />
        </section>
      ))}
      {others.filter(([, entries]) => entries.length > 0).map(([title, entries]) => (
        <section key={title}>
          <h2>{title}</h2>
          <List entries={entries} />
        </section>
      ))}
    </>
  )
}

/** Runs of one program; a Run of `foretrace run` is one entry, titled by its program, with its passes inside. */
function RunGroup(props: { readonly group: string; readonly entries: readonly RunEntry[] }): JSX.Element {
  const { group, entries } = props
  const main = entries.find((entry) => entry.name === entry.title) ?? entries[0]
  if (!main?.title) {
    return (
      <>
        <h2>{group ? `Runs of ${group}` : "Runs"}</h2>
        <List entries={entries} />
      </>
    )
  }
  const inside = entries.some((entry) => entry.id === run.value?.id)
  return (
    <>
      <h2>Run {group}</h2>
      <ul class="one-run">
        <RunLink run={main} label={main.title} />
        {inside && entries.length > 1 && (
          <li>
            <ul class="passes" aria-label={`Passes of ${main.title}`}>
              {entries.map((entry) => <RunLink key={entry.id} run={entry} />)}
            </ul>
          </li>
        )}
      </ul>
    </>
  )
}

function List(props: { readonly entries: readonly RunEntry[] }): JSX.Element {
  const { entries } = props
  if (entries.length > MANY) return <LongList entries={entries} />
  return (
    <ul>
      {entries.map((entry) => <RunLink key={entry.id} run={entry} />)}
    </ul>
  )
}

/** The ranks of a large job: only those in sight are in the page, and the run that is shown is among them at first. */
function LongList(props: { readonly entries: readonly RunEntry[] }): JSX.Element {
  const { entries } = props
  const { scroller, look, first, last, moveTo } = useRowsInSight(entries.length, ROW_PX)
  const shown = run.value?.id
  useEffect(() => {
    const at = entries.findIndex((entry) => entry.id === shown)
    if (at >= 0) moveTo(at)
  }, [shown])
  return (
    <div class="long-list" ref={scroller} onScroll={look} tabIndex={0} role="region" aria-label={`${formatCount(entries.length)} runs`}>
      <ul style={{ paddingTop: `${first * ROW_PX}px`, paddingBottom: `${(entries.length - last) * ROW_PX}px` }}>
        {entries.slice(first, last).map((entry) => <RunLink key={entry.id} run={entry} />)}
      </ul>
    </div>
  )
}

function RunLink(props: { readonly run: RunEntry; readonly label?: string }): JSX.Element {
  const entry = props.run
  const current = run.value?.id === entry.id
  const view = place.value.view
  return (
    <li>
      <a href={linkTo({ run: entry.id, view, shown: null, selection: null, span: null, rest: {} })} class={current ? "run current" : "run"}
        aria-current={current ? "true" : undefined} title={entry.says ?? entry.name}>
        <span>{props.label ?? (entry.label || entry.name)}</span>
        <span class="count">{stateOf(entry)}</span>
      </a>
    </li>
  )
}

function stateOf(entry: RunEntry): string {
  if (entry.state === "failed") return "failed"
  if (entry.state === "waiting") return "waiting"
  if (entry.state === "loading") return entry.progress_pct === null ? "…" : `${Math.round(entry.progress_pct)} %`
  return entry.step_ms === null ? "" : formatMs(entry.step_ms)
}
