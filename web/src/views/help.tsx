/** The keyboard shortcuts, in a dialog. */
import type { ComponentChildren, JSX } from "preact"
import { useEffect, useRef } from "preact/hooks"
import { help, run } from "../data/state"
import { viewsOf } from "./index"

const KEYS: readonly (readonly [string, readonly (readonly [string, string])[]])[] = [
  ["Everywhere", [["/", "search"], ["Ctrl K", "go to anything"], ["[", "hide or show the navigation"], ["?", "these shortcuts"], ["Esc", "clear, one thing at a time"]]],
  ["Timeline", [["W S", "zoom in, out at the pointer"], ["A D", "move left, right"], ["F", "fit the selection, or everything"], [", .", "previous, next span"], ["M", "mark the selected span"], ["drag", "select an area"], ["Shift click", "extend the selection"]]],
  ["Findings", [[", .", "previous, next finding"], ["Space", "tick to combine"]]],
  ["Tables", [["↑ ↓", "move"], ["Home End", "first, last row"], ["Enter", "open the row"], ["Ctrl C", "copy the row"]]],
]

export function Help(): JSX.Element {
  return (
    <Modal title="Keyboard shortcuts" onClose={() => (help.value = false)}>
      <div class="keys">
        <KeyList title="Pages" keys={viewsOf(run.value).map((view) => [view.key, view.title])} />
        {KEYS.map(([title, keys]) => (
          <KeyList key={title} title={title} keys={keys} />
        ))}
      </div>
    </Modal>
  )
}

function KeyList(props: { readonly title: string; readonly keys: readonly (readonly [string, string])[] }): JSX.Element {
  return (
    <section>
      <h2>{props.title}</h2>
      <dl>
        {props.keys.map(([key, says]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{says}</dd>
          </div>
        ))}
      </dl>
    </section>
  )
}

/** A dialog of the browser's own: it keeps the focus inside and gives it back. */
export function Modal(props: { readonly title: string; readonly onClose: () => void; readonly children: ComponentChildren }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null)
  useEffect(() => {
    const before = document.activeElement
    dialog.current?.showModal()
    return () => {
      if (before instanceof HTMLElement) before.focus()
    }
  }, [])
  return (
    <dialog ref={dialog} aria-label={props.title} onClose={props.onClose} onCancel={props.onClose}
      onClick={(event) => event.target === dialog.current && props.onClose()}>
      <div class="inside">{props.children}</div>
    </dialog>
  )
}
