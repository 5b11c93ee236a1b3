/** Memory snapshot: the one page of a snapshot that was opened by itself. */
import type { JSX } from "preact"
import { snapshot } from "../data/state"
import { Loaded } from "../components/parts"
import { SnapshotBlock } from "./pieces/snapshot_block"

export function SnapshotPage(): JSX.Element {
  return (
    <Loaded resource={snapshot.value} what="memory snapshot">
      {(value) => <SnapshotBlock value={value} resource="snapshot/curve" />}
    </Loaded>
  )
}
