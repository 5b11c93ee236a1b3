"""`compare/OTHER` of two memory snapshots: what their peaks differ in, as `foretrace memory A B` says."""

from __future__ import annotations

from typing import Any

from foretrace.analyze.snapshots.findings import DeviceFindings, SnapshotFindings
from foretrace.present.text import memory_page, memory_words
from foretrace.present.web.resources import table
from foretrace.present.web.snapshot_view import SnapshotView
from foretrace.units import visible

_SAYS = {
    "line": "the innermost line of the program's own code; one that only moved is matched",
    "before_bytes": "held at the first snapshot's peak",
    "after_bytes": "held at the second snapshot's peak",
    "change_bytes": "second less first",
}
_HEADINGS = {"before_bytes": "first", "after_bytes": "second", "change_bytes": "difference"}


def snapshot_compare(view: SnapshotView, other: SnapshotView) -> dict[str, Any]:
    """For each device that both hold, the difference by each key; and which devices only one holds."""
    return compared((view.name, view.findings), (other.name, other.findings))


def compared(first: tuple[str, SnapshotFindings], second: tuple[str, SnapshotFindings]) -> dict[str, Any]:
    """The same, of snapshots with their names."""
    (a, one), (b, two) = first, second
    before = {device.name: device for device in one.devices}
    after = {device.name: device for device in two.devices}
    shared = [name for name in after if name in before]
    return {
        "a": a,
        "b": b,
        "devices": [_device(before[name], after[name]) for name in shared],
        "notes": [
            *(f"{name}: only in {a}" for name in before if name not in after),
            *(f"{name}: only in {b}" for name in after if name not in before),
        ],
    }


def _device(before: DeviceFindings, after: DeviceFindings) -> dict[str, Any]:
    return {
        "name": after.name,
        "says": visible(memory_words.compared_says(before, after)),
        "before_bytes": before.origins.memory.peak_bytes,
        "after_bytes": after.origins.memory.peak_bytes,
        "tables": {by: _table(before, after, by) for by in memory_page.COMPARED},
    }


def _table(before: DeviceFindings, after: DeviceFindings, by: str) -> dict[str, Any]:
    whole = memory_page.compared_frame(before, after, by, 0)
    shown = table.of_frame(whole[:-1], _SAYS)  # the last row is the peak itself, which stands above
    for column in shown["columns"]:
        column["heading"] = _HEADINGS.get(column["name"], column["heading"])
    return {"name": by, "says": "rows sum to the difference", **shown, "values": [], "notes": []}
