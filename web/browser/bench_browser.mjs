/** A new browser for each measurement, and what can be asked of it. */
import { readFileSync, readdirSync } from "node:fs"
import { chromium } from "playwright-core"

const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"] // prettier-ignore
const EXECUTABLE = process.env.FORETRACE_CHROMIUM ?? "/usr/bin/chromium"

export const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(values.length * share))]

export async function inBrowser(use) {
  const server = await chromium.launchServer({ executablePath: EXECUTABLE, args: FLAGS })
  const browser = await chromium.connect(server.wsEndpoint())
  try {
    const page = await browser.newPage({ viewport: { width: 1440, height: 800 } })
    const errors = []
    page.on("pageerror", (error) => errors.push(String(error)))
    const result = await use(page, server.process().pid)
    return { ...result, errors }
  } finally {
    await browser.close()
    await server.close()
  }
}

/** The largest renderer of the browser's processes. */
export function rendererBytes(root) {
  const parents = new Map()
  const renderers = []
  for (const entry of readdirSync("/proc").filter((name) => /^\d+$/.test(name))) {
    try {
      const stat = readFileSync(`/proc/${entry}/stat`, "utf8")
      parents.set(Number(entry), Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]))
      if (readFileSync(`/proc/${entry}/cmdline`, "utf8").includes("--type=renderer")) renderers.push(Number(entry))
    } catch {
      // It ended meanwhile.
    }
  }
  const ours = (process) => process === root || (parents.has(process) && ours(parents.get(process)))
  const bytes = (process) => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${process}/status`, "utf8"))?.[1] ?? 0) * 1024
  return Math.max(0, ...renderers.filter(ours).map(bytes))
}

/** Seconds that the page's main thread has spent so far, by what on. */
export async function spentOf(page) {
  const session = await page.context().newCDPSession(page)
  await session.send("Performance.enable")
  return async () => Object.fromEntries((await session.send("Performance.getMetrics")).metrics.map((metric) => [metric.name, metric.value]))
}
