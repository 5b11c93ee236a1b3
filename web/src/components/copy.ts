/** Text onto the clipboard, with a word about it. */
import { said } from "../data/state"

export function copyText(text: string, what: string): void {
  void write(text).then((done) => {
    said.value = ""
    said.value = done ? `Copied ${what}.` : `The browser did not allow copying ${what}.`
  })
}

async function write(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text)
    return true
  } catch {
    return writeThroughSelection(text)
  }
}

/** A report opened from a file has no clipboard interface in some browsers. */
function writeThroughSelection(text: string): boolean {
  const area = document.createElement("textarea")
  area.value = text
  area.className = "unseen"
  const before = document.activeElement
  document.body.append(area)
  area.select()
  const done = document.execCommand("copy")
  area.remove()
  if (before instanceof HTMLElement) before.focus()
  return done
}
