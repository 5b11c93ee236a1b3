/**
 * What the page is given: the contract with `src/foretrace/present/web/payload.py`.
 *
 * Every resource has a name, and comes either from the server (`GET api/runs/ID/NAME`) or from a part of the report's
 * file; both give the same bytes. Times are nanoseconds since the trace began unless the name ends in `_ms`; the suffix
 * of a column is its unit, as in the Python side. `null` means "not recorded". The page draws and never computes.
 */

import type { Ids } from "../base/ids"
import type { Verdict } from "../base/verdict"
import type { SnapshotComparison } from "./snapshot_types"
import type { Table, Trust } from "./table_types"

export type * from "./benchmark_types"
export type * from "./snapshot_types"
export type * from "./table_types"

export interface Range {
  readonly point: number
  readonly low: number
  readonly high: number
}

/** Kinds of work, in the order of the palette; `--c-KIND` is the colour. */
export const KINDS = ["gemm", "attn", "elem", "reduce", "copy", "optim", "transfer", "comm", "idle", "wait"] as const
export type Kind = (typeof KINDS)[number]
/** Host spans have kinds of their own; `--h-KIND` is the colour. */
export const HOST_KINDS = ["op", "rt", "note", "py", "sync"] as const
export type HostKind = (typeof HOST_KINDS)[number]

/** `runs`: what the server or the file holds. */
export interface Runs {
  readonly schema: 1
  readonly foretrace: string
  readonly embedded: boolean
  readonly runs: readonly RunEntry[]
}

export interface RunEntry {
  readonly id: string
  readonly sort: "recording" | "benchmark" | "snapshot" // which pages it has
  readonly name: string
  readonly title: string // of a Run: its program, under which its passes stand; else nothing
  readonly group: string // runs of one program stand together in the navigation
  readonly label: string
  readonly state: "waiting" | "loading" | "ready" | "failed"
  readonly progress_pct: number | null
  readonly says: string | null // while loading: what is being done; when failed: the error
  readonly step_ms: number | null
}

/** `overview` */
export interface Overview {
  readonly name: string
  readonly facts: readonly string[] // "NVIDIA H200", "CUDA 13.0", "rank 0 of 1", "3 steps", "27,592 events"
  readonly counts: Readonly<Record<string, string>> // view -> the number shown beside it in the navigation
  readonly missing: Readonly<Record<string, string>> // view -> why it is empty, and what to record
  readonly left_out: readonly string[] // what a report had to drop
  readonly pending: string | null // `overview?findings=no`: what is still being worked out, and is empty here
  readonly trust: Trust
  readonly headline: Headline
  readonly waterfall: Waterfall
  readonly findings: readonly Finding[]
  readonly gpu: readonly GpuTile[]
  readonly step_time: StepTime
  readonly checked: readonly Checked[]
  readonly one_step: OneStep | null
  readonly markdown: string // the whole diagnosis, to paste
  readonly next: readonly string[] // commands to run next
}

export interface Headline {
  readonly caption: string // "Step time, predicted after finding 1"
  readonly before_ms: number | null
  readonly after_ms: Range | null // null: nothing is promised
  readonly speedup: Range | null
  readonly title: string
  readonly says: string
}

/** Each row counts only what is left after the rows above. */
export interface Waterfall {
  readonly now_ms: number | null
  readonly rows: readonly { readonly finding: number; readonly label: string; readonly before_ms: number; readonly after_ms: Range }[]
  readonly together_ms: Range | null
  readonly note: string
}

export interface Finding {
  readonly number: number // 1, 2, 3 ...: how the page names it
  readonly rule: string
  readonly severity: "high" | "medium" | "low" | "unchecked"
  readonly title: string // "Attention is not fused"
  readonly says: string
  readonly why: string
  readonly unless: string
  readonly where: readonly { readonly file: string | null; readonly line: number | null; readonly function: string; readonly text: string }[]
  readonly of: string // what its times are of: "per step", or "for the recording" where no steps are marked
  readonly bars: readonly { readonly label: string; readonly kind: Kind | HostKind; readonly ns: number }[] // evidence, drawn
  readonly facts: readonly { readonly label: string; readonly value: string }[] // evidence, written
  readonly fix: { readonly says: string; readonly code: string } | null
  readonly label: string // of the fix, among its alternatives
  readonly alternatives: readonly Alternative[] // other fixes of the same cause, the better ones first
  readonly predicted: Predicted | null
  readonly freed?: string // of the device's memory, where the fix frees some: "9.20 (8.74 to 9.66) GiB"
  readonly confidence: "High" | "Medium" | "Low"
  readonly spans: readonly number[]
  readonly span: number | null // of a middle step, to be selected
  readonly from_ns: number | null // where on the timeline that is seen best
  readonly to_ns: number | null
  readonly manual: string // the rule's manual page, Markdown
}

/** `finding/NUMBER`: where it occurs, in order of time; one array per column. */
export interface Occurrences {
  readonly number: number
  readonly spans: readonly number[] // all that belong to it, up to a limit
  readonly rows_count: number // before any limit
  readonly span: readonly number[] // of each occurrence the longest span
  readonly from_ns: readonly number[]
  readonly to_ns: readonly number[]
  readonly step: readonly (number | null)[]
}

export interface Alternative {
  readonly label: string // "bf16-autocast"
  readonly fix: { readonly says: string; readonly code: string }
  readonly unless: string
  readonly predicted: Predicted | null
}

export interface Predicted {
  readonly verdict: Verdict
  readonly step_ms: number
  readonly after_ms: Range
  readonly saved_ms: Range
  readonly speedup: Range
  readonly basis: string
  readonly not_promised: string // why the recording cannot carry the promise of a gain; empty where it can
}

export interface StepTime {
  readonly caption: string
  readonly steps: readonly {
    readonly step: number
    readonly kind?: string // "decode", where steps are of several kinds
    readonly total_ns: number
    readonly parts_ns: readonly number[]
  }[]
  readonly steps_count: number // recorded: only some are drawn
  readonly odd: readonly OddStep[] // the farthest from the median first
  readonly parts: readonly { readonly kind: Kind; readonly label: string; readonly ns: number; readonly pct: number }[]
}

/** One number about the use of the GPU. */
export interface GpuTile {
  readonly label: string
  readonly value: string
  readonly says: string // what it is a share of
  readonly view: string // the page that shows more
}

/** A step that took much longer or shorter than the others, and why. */
export interface OddStep {
  readonly step: number
  readonly says: string
  readonly from_ns: number
  readonly to_ns: number
}

export interface Checked {
  readonly rule: string
  readonly label: string
  readonly says: string
  readonly looked: boolean // false: could not look, and `says` what to record
  readonly seen: boolean // there, but not worth a finding here, and `says` why
}

export interface OneStep {
  readonly caption: string
  readonly kinds: readonly Kind[]
  readonly columns: readonly (readonly number[])[] // per column the share of each kind, 0 to 1
  readonly phases: readonly { readonly label: string; readonly from: number; readonly to: number }[] // 0 to 1
}

/** `timeline`, the header of a binary payload; the columns are beside it (see data/payload.ts). */
export interface Timeline {
  readonly from_ns: number
  readonly to_ns: number
  readonly tiled: boolean // too many spans to send: ask for windows as the view moves
  readonly spans_count: number
  readonly names: readonly string[] // as shown: short
  readonly tracks: readonly Track[]
  readonly counters: readonly Counter[]
  readonly steps: readonly StepRange[]
  readonly minimap: { readonly kinds: readonly Kind[]; readonly columns: readonly (readonly number[])[] }
}

export interface Track {
  readonly group: "gpu" | "idle" | "modules" | "host" | "python" | "marks"
  readonly title: string // "GPU 0"
  readonly subtitle: string // "stream 7"
  readonly rows: readonly { readonly offset: number; readonly count: number }[] // into the span columns, by lane
}

/** A step function: columns `counter:I:at` and `counter:I:value` of the payload. */
export interface Counter {
  readonly title: string
  readonly unit: "pct" | "count" | "bytes"
  readonly says: string
  readonly most: number
}

export interface StepRange {
  readonly step: number
  readonly from_ns: number // the whole step, from its start or the end of the one before, as Overview divides it
  readonly to_ns: number
  readonly gpu_from_ns: number | null
  readonly gpu_to_ns: number | null
  readonly host_from_ns: number | null
  readonly host_to_ns: number | null
}

/** The columns of the spans, row after row, each row by start. */
export interface SpanColumns {
  readonly start: Float64Array // ns
  readonly dur: Float32Array | Float64Array // ns
  readonly name: Uint16Array | Uint32Array // into Timeline.names
  readonly kind: Uint8Array // into KINDS, then HOST_KINDS
  readonly id: Ids // spans.id, or of an idle gap, whose ids follow those of the spans; 0xFFFFFFFF: drawn from several spans (the modules lanes), so there is no span/ID
  readonly finding: Uint8Array // number of the finding that it belongs to; 0: none
}

/** `span/ID` */
export interface SpanDetail {
  readonly id: number
  readonly title: string
  readonly subtitle: string
  readonly name: string // whole
  readonly from_ns: number
  readonly to_ns: number
  readonly facts: readonly { readonly label: string; readonly value: string; readonly code: boolean }[]
  readonly finding: number | null
  readonly links: readonly { readonly label: string; readonly id: number; readonly from_ns: number; readonly to_ns: number }[] // launch, operator, forward, kernels
}

/** `waiting`: what the GPU and the host wait for. */
export interface Waiting {
  readonly says: string
  readonly idle: Table // by cause
  readonly gaps: Table | null // the longest; column `span` is what the timeline selects
  readonly others: readonly WaitingTable[]
}

export interface WaitingTable {
  readonly name: string
  readonly title: string
  readonly table: Table | null
  readonly missing: string | null // why there is none
}

/** `modules`: trees to draw as a table, a flame graph, left-heavy or sandwich. */
export interface Trees {
  readonly says: string
  readonly trees: readonly Tree[]
}

export interface Tree {
  readonly title: string // "Modules, by GPU time"
  readonly measure: string // "gpu_ns"
  readonly parent: readonly number[] // -1: a root; parents come first
  readonly name: readonly string[]
  readonly total: readonly number[]
  readonly self: readonly number[]
  readonly calls: readonly (number | null)[] // null: not recorded
}

/** `sections`: the ranges that the program marked. */
export interface Sections {
  readonly says: string
  readonly sections: Table | null // null: sums alone were recorded
  readonly breakdown: Table | null // the run in one table; null: ranges without time on the host
}

/** `memory` */
export interface Memory {
  readonly says: string
  readonly at_ns: readonly number[]
  readonly series: readonly { readonly label: string; readonly kind: string; readonly bytes: readonly number[] }[] // stacked
  readonly peak: { readonly at_ns: number; readonly bytes: number; readonly parts: readonly { readonly label: string; readonly bytes: number; readonly pct: number }[] }
  readonly largest: Table
}

/** `roofline` */
export interface Roofline {
  readonly says: string
  readonly device: string
  readonly roofs: readonly { readonly label: string; readonly kind: "compute" | "memory"; readonly per_s: number; readonly source: string }[]
  readonly marks: readonly { readonly name: string; readonly kind: Kind; readonly flops_per_byte: number; readonly flops_per_s: number; readonly total_ns: number; readonly calls: number; readonly span: number; readonly says: string }[]
  readonly without: string // what has no mark, and why
}

/** `ranks` */
export interface Ranks {
  readonly says: string
  readonly ranks: readonly number[]
  readonly parts: readonly string[] // compute, exposed communication, copies, idle ...
  readonly share_pct: readonly (readonly number[])[] // rank, part
  readonly steps: readonly number[] // of the ranks on one clock; empty where they could not be put on one
  readonly late_ns: readonly (readonly (number | null)[])[] // rank, step: the most by which it arrived after the median member
  readonly job: readonly number[] // the ranks that are on it: more than are shown by themselves
  readonly runs: readonly string[] // ids of their runs; a report may not hold them all
  readonly arrivals: RankArrivals | null
  readonly stack: RankStack | null // of the step in which a rank was latest
  readonly path: readonly (readonly [number, string, number, number])[] // rank, what, start and end in ns
  readonly findings: readonly (readonly [string, string, string, number, boolean])[] // what, who, in words, worth in ns, at least that
  readonly table: Table
}

/** The collective with the most skew: how long after the first each rank arrived. */
export interface RankArrivals {
  readonly kind: string
  readonly step: number
  readonly ranks: readonly number[]
  readonly after_ns: readonly number[]
}

/** `ranks/stack`: one step of several ranks; times in ns on the common clock, from the earliest begin among them. */
export interface RankStack {
  readonly step: number
  readonly ranks: readonly number[]
  readonly left_out: readonly number[] // would have been too much to draw
  readonly end_ns: number
  readonly parts: readonly string[]
  readonly kinds: readonly string[]
  readonly spans: readonly (readonly RankSpan[])[] // of each rank, one after the other
  readonly calls: readonly (readonly RankCall[])[]
  readonly longest: { readonly communication: number; readonly kind: string; readonly rank: number; readonly wait_ns: number; readonly last_rank: number } | null
}

export type RankSpan = readonly [part: number, start: number, end: number, communication: number]
export type RankCall = readonly [communication: number, kind: number, arrive: number, latest: number, leave: number, last: number]

/** `compare/OTHER` */
export interface DifferenceFrame {
  readonly name: string
  readonly depth: number
  readonly start: number // share of the whole width
  readonly width: number
  readonly a_ns: number
  readonly b_ns: number
}

export interface Comparison {
  readonly says: string
  readonly verdict: "faster" | "slower" | "same" | "inconclusive"
  readonly why: string // why it is inconclusive; empty otherwise
  readonly a: { readonly name: string; readonly step_ns: number | null }
  readonly b: { readonly name: string; readonly step_ns: number | null }
  readonly rows: readonly { readonly kind: Kind; readonly label: string; readonly a_ns: number; readonly b_ns: number }[] // the waterfall from a to b
  readonly frames: readonly DifferenceFrame[] // the differential flame graph, callers before callees
  readonly operators: Table // those that differ most, matched by module, name and shapes
  readonly kernels: Table
  readonly nodes: Table // steps, DataLoader, modules, autograd nodes and the optimizer, by type and name
  readonly memory: SnapshotComparison | null // of the Runs' snapshots, where both have one
  readonly notes: readonly string[]
}

/** `predict?findings=1,3&scale=NAME:0.5`: the step replayed with these changes together. */
export interface WhatIf {
  readonly findings: readonly number[]
  readonly predicted: Predicted | null
  readonly says: string
}

/** A kernel whose duration may be changed by hand: `whatif` lists them, with answers ready for a report. */
export interface WhatIfKernels {
  readonly factors: readonly number[]
  readonly kernels: readonly { readonly name: string; readonly title: string; readonly kind: Kind; readonly per_step_ns: number; readonly after_ms: readonly (number | null)[] }[]
  readonly combinations: Readonly<Record<string, WhatIf>> // "1,3" -> together
}
