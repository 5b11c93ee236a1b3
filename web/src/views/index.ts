/** Every page, in the order of the navigation. A page is one file, and one line here. */
import type { ComponentType } from "preact"
import { Compare } from "./compare"
import { Findings } from "./findings"
import { Kernels } from "./kernels"
import { Memory } from "./memory"
import { Modules } from "./modules"
import { Operators } from "./operators"
import { Overview } from "./overview"
import { Ranks } from "./ranks"
import { Roofline } from "./roofline"
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
  { name: "memory", title: "Memory", key: "7", component: Memory },
  { name: "roofline", title: "Roofline", key: "8", component: Roofline },
  { name: "ranks", title: "Ranks", key: "9", component: Ranks },
  { name: "compare", title: "Compare", key: "0", component: Compare },
]
