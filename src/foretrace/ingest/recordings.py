"""Which recording a path means: the file itself, the one in a folder, or the one to read of a Run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from foretrace.errors import ForetraceError, InputError, UsageError
from foretrace.ingest import READERS
from foretrace.ingest.nsys_folder import is_export
from foretrace.ingest.nsys_stats import one_of_each
from foretrace.ingest.other_formats import recognised, telling_head, told
from foretrace.ingest.pipes import as_file
from foretrace.ingest.ranks import lowest_rank
from foretrace.ingest.run import Recorded, find_recorded
from foretrace.ingest.source import open_source
from foretrace.units import visible

_LISTED, _INSPECTED = 10, 1_000


def find_recording(path: Path, *, of_ranks: bool = False) -> Recorded:
    """The recording to read, with what a Run knows of it.

    A folder with one recording for each rank of a job means the lowest rank, where `of_ranks` allows it.
    """
    try:
        path = as_file(path)
        recorded = find_recorded(path)
        if recorded is not None:
            return recorded
        is_folder = path.is_dir()
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise InputError(f"{path}: {error.strerror or error}") from error
    if not is_folder or is_export(path):
        return Recorded(path)
    return Recorded(_in_folder(path, of_ranks=of_ranks))


def is_recording(file: Path) -> bool:
    """Whether a file begins as a recording does."""
    try:
        head = telling_head(open_source(file))
    except ForetraceError:
        return False  # naming the file itself tells why it cannot be read
    return recognised(head) is None and any(reader.accepts(head) for reader in READERS)


def _in_folder(folder: Path, *, of_ranks: bool) -> Path:
    recordings = one_of_each(list(_recordings(folder)))
    if not recordings:
        raise InputError(f"{folder}: no recording in this folder{_others(folder)}")
    if len(recordings) == 1:
        return recordings[0]
    if of_ranks and (lowest := lowest_rank(recordings)) is not None:
        return lowest
    names = ", ".join(visible(str(file.relative_to(folder))) for file in recordings[:_LISTED])
    more = f" and {len(recordings) - _LISTED} more" if len(recordings) > _LISTED else ""
    raise UsageError(f"{folder}: {len(recordings)} recordings in this folder, name one: {names}{more}")


def _recordings(folder: Path) -> Iterator[Path]:
    return (file for file in _files(folder) if is_recording(file))


def _files(folder: Path) -> Iterator[Path]:
    for file in sorted(folder.rglob("*"))[:_INSPECTED]:
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if not hidden and file.is_file():
            yield file


def _others(folder: Path) -> str:
    """What the first file of another profiler in a folder is, if there is one."""
    for file in _files(folder):
        try:
            other = told(open_source(file))
        except ForetraceError:
            continue  # naming the file itself tells why it cannot be read
        if other:
            return f"; in it is {other}"
    return ""
