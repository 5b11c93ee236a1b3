"""What a path tells of memory: the snapshot that it means, with what the Run around it knows of steps and failed requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from foretrace.analyze.snapshots.findings import SnapshotFindings, findings
from foretrace.analyze.snapshots.places import NO_LINE, of_library
from foretrace.analyze.snapshots.shortage import Failed
from foretrace.ingest.run_memory import FailedAllocation, RunMemory, read_run_memory
from foretrace.ingest.snapshot_files import find_snapshot
from foretrace.ingest.snapshots import read_snapshot
from foretrace.snapshot import Snapshot


def open_findings(
    path: Path,
    *,
    device: int | None = None,
    step_times_ns: Sequence[tuple[int, int]] | None = None,
    read: Callable[[Path], Snapshot] = read_snapshot,
) -> SnapshotFindings | None:
    """What the snapshot at a path tells; `None` where there is none."""
    file = find_snapshot(path)
    if file is None:
        return None
    run = read_run_memory(file)
    of_pass = run.steps if run and file == run.snapshot else ()
    times = step_times_ns or [(step.began_ns, step.ended_ns) for step in of_pass] or None
    return findings(
        _told(read(file), run),
        device=device,
        step_times_ns=times,
        first_step=of_pass[0].step if of_pass and not step_times_ns else 0,
        failed=_failed(run, file),
    )


def _told(snapshot: Snapshot, run: RunMemory | None) -> Snapshot:
    """The snapshot with a note on the other one of its Run, of the moment at which memory ran out."""
    other = run.failed.snapshot if run and run.failed else None
    if other is None or other == snapshot.path:
        return snapshot
    note = f"an allocation failed in this Run: `foretrace memory {other}` tells of that moment"
    return replace(snapshot, notes=(*snapshot.notes, note))


def _failed(run: RunMemory | None, file: Path) -> dict[int, Failed]:
    """The request that did not fit when this snapshot was made."""
    if run is None or run.failed is None or run.failed.snapshot != file or run.failed.asked_bytes is None:
        return {}
    known = run.failed
    told = Failed(
        known.asked_bytes or 0, known.driver_free_bytes, known.limit_bytes, known.at_ns, _where(known)
    )
    return {known.device or 0: told}


def _where(known: FailedAllocation) -> str:
    """The innermost line of the program's own."""
    own = [frame for frame in known.stack if not of_library(frame[0])]
    file, line, function = (own or known.stack or (("", 0, NO_LINE),))[0]
    return f"{Path(file).name}:{line} {function}" if file else function
