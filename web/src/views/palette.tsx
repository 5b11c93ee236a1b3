/** Search at the top, and the palette (Ctrl+K): go to any page, run, finding, kernel, operator or line. */
import type { JSX } from "preact"
import { useEffect, useRef, useState } from "preact/hooks"
import { containsAll, wordsOf } from "../base/search_words"
import { type Resource, addressOf, go, help, overview, palette, run, runs, search, setTheme, topOf, valueOf } from "../data/state"
import type { Cell, Table } from "../data/types"
import { copyText } from "../components/copy"
import { shorten } from "../base/format"
import { useTable } from "../data/use_resource"
import { Modal } from "./help"
import { viewsOf } from "./index"

interface Entry {
  readonly group: string
  readonly title: string
  readonly open: () => void
}

const SHOWN = 12

export function focusSearch(): void {
  const field = document.getElementById("search")
  if (field instanceof HTMLInputElement) {
    field.focus()
    field.select()
  }
}

/** Searches what was recorded. Enter without a choice looks for the text on the timeline. */
export function SearchBox(): JSX.Element {
  const [open, setOpen] = useState(false)
  const entries = open && search.value.trim() ? matching(useRecorded(), search.value) : []
  const toTimeline = (): void => go({ view: "timeline" })
  return (
    <form class="search" role="search" onSubmit={(event) => event.preventDefault()}
      onFocusIn={() => setOpen(true)}
      onFocusOut={(event) => !event.currentTarget.contains(event.relatedTarget as Node | null) && setOpen(false)}>
      <Finder id="search" placeholder="Search kernels, ops, lines" entries={entries} text={search.value} nothing={open && search.value.trim() !== "" && entries.length === 0}
        onText={(text) => (search.value = text)} onPlain={toTimeline} onDone={() => setOpen(false)} />
      <kbd aria-hidden="true">/</kbd>
    </form>
  )
}

export function Palette(): JSX.Element {
  const [text, setText] = useState("")
  const entries = matching([...useCommands(), ...useRecorded()], text)
  const close = (): void => void (palette.value = false)
  return (
    <Modal title="Go to anything" onClose={close}>
      <div class="palette">
        <Finder id="palette" placeholder="Page, run, finding, kernel, operator …" entries={entries} text={text} nothing={entries.length === 0} onText={setText}
          onPlain={() => undefined} onDone={close} />
      </div>
    </Modal>
  )
}

interface FinderProps {
  readonly id: string
  readonly placeholder: string
  readonly entries: readonly Entry[]
  readonly text: string
  readonly onText: (text: string) => void
  readonly nothing?: boolean // there is a text, and nothing holds it
  readonly onPlain: () => void
  readonly onDone: () => void
}

/** A field with a list of choices below it; arrows move, Enter opens. */
function Finder(props: FinderProps): JSX.Element {
  const { id, entries } = props
  const firstChosen = id === "palette" ? 0 : -1
  const [chosen, setChosen] = useState(firstChosen)
  const field = useRef<HTMLInputElement>(null)
  useEffect(() => {
    if (id === "palette") field.current?.focus()
  }, [])
  const open = (entry: Entry | undefined): void => {
    props.onDone()
    if (entry) entry.open()
    else props.onPlain()
  }
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0
    if (step !== 0) setChosen(Math.max(firstChosen, Math.min(entries.length - 1, chosen + step)))
    else if (event.key === "Enter") open(entries[chosen])
    else if (event.key === "Escape") field.current?.blur()
    else return
    if (event.key !== "Escape") event.preventDefault()
  }
  return (
    <>
      <input ref={field} id={id} type="text" list={undefined} role="combobox" autocomplete="off" spellcheck={false} placeholder={props.placeholder}
        aria-label={props.placeholder} aria-expanded={entries.length > 0} aria-controls={`${id}-choices`} aria-autocomplete="list"
        aria-activedescendant={chosen >= 0 && entries[chosen] ? `${id}-${chosen}` : undefined} value={props.text}
        onInput={(event) => {
          props.onText(event.currentTarget.value)
          setChosen(firstChosen)
        }}
        onKeyDown={onKeyDown} />
      {entries.length === 0 && props.nothing === true && <p class="choices no-matches" role="status">No matches</p>}
      <ul id={`${id}-choices`} role="listbox" aria-label="Choices" class="choices" hidden={entries.length === 0}>
        {entries.map((entry, index) => (
          <li key={index} id={`${id}-${index}`} role="option" aria-selected={index === chosen}
            onMouseDown={(event) => event.preventDefault()} onClick={() => open(entry)}>
            <span class="title">{shorten(entry.title, 90)}</span>
            <span class="count">{entry.group}</span>
          </li>
        ))}
      </ul>
    </>
  )
}

/** Entries that contain every word of the text, those that begin with it first. */
function matching(entries: readonly Entry[], text: string): readonly Entry[] {
  const words = wordsOf(text)
  const matches = entries.filter((entry) => containsAll(entry.title, words))
  const begins = (entry: Entry): number => (entry.title.toLowerCase().startsWith(words[0] ?? "") ? 0 : 1)
  return matches.map((entry, index) => ({ entry, index })).sort((a, b) => begins(a.entry) - begins(b.entry) || a.index - b.index)
    .slice(0, SHOWN).map((match) => match.entry)
}

function useCommands(): readonly Entry[] {
  const others = (valueOf(runs.value)?.runs ?? []).filter((entry) => entry.id !== run.value?.id)
  const markdown = topOf.value?.markdown || undefined
  const what = { recording: "the diagnosis", benchmark: "the benchmark", snapshot: "the memory snapshot" }[run.value?.sort ?? "recording"]
  return [
    ...viewsOf(run.value).map((view) => ({ group: `page ${view.key}`, title: view.title, open: () => go({ view: view.name }) })),
    ...others.map((entry) => ({ group: "run", title: entry.name, open: () => go({ run: entry.id }) })),
    ...(markdown === undefined ? [] : [{ group: "copy", title: `Copy ${what} as Markdown`, open: () => copyText(markdown, `${what} as Markdown`) }]),
    { group: "copy", title: "Copy a link to this page", open: () => copyText(addressOf(), "a link to this page") },
    { group: "theme", title: "Light theme", open: () => setTheme("light") },
    { group: "theme", title: "Dark theme", open: () => setTheme("dark") },
    { group: "theme", title: "System theme", open: () => setTheme("system") },
    { group: "?", title: "Keyboard shortcuts", open: () => void (help.value = true) },
  ]
}

/** Findings, kernels, operators and lines of the run that is shown. */
function useRecorded(): readonly Entry[] {
  if (run.value?.sort !== "recording") return []
  const findings = valueOf(overview.value)?.findings ?? []
  const kernels = namesIn(useTable("kernels"), "name")
  const operators = useTable("operators")
  const lines = findings.flatMap((finding) => finding.where.map((place) => ({ finding: finding.number, place })))
  return [
    ...findings.map((finding) => ({ group: `finding ${finding.number}`, title: finding.title, open: () => go({ view: "findings", rest: { finding: String(finding.number) } }) })),
    ...kernels.map((name) => ({ group: "kernel", title: name, open: () => find("kernels", name) })),
    ...namesIn(operators, "name").map((name) => ({ group: "operator", title: name, open: () => find("operators", name) })),
    ...lines.map(({ finding, place }) => ({
      group: `line, finding ${finding}`,
      title: place.text,
      open: () => go({ view: "findings", rest: { finding: String(finding) } }),
    })),
  ]
}

function find(view: string, name: string): void {
  search.value = ""
  go({ view, rest: { q: name } })
}

function namesIn(table: Resource<Table>, column: string): readonly string[] {
  const value = valueOf(table)
  if (!value) return []
  const at = Math.max(0, value.columns.findIndex((candidate) => candidate.name === column))
  const cells: readonly Cell[] = value.data[at] ?? []
  return [...new Set(cells.filter((cell): cell is string => typeof cell === "string"))]
}
