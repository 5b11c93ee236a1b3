/** Small pieces that every page is built of: Empty, Chip, Bar, Loaded and the like. */
import type { ComponentChildren, JSX } from "preact"
import type { Resource } from "../data/state"
import type { HostKind, Kind, Mark } from "../data/types"
import { HOST_KINDS } from "../data/types"

/** The CSS variable of a kind of work. */
export function colourOf(kind: Kind | HostKind): string {
  return (HOST_KINDS as readonly string[]).includes(kind) ? `var(--h-${kind})` : `var(--c-${kind})`
}

const KIND_WORDS: Readonly<Record<Kind | HostKind, string>> = {
  gemm: "matrix multiply", attn: "attention", elem: "elementwise", reduce: "reduction", copy: "copy", optim: "optimizer", transfer: "host–device copy",
  comm: "communication", idle: "idle", wait: "waiting",
  op: "operator", rt: "runtime call", note: "annotation", py: "Python", sync: "synchronization",
}

/** A kind of work in words. */
export function kindText(kind: Kind | HostKind): string {
  return KIND_WORDS[kind]
}

/** Why a page has no data, and what to record. */
export function Empty(props: { readonly title: string; readonly says: string; readonly children?: ComponentChildren }): JSX.Element {
  return (
    <section class="empty">
      <h2>{props.title}</h2>
      <p>{props.says}</p>
      {props.children}
    </section>
  )
}

/** A failed resource says why; it is never a blank page. */
export function Failed(props: { readonly what: string; readonly says: string }): JSX.Element {
  return (
    <section class="empty failed" role="alert">
      <h2>
        <MarkGlyph mark="bad" /> {props.what}
      </h2>
      <p>{props.says}</p>
    </section>
  )
}

export function Loading(props: { readonly what: string }): JSX.Element {
  return (
    <p class="loading" role="status">
      {props.what}
    </p>
  )
}

/** A resource in each of its states. */
export function Loaded<T>(props: {
  readonly resource: Resource<T>
  readonly what: string
  readonly children: (value: T) => ComponentChildren
}): JSX.Element {
  const { resource, what } = props
  if (resource.state === "loading") return <Loading what={`Loading ${what} …`} />
  if (resource.state === "failed") return <Failed what={`The ${what} could not be loaded`} says={resource.says} />
  return <>{props.children(resource.value)}</>
}

/** A square in the colour of a kind of work; the label stands beside it, so it is hidden from screen readers. */
export function Swatch(props: { readonly kind: Kind | HostKind }): JSX.Element {
  return <span class="swatch" aria-hidden="true" style={{ background: colourOf(props.kind) }} />
}

export function Chip(props: { readonly children: ComponentChildren; readonly href?: string; readonly onClick?: () => void }): JSX.Element {
  if (props.href !== undefined) {
    return (
      <a class="chip" href={props.href} onClick={props.onClick}>
        {props.children}
      </a>
    )
  }
  return <span class="chip">{props.children}</span>
}

/** A bar from 0 to `share` (0 to 1) of its cell. */
export function Bar(props: { readonly share: number; readonly colour: string }): JSX.Element {
  const width = `${Math.max(0, Math.min(1, props.share)) * 100}%`
  return (
    <span class="bar" aria-hidden="true">
      <span style={{ width, background: props.colour }} />
    </span>
  )
}

const GLYPHS: Readonly<Record<Mark, string>> = { good: "✓", note: "▲", bad: "✕", unknown: "?" }
const MARK_WORDS: Readonly<Record<Mark, string>> = { good: "good", note: "note", bad: "bad", unknown: "not known" }

/** A status as a glyph and, for screen readers, a word. */
export function MarkGlyph(props: { readonly mark: Mark }): JSX.Element {
  return (
    <span class={`mark ${props.mark}`} role="img" aria-label={MARK_WORDS[props.mark]}>
      {GLYPHS[props.mark]}
    </span>
  )
}

/** A button that reads as a link: for what happens here, not for going elsewhere. */
export function LinkButton(props: { readonly onClick: () => void; readonly children: ComponentChildren; readonly expanded?: boolean }): JSX.Element {
  return (
    <button type="button" class="link" onClick={props.onClick} aria-expanded={props.expanded}>
      {props.children}
    </button>
  )
}

export function Key(props: { readonly children: ComponentChildren }): JSX.Element {
  return <kbd>{props.children}</kbd>
}
