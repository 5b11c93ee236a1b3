/**
 * Keys of the page. A view adds its own with `useKeys`; the newest handler is asked first, and keys typed into a field
 * stay in the field.
 */
import { useLayoutEffect, useRef } from "preact/hooks"

/** Key as in KeyboardEvent.key, or "Ctrl+k" (also Cmd on a Mac) -> what it does. Return false to pass it on. */
export type KeyMap = Readonly<Record<string, (event: KeyboardEvent) => void | boolean>>

const maps: { current: KeyMap }[] = []
let listening = false

export function useKeys(map: KeyMap): void {
  const held = useRef(map)
  held.current = map
  // Before the view is painted: a key that is pressed as soon as it is seen is not lost.
  useLayoutEffect(() => {
    listen()
    maps.unshift(held)
    return () => void maps.splice(maps.indexOf(held), 1)
  }, [])
}

function listen(): void {
  if (listening) return
  listening = true
  addEventListener("keydown", handleKey)
}

export function nameOfKey(event: Pick<KeyboardEvent, "key" | "ctrlKey" | "metaKey" | "altKey">): string {
  if (event.altKey) return `Alt+${event.key}`
  return event.ctrlKey || event.metaKey ? `Ctrl+${event.key.toLowerCase()}` : event.key
}

function handleKey(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing) return
  const name = nameOfKey(event)
  if (isField(event.target) && name !== "Escape" && !name.startsWith("Ctrl+")) return
  for (const map of [...maps]) {
    const action = map.current[name]
    if (action && action(event) !== false) {
      event.preventDefault()
      return
    }
  }
}

/** Where a typed letter is text. */
export function isField(target: EventTarget | null): boolean {
  if (!(target instanceof HTMLElement)) return false
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button"].includes(target.type)
  return target instanceof HTMLTextAreaElement || target instanceof HTMLSelectElement || target.isContentEditable
}
