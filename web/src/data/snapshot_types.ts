/** What the page is given of memory snapshots: part of the contract with Python that types.ts begins. */
import type { Mark, Table } from "./table_types"

/** `snapshot`: what torch's allocator held, and the history that led there. */
export interface Snapshot {
  readonly name: string
  readonly facts: readonly string[]
  readonly says: string
  readonly devices: readonly SnapshotDevice[] // the largest peak first
  readonly notes: readonly string[]
  readonly markdown: string
}

/** `memory/snapshot`: the snapshot in the Run of a recording. */
export interface RunSnapshot {
  readonly missing: string | null // why there is none
  readonly unrecorded: string | null // why the recording itself has no memory events
  readonly snapshot: Snapshot | null
}

/** Times are since the first event. */
export interface SnapshotDevice {
  readonly name: string
  readonly says: string
  readonly history: string | null // why there is no curve over time
  readonly peak: {
    readonly at_ns: number
    readonly bytes: number
    readonly step: number | null
    readonly reserved_bytes: number
    readonly reserved_at_ns: number
    readonly parts: readonly { readonly label: string; readonly bytes: number; readonly pct: number }[]
  }
  readonly timed: boolean // else the history has no times, and every moment is the number of an event
  readonly curve: SnapshotCurve
  readonly tables: Readonly<Record<"line" | "category" | "phase" | "module" | "block" | "step", Table>>
  readonly layers: { readonly says: string } | null
  readonly optimizer: { readonly says: string } | null // where it keeps more than usual
  readonly stacks: { readonly of_block: readonly number[]; readonly frames: readonly (readonly string[])[] } // per row of the table of blocks
  readonly leaks: { readonly mark: Mark; readonly says: string; readonly table: Table | null; readonly repetitions: Table | null; readonly hint: string | null; readonly stacks: readonly (readonly string[])[] }
  readonly unused: {
    readonly mark: Mark
    readonly says: string
    readonly flushes: string | null
    readonly beside: string | null // whose blocks lie there
    readonly advice: readonly { readonly setting: string; readonly reason: string }[]
    readonly figures: readonly { readonly label: string; readonly at_peak: string; readonly at_end: string }[]
  }
  readonly out_of_memory: {
    readonly at_ns: number
    readonly where: string
    readonly why: string
    readonly would_fit: string
    readonly holders: Table
    readonly figures: readonly Figure[]
    readonly more: string | null
  } | null
}

export interface Figure {
  readonly label: string
  readonly value: string
}

/** `snapshot/curve?device=&from=&to=`, and a part of `snapshot`. */
export interface SnapshotCurve {
  readonly at_ns: readonly number[]
  readonly series: readonly { readonly label: string; readonly kind: string; readonly bytes: readonly number[] }[] // stacked
  readonly reserved: readonly number[]
  readonly whole: boolean // no event between is left out
}

/** `compare/OTHER` of a snapshot */
export interface SnapshotComparison {
  readonly a: string
  readonly b: string
  readonly devices: readonly {
    readonly name: string
    readonly says: string
    readonly before_bytes: number
    readonly after_bytes: number
    readonly tables: Readonly<Record<"line" | "category" | "phase" | "module", Table>>
  }[]
  readonly notes: readonly string[]
}
