"""The page that hands a recording to ui.perfetto.dev: one button, and what pressing it does.

Perfetto's protocol: open its window, send PING until it answers PONG, then send the recording. It goes from window to
window inside the browser; Perfetto reads it there and uploads nothing.
"""

from __future__ import annotations

import html
from base64 import b64encode
from hashlib import sha256

STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 Inter, system-ui, sans-serif }
body { max-width: 38rem; margin: 4rem auto; padding: 0 1rem }
h1 { font-size: 20px }
code { overflow-wrap: anywhere }
button { font: inherit; padding: 4px 16px }
"""

SCRIPT = """
"use strict"
const ORIGIN = "https://ui.perfetto.dev"
const button = document.querySelector("button")
const status = document.querySelector("output")
const title = document.querySelector("code").textContent

function answers(other) {
  return new Promise((resolve, reject) => {
    const ping = setInterval(() => {
      if (other.closed) finish(() => reject(new Error("The window of Perfetto was closed.")))
      else other.postMessage("PING", ORIGIN)
    }, 50)
    const finish = (then) => {
      clearInterval(ping)
      removeEventListener("message", hear)
      then()
    }
    const hear = (event) => {
      if (event.origin === ORIGIN && event.source === other && event.data === "PONG") finish(resolve)
    }
    addEventListener("message", hear)
  })
}

async function recording() {
  const response = await fetch(`${location.pathname}/trace.json`)
  if (!response.ok) throw new Error((await response.json()).says)
  return response.arrayBuffer()
}

async function handOver() {
  const other = open(ORIGIN)
  if (!other) throw new Error("The browser did not let a window open. Allow it for this page and try again.")
  status.textContent = "Preparing the recording \\u2026"
  const buffer = await recording()
  status.textContent = "Waiting for Perfetto \\u2026"
  await answers(other)
  other.postMessage({ perfetto: { buffer, title, fileName: title, localOnly: true } }, ORIGIN, [buffer])
  status.textContent = "Handed over. This page may be closed."
}

button.addEventListener("click", () => {
  button.disabled = true
  handOver()
    .catch((error) => { status.textContent = error.message })
    .finally(() => { button.disabled = false })
})
"""


def page(name: str) -> str:
    """The page for the recording of this name."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Open in Perfetto</title>
<style>{STYLE}</style>
</head>
<body>
<h1>Open in Perfetto</h1>
<p>Recording: <code>{html.escape(name)}</code></p>
<p>The button opens ui.perfetto.dev in a new window and hands it this recording, with the steps, findings and counters of
Foretrace as extra tracks. The recording goes from this window to that one inside your browser: nothing is uploaded. Your
browser does load Perfetto's own page from the network.</p>
<p><button type="button">Open ui.perfetto.dev</button></p>
<p><output></output></p>
<script>{SCRIPT}</script>
</body>
</html>
"""


def policy() -> str:
    """The content security policy of that page."""
    return (
        f"default-src 'none'; script-src '{hash_of(SCRIPT)}'; style-src '{hash_of(STYLE)}'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def hash_of(text: str) -> str:
    """An inline script or style as a policy names it."""
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
