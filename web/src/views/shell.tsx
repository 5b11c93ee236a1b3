/** The shell: top bar, navigation, and the one view that the address names. */
import type { JSX } from "preact"
import { useEffect, useRef } from "preact/hooks"
import {
  go, help, linkTo, lost, navigation, overview, palette, place, run, runs, said, search, selection, span, topOf, valueOf,
} from "../data/state"
import type { RunEntry } from "../data/types"
import { copyText } from "../components/copy"
import { choose } from "../data/choice"
import { useKeys } from "../base/keys"
import { Empty, Failed, Key, Loading } from "../components/parts"
import { Help } from "./help"
import { type View, viewOf, viewsOf } from "./index"
import { Palette, SearchBox, focusSearch } from "./palette"
import { RunLists } from "./pieces/run_lists"
import { ThemeButton } from "./theme_button"

export function Shell(): JSX.Element {
  useKeys(shellKeys())
  useTitle()
  return (
    <div class={navigation.value ? "shell" : "shell without-nav"}>
      <button type="button" class="skip" onClick={() => document.getElementById("main")?.focus()}>
        Skip to content
      </button>
      <TopBar />
      <Navigation />
      <Main />
      {help.value && <Help />}
      {palette.value && <Palette />}
      <Said />
    </div>
  )
}

const SAID_MS = 3000

/** What was just done, for the eye and for screen readers; it goes by itself. */
function Said(): JSX.Element {
  const text = said.value
  useEffect(() => {
    if (!text) return
    const timer = setTimeout(() => (said.value = ""), SAID_MS)
    return () => clearTimeout(timer)
  }, [text])
  return (
    <p class={text ? "said" : "unseen"} role="status" aria-live="polite">
      {text}
    </p>
  )
}

function shellKeys(): Record<string, (event: KeyboardEvent) => void | boolean> {
  const pages = viewsOf(run.value).map((view) => [view.key, () => go({ view: view.name })] as const)
  return {
    ...Object.fromEntries(pages),
    "/": () => focusSearch(),
    "Ctrl+k": () => void (palette.value = !palette.value),
    "[": () => void (navigation.value = !navigation.value),
    "?": () => void (help.value = !help.value),
    Escape: clear,
  }
}

/** Esc undoes one thing at a time, the topmost first. */
function clear(): void | boolean {
  if (palette.value) palette.value = false
  else if (help.value) help.value = false
  else if (search.value) search.value = ""
  else if (selection.value !== null || span.value !== null) go({ selection: null, span: null })
  else if (place.value.view === "timeline" && (place.value.rest["finding"] ?? place.value.rest["name"]) !== undefined) choose({ finding: "", name: "" })
  else return false
}

function useTitle(): void {
  const view = viewOf(run.value, place.value.view)
  const title = [run.value?.name, view?.title, "Foretrace"].filter(Boolean).join(" · ")
  useEffect(() => {
    document.title = title
  }, [title])
}

const MARKDOWN_OF: Readonly<Record<RunEntry["sort"], string>> = { recording: "the diagnosis", benchmark: "the benchmark", snapshot: "the memory snapshot" }

function TopBar(): JSX.Element {
  const shown = topOf.value
  const sort = run.value?.sort ?? "recording"
  return (
    <header class="top">
      <a class="brand" href={linkTo({ view: viewsOf(run.value)[0]?.name ?? "overview" })}>
        Foretrace
      </a>
      <button type="button" class="button pages" aria-expanded={navigation.value} aria-controls="navigation"
        onClick={() => (navigation.value = !navigation.value)}>
        Pages
      </button>
      <p class="run">
        <strong title={run.value?.name}>{shown?.name ?? run.value?.name ?? ""}</strong>
        {shown?.facts.map((fact) => <span key={fact}>{fact}</span>)}
      </p>
      {sort === "recording" && <SearchBox />}
      <a class="button" href={linkTo({ view: "compare" })}>
        Compare…
      </a>
      <button type="button" class="button" disabled={!shown?.markdown}
        onClick={() => shown && copyText(shown.markdown, `${MARKDOWN_OF[sort]} as Markdown`)}>
        Copy as Markdown
      </button>
    </header>
  )
}

function Navigation(): JSX.Element {
  const shown = valueOf(overview.value)
  return (
    <nav id="navigation" aria-label="Pages and runs" hidden={!navigation.value}>
      <ul>
        {viewsOf(run.value).map((view) => (
          <PageLink key={view.name} view={view} count={shown?.counts[view.name]} missing={shown?.missing[view.name]} />
        ))}
      </ul>
      <RunLists />
      <footer>
        <p>
          <button type="button" class="hint" onClick={() => (help.value = true)}>
            <Key>?</Key> shortcuts
          </button>
          <button type="button" class="hint" onClick={() => (navigation.value = false)}>
            <Key>[</Key> hide
          </button>
        </p>
        <ThemeButton />
        {valueOf(runs.value)?.embedded ? <p>One file, no network</p> : <p>Read-only, local{run.value?.sort === "recording" && <ToPerfetto id={run.value.id} />}</p>}
      </footer>
    </nav>
  )
}

/** A page of its own that hands the recording to ui.perfetto.dev once it is asked to there. */
function ToPerfetto(props: { readonly id: string }): JSX.Element {
  return (
    <>
      {" · "}
      <a href={`perfetto/${props.id}`} target="_blank" rel="noreferrer">
        Perfetto…
      </a>
    </>
  )
}

function PageLink(props: { readonly view: View; readonly count: string | undefined; readonly missing: string | undefined }): JSX.Element {
  const { view, count, missing } = props
  const current = viewOf(run.value, place.value.view) === view
  return (
    <li>
      <a href={linkTo({ view: view.name })} aria-current={current ? "page" : undefined} aria-keyshortcuts={view.key}
        class={missing === undefined ? "" : "missing"} title={missing}>
        <span>{view.title}</span>
        {count !== undefined && <span class="count">{count}</span>}
      </a>
    </li>
  )
}

function Main(): JSX.Element {
  const element = useRef<HTMLElement>(null)
  const view = place.value.view
  const before = useRef(view)
  useEffect(() => {
    if (before.current !== view) element.current?.scrollTo(0, 0)
    before.current = view
  }, [view])
  return (
    <main id="main" ref={element} tabIndex={-1}>
      {lost.value !== null && (
        <p class="lost" role="alert">
          {lost.value} What has already loaded can still be read.
        </p>
      )}
      <Content />
    </main>
  )
}

function Content(): JSX.Element {
  const all = runs.value
  if (all.state === "loading") return <Loading what="Loading runs …" />
  if (all.state === "failed") return <Failed what="There is nothing to show" says={all.says} />
  if (all.value.runs.length === 0) {
    return <Empty title="No recording yet" says="No recording was found. The first one that appears will be shown here." />
  }
  const shown = run.value
  if (!shown) return <Failed what="Run not found" says={`There is no run with the id ${place.value.run}. Choose one on the left.`} />
  if (shown.state === "failed") return <Failed what={`${shown.name} could not be read`} says={shown.says ?? "No reason was given."} />
  if (shown.state !== "ready") return <Progress run={shown} />
  const view = viewOf(shown, place.value.view)
  if (!view) return <Failed what="Page not found" says={`There is no page named ${place.value.view}.`} />
  const View = view.component
  return (
    <>
      {view.name !== "overview" && <h1 class="unseen">{view.title}</h1>}
      <View key={`${shown.id}/${view.name}`} />
    </>
  )
}

/** What is being done while a large recording is read. */
function Progress(props: { readonly run: RunEntry }): JSX.Element {
  const { name, says, progress_pct: pct, state } = props.run
  return (
    <section class="empty" aria-busy="true">
      <h2>{state === "waiting" ? `${name} is waiting to be read` : `Reading ${name}`}</h2>
      <progress max={100} value={pct ?? undefined} aria-label={`Reading ${name}`} />
      <p role="status">
        {says ?? "Reading the recording"}
        {pct !== null && `, ${Math.round(pct)} %`}
      </p>
    </section>
  )
}
