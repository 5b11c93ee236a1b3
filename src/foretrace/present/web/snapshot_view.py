"""The SnapshotView: one memory snapshot as the page sees it, and the snapshot of the Run that a recording is of."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from foretrace.analyze.snapshots.findings import SnapshotFindings
from foretrace.analyze.snapshots.opening import open_findings
from foretrace.errors import ForetraceError, InputError, MissingDataError
from foretrace.ingest.companions import MEMORY
from foretrace.ingest.recordings import completes_another
from foretrace.ingest.run import find_recorded, pass_of
from foretrace.ingest.snapshot_files import find_snapshot
from foretrace.ingest.snapshots import read_snapshot
from foretrace.ingest.source import Progress
from foretrace.present.web.recording_view import RecordingView, display_name
from foretrace.units import visible
from foretrace.urls import located

HOW_TO_RECORD = "no memory snapshot here; `foretrace run --memory` records one beside the recording"
_GROWTH = 6  # what the tables of a snapshot take, against its file


class SnapshotView:
    """A snapshot with what it tells, and the names under which the page lists it."""

    def __init__(
        self, path: Path, *, run_id: str = "run", name: str | None = None, progress: Progress | None = None
    ) -> None:
        self.id, self.path = run_id, path
        self.name = self.label = visible(name or snapshot_name(path))
        self.title = self.group = ""
        found = open_findings(path, read=partial(read_snapshot, progress=progress))
        if found is None:
            raise InputError(f"{path}: no snapshot of torch's CUDA allocator")
        self.findings = found
        self.size_bytes = _GROWTH * path.stat().st_size


def of_a_run(path: Path) -> bool:
    """Whether a snapshot lies beside a recording of a Run, whose Memory page shows it."""
    try:
        return find_recorded(path.parent) is not None or completes_another(path)
    except ForetraceError:
        return False  # a Run that recorded nothing else


def snapshot_name(path: Path) -> str:
    """The file's name without what only says its format; below a folder, with the way there."""
    whole = path.name if path.is_absolute() else path.as_posix()
    name = display_name(whole)
    for ending in (".pickle", ".pkl", ".snapshot"):
        name = name.removesuffix(ending)
    return name or display_name(whole)


def of_recording(view: RecordingView) -> SnapshotFindings:
    """The snapshot that lies beside a recording of a Run; raises MissingDataError where none does."""
    return view.keep("snapshot", lambda: _beside(view))


def lies_beside(view: RecordingView) -> Path | None:
    """The file of that snapshot; None where there is none."""
    path = view.trace.path
    if pass_of(path) is not None:
        return find_snapshot(path.parent)
    # Of a folder that was opened as one: the recordings that were found beside it.
    told = [each["path"] for each in view.trace.meta.get("recordings", ()) if each.get("kind") == MEMORY]
    return located(told[0]) if len(told) == 1 else None


def has_snapshot(view: RecordingView) -> bool:
    """Whether a snapshot lies beside a recording; one of several that do cannot be told to be its own."""
    try:
        return lies_beside(view) is not None
    except ForetraceError:
        return False


def _beside(view: RecordingView) -> SnapshotFindings:
    file = lies_beside(view)
    found = None if file is None else open_findings(file)
    if found is None:
        raise MissingDataError(HOW_TO_RECORD)
    return found
