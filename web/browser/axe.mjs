/** axe on a page of ours: violations that matter. */
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { shown, until } from "./harness.mjs"

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

export const addAxe = (page) => page.addScriptTag({ content: AXE })

/** Serious and critical violations, each in one line. The dark theme changes colours alone, so only contrast is checked there. */
export async function violations(page, { theme = "light", within = "html" } = {}) {
  const rules = theme === "dark" ? { runOnly: { type: "rule", values: ["color-contrast"] } } : {}
  const options = { resultTypes: ["violations"], preload: false, ...rules }
  const violated = await page.evaluate(async ([root, how]) => (await window.axe.run(root, how)).violations, [within, options])
  return violated.filter((rule) => ["serious", "critical"].includes(rule.impact))
    .map(({ impact, id, nodes }) => `${impact} ${id}: ${nodes.length} × ${nodes[0].html.slice(0, 160)} ${nodes[0].failureSummary?.split("\n")[1] ?? ""}`)
}

/** Violations on the page as it is now, by theme; nothing if there are none. */
export async function inBothThemes(page, { within = "html" } = {}) {
  const byTheme = {}
  for (const theme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme: theme })
    await until(() => page.evaluate((wanted) => getComputedStyle(document.documentElement).colorScheme === wanted, theme), theme)
    await shown(page)
    const lines = await violations(page, { theme, within })
    if (lines.length) byTheme[theme] = lines
  }
  return byTheme
}
