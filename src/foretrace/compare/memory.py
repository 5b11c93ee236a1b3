"""What the memory snapshots of two programs differ in at their peaks: rows sum to the difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from foretrace.analyze.snapshots.difference import difference
from foretrace.analyze.snapshots.findings import DeviceFindings, SnapshotFindings
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.run_snapshot import snapshot_of
from foretrace.errors import MissingDataError
from foretrace.trace import Trace


@dataclass(frozen=True)
class MemoryComparison:
    """The same device of two snapshots."""

    before: DeviceFindings
    after: DeviceFindings

    @property
    def peaks_bytes(self) -> tuple[int, int]:
        """What was allocated at the two peaks."""
        return self.before.origins.memory.peak_bytes, self.after.origins.memory.peak_bytes

    @property
    def verdict(self) -> str:
        """Whether the second peak is higher: more, less or same."""
        first, second = self.peaks_bytes
        return "more" if second > first else "less" if second < first else "same"

    @property
    def lines(self) -> pl.DataFrame:
        """By source line: line, before_bytes, after_bytes, change_bytes."""
        return difference(self.before.origins, self.after.origins, "line")


def same_device(before: SnapshotFindings | None, after: SnapshotFindings | None) -> MemoryComparison | None:
    """The device with the largest peak in the second, in both; `None` where the first does not hold it, or one is missing."""
    if before is None or after is None:
        return None
    second = after.devices[0]
    first = next((device for device in before.devices if device.name == second.name), None)
    return None if first is None else MemoryComparison(first, second)


def snapshot_beside(recording: Case | Trace) -> tuple[SnapshotFindings | None, str]:
    """The snapshot of the Run that a recording is of, and why there is none although there should be."""
    if not isinstance(recording, Case):
        return None, ""
    try:
        return snapshot_of(recording), ""
    except MissingDataError as error:
        return None, str(error)


def to_dict(found: MemoryComparison) -> dict[str, Any]:
    """As `--format json` prints it."""
    first, second = found.peaks_bytes
    rows = found.lines.rename({"line": "what"}).to_dicts()
    return {"device": found.after.name, "before_bytes": first, "after_bytes": second, "lines": rows}
