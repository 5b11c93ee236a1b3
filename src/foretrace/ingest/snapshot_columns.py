"""What the two readers of memory snapshots hand over: columns, with text as codes into `texts`.

A pickle is read by a machine that knows the operations such a file needs and no other: no name of a class or function is ever
looked up, so nothing in the file can run. Dictionaries become rows of the columns as soon as they are complete. Both readers,
`snapshot_python` and the native extension, follow these rules, and fail with the same words at the same byte:

- What is put into a list, tuple or dictionary is complete: adding to it afterwards is refused, and so there are no cycles.
- What a dictionary is, its keys say: see `kind_of`. Unknown keys are ignored.
- Nothing is allocated because a length in the file claims it. What the machine holds grows with the bytes that were read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foretrace.ingest.columns import I32, I64, NULL_I64, NULL_U32, NULL_U64, U8, U32, U64, Array

# Texts have the numbers 0, 1, 2, ... in the order in which they are met; these come first, in both readers.
KEYS = (
    "action", "addr", "device_free", "size", "stream", "pool_id", "time_us", "frames", "compile_context", "user_metadata",
    "filename", "line", "name", "total_size", "blocks", "device", "address", "allocated_size", "active_size",
    "requested_size", "segment_type", "segment_pool_id", "is_expandable", "state", "real_size", "history", "stage", "oom",
    "segments", "device_traces", "host_segments", "host_traces", "external_annotations", "allocator_settings",
    "active_allocated", "active_pending_free", "active_awaiting_free", "inactive", "N/A", "",
)  # fmt: skip

# Group -> column -> type. `row` says which record stands there: records of a group are numbered as they are met.
GROUPS = {
    "segments": {
        "device": I32, "address": U64, "total": I64, "allocated": I64, "active": I64, "requested": I64, "stream": I64,
        "kind": U32, "pool": U32, "expandable": U8, "stack": I32,
    },
    "blocks": {"address": U64, "size": I64, "requested": I64, "state": U8, "stack": I32},
    "events": {
        "action": U32, "address": U64, "size": I64, "stream": I64, "pool": U32, "time": I64, "stack": I32, "context": U32,
        "note": U32,
    },
    "annotations": {"device": I32, "stage": U32, "name": U32, "time": I64},
    "frames": {"file": U32, "line": I32, "name": U32},
    "stacks": {"end": U64},
    "stack_frames": {"frame": U32},
    "segment_rows": {"row": U32, "host": U8},
    "block_rows": {"row": U32, "segment": I32},
    "event_rows": {"row": U32, "device": I32},
    "annotation_rows": {"row": U32},
}  # fmt: skip

LONGEST_TEXT = 16 << 20
LONGEST_NUMBER = 1024  # bytes
# What the machine may hold: this many values, and one for every so many bytes read. Files of torch need one for 10 or more.
HELD_AT_LEAST, BYTES_PER_VALUE = 1 << 18, 4
STORE_COST = 16  # of a list or dictionary with items, in values
TEXTS_AT_LEAST, BYTES_PER_TEXT = 1 << 18, 64  # different ones
# Rows that a file may stand for, as records may be named twice: a row of torch's has 40 bytes or more.
ROWS_AT_LEAST, BYTES_PER_ROW = 1 << 16, 16
MOST_SETTINGS, DEEPEST_SETTINGS = 10_000, 20
MOST_DEVICES = 1 << 16
LATEST_US = 9_000_000_000_000_000  # in the year 2255; in nanoseconds the last that 64 bits hold is 2262

__all__ = ["GROUPS", "KEYS", "NULL_I64", "NULL_U32", "NULL_U64", "SnapshotColumns", "SnapshotFault"]


class SnapshotFault(Exception):
    """Why a pickle is refused, and at which byte."""

    def __init__(self, says: str, at: int) -> None:
        super().__init__(says)
        self.says, self.at = says, at


@dataclass
class SnapshotColumns:
    """One snapshot, scanned."""

    texts: list[bytes]
    groups: dict[str, dict[str, Array]]
    settings: dict[str, Any] = field(default_factory=dict)
    bare_list: bool = False
