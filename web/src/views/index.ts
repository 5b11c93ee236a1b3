/** Every page, in the order of the navigation. A page is one file, and one line here. */
import type { ComponentType } from "preact"
import type { RunEntry } from "../data/types"
import { BenchmarkPage } from "./benchmark"
import { Compare } from "./compare"
import { Findings } from "./findings"
import { Kernels } from "./kernels"
import { Memory } from "./memory"
import { Modules } from "./modules"
import { Operators } from "./operators"
import { Overview } from "./overview"
import { Profiled } from "./profiled"
import { Ranks } from "./ranks"
import { Roofline } from "./roofline"
import { Sections } from "./sections"
import { SnapshotPage } from "./snapshot"
import { Timeline } from "./timeline"
import { Waiting } from "./waiting"

export interface View {
  readonly name: string // in the address, in Overview.counts and in Overview.missing
  readonly title: string
  readonly key: string // the key that opens it
  readonly component: ComponentType
}

export const VIEWS: readonly View[] = [
  { name: "overview", title: "Overview", key: "1", component: Overview },
  { name: "findings", title: "Findings", key: "2", component: Findings },
  { name: "timeline", title: "Timeline", key: "3", component: Timeline },
  { name: "waiting", title: "Waiting", key: "-", component: Waiting },
  { name: "operators", title: "Operators", key: "4", component: Operators },
  { name: "kernels", title: "Kernels", key: "5", component: Kernels },
  { name: "modules", title: "Modules", key: "6", component: Modules },
  { name: "sections", title: "Sections", key: ";", component: Sections },
  { name: "memory", title: "Memory", key: "7", component: Memory },
  { name: "roofline", title: "Roofline", key: "8", component: Roofline },
  { name: "profiled", title: "Profiled", key: "=", component: Profiled },
  { name: "ranks", title: "Ranks", key: "9", component: Ranks },
  { name: "compare", title: "Compare", key: "0", component: Compare },
]

/** The pages of a benchmark. */
const BENCHMARK_VIEWS: readonly View[] = [
  { name: "benchmark", title: "Benchmark", key: "1", component: BenchmarkPage },
  { name: "compare", title: "Compare", key: "0", component: Compare },
]

/** The pages of a memory snapshot. */
const SNAPSHOT_VIEWS: readonly View[] = [
  { name: "snapshot", title: "Memory", key: "7", component: SnapshotPage },
  { name: "compare", title: "Compare", key: "0", component: Compare },
]

const BY_SORT: Readonly<Record<RunEntry["sort"], readonly View[]>> = { recording: VIEWS, benchmark: BENCHMARK_VIEWS, snapshot: SNAPSHOT_VIEWS }

export function viewsOf(run: RunEntry | null): readonly View[] {
  return BY_SORT[run?.sort ?? "recording"]
}

/** The page that an address names; a page that only runs of the other sort have leads to the first one. */
export function viewOf(run: RunEntry | null, name: string): View | undefined {
  const views = viewsOf(run)
  const known = Object.values(BY_SORT).flat().some((view) => view.name === name)
  return views.find((view) => view.name === name) ?? (known ? views[0] : undefined)
}
