"""The memory snapshot of the Run that a recording is of."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.diagnose.rule import Need
from foretrace.errors import InputError, MissingDataError
from foretrace.ingest.run_memory import read_run_memory

if TYPE_CHECKING:
    from foretrace.analyze.snapshots.findings import SnapshotFindings

_LINE = re.compile(r"^(.*):(\d+) (.*)$")

SNAPSHOT = Need(
    lambda case: snapshot_of(case) is not None,
    "no memory snapshot of its Run; record with `foretrace run --memory`",
)


def snapshot_of(case: Case) -> SnapshotFindings | None:
    """What the snapshot beside the recording tells; None where there is none."""
    return case.keep("snapshot of the Run", lambda: _read(case))


def _read(case: Case) -> SnapshotFindings | None:
    run = read_run_memory(case.whole.path.parent)
    if run is None or run.snapshot is None:
        return None
    from foretrace.analyze.snapshots.opening import open_findings  # slow to load, and few recordings have one

    try:
        found = open_findings(run.snapshot)
    except InputError as error:
        raise MissingDataError(f"the memory snapshot could not be read: {error}") from error
    if found is None:
        raise MissingDataError(f"the memory snapshot could not be read: {run.snapshot}: it is no snapshot")
    return found


def place_of(line: str) -> Place | None:
    """A source line as a snapshot words it; None where it is none."""
    match = _LINE.match(line)
    return Place(match[1], int(match[2]), match[3]) if match else None
