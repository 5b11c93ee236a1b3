"""Which memory snapshot a path means: the file itself, that of a Run, or the one in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foretrace.errors import ForetraceError, InputError, UsageError
from foretrace.ingest.folders import files_in
from foretrace.ingest.other_formats import is_snapshot
from foretrace.ingest.pipes import as_file
from foretrace.ingest.run import find_recorded
from foretrace.ingest.source import open_source
from foretrace.units import visible

_OF_A_RUN = ("memory.pickle", "oom.pickle")  # the first is of whole steps
_LISTED = 10


def find_snapshot(path: Path) -> Path | None:
    """The snapshot to read; `None` where the path holds none."""
    try:
        path = as_file(path)
        if not path.is_dir():
            return path if _is_snapshot(path, loud=True) else None
        for name in _OF_A_RUN:
            of_ranks = sorted(path.glob(f"rank*/{name}"), key=lambda file: (len(file.parent.name), file))
            of_run = [file for file in (path / name, *of_ranks) if file.is_file()]
            if of_run:
                return of_run[0]
        found = list(_in_folder(path))
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise InputError(f"{path}: {error.strerror or error}") from error
    if len(found) > 1:
        names = ", ".join(visible(str(file.relative_to(path))) for file in found[:_LISTED])
        more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise UsageError(f"{path}: {len(found)} snapshots in this folder, name one: {names}{more}")
    return found[0] if found else None


def is_snapshot_file(path: Path) -> bool:
    """Whether a file begins as a snapshot does; one that cannot be read is none."""
    try:
        return path.is_file() and find_snapshot(path) is not None
    except ForetraceError:
        return False


def snapshot_alone(path: Path) -> Path | None:
    """The snapshot that a path means, where it means no recording: the file itself, or that of a Run with nothing else."""
    if not path.is_dir():
        return path if is_snapshot_file(path) else None
    try:
        find_recorded(path)
    except ForetraceError:
        return find_snapshot(path)
    return None


def _in_folder(folder: Path) -> Iterator[Path]:
    yield from (file for file in files_in(folder) if _is_snapshot(file, loud=False))


def _is_snapshot(file: Path, *, loud: bool) -> bool:
    try:
        return is_snapshot(open_source(file).head)
    except ForetraceError:
        if loud:
            raise
        return False  # naming the file itself tells why it cannot be read
