"""Which recording a path means: the file itself, the one in a folder, or the one to read of a Run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from foretrace.errors import ForetraceError, InputError, UsageError
from foretrace.ingest import companions, gathered
from foretrace.ingest.companions import Companion
from foretrace.ingest.folders import files_in
from foretrace.ingest.other_formats import telling, told
from foretrace.ingest.pipes import as_file
from foretrace.ingest.ranks import lowest_rank
from foretrace.ingest.run import Recorded, find_recorded
from foretrace.ingest.source import open_source
from foretrace.units import visible

_LISTED = 10


def find_recording(path: Path, *, of_ranks: bool = False, counters: Sequence[Path] = ()) -> Recorded:
    """The recording to read, with what a Run knows of it and what lies beside it in its folder: the folder itself where several of
    its files are one recording.

    A folder with one recording for each rank of a job means the lowest rank, where `of_ranks` allows it. `counters` are files
    with counters of its kernels that the user names.
    """
    try:
        path = as_file(path)
        recorded = find_recorded(path)
        if recorded is None:
            recorded = _in_folder(path, of_ranks=of_ranks) if path.is_dir() else Recorded(path)
    except OSError as error:  # a name that is too long, a folder that may not be looked into
        raise InputError(f"{path}: {error.strerror or error}") from error
    return replace(recorded, counters=tuple(counters))


def find_recordings(path: Path) -> list[Path]:
    """The recordings that a path means: the file itself, or all in a folder."""
    if not path.is_dir():
        return [as_file(path)]
    if recordings := list(_recordings(path)):
        return recordings
    raise InputError(f"{path}: no recording in this folder{_others(path)}")


def is_recording(file: Path) -> bool:
    """Whether a file begins as a recording does."""
    try:
        head = telling(open_source(file))
    except ForetraceError:
        return False  # naming the file itself tells why it cannot be read
    return companions.reader_of(head) is not None


def _in_folder(folder: Path, *, of_ranks: bool) -> Recorded:
    """The timeline in a folder, or the counters where there is none, with what lies beside it."""
    found = [each for each in map(companions.companion, files_in(folder)) if each is not None]
    timelines = [each for each in found if each.gives == companions.TIMELINE]
    counters = companions.counters_among(found)
    first = [each.path for each in companions.first_kind(timelines)]
    # Tables of an export of Nsight Systems are no recordings one by one.
    whole = gathered(files_in(folder)) if len(first) != 1 else None
    if whole is not None and set(whole[1]) >= set(first):
        return Recorded(folder, beside=tuple(each for each in found if each.path not in whole[1]))
    recordings = first or list(counters)
    if not recordings:
        raise InputError(f"{folder}: no recording in this folder{_others(folder)}")
    lowest = lowest_rank(recordings) if of_ranks and len(recordings) > 1 else None
    if len(recordings) == 1 or not timelines or lowest is not None:
        main = lowest or recordings[0]
        return Recorded(main, beside=tuple(each for each in found if _completes(each, main, recordings)))
    names = ", ".join(visible(str(file.relative_to(folder))) for file in recordings[:_LISTED])
    more = f" and {len(recordings) - _LISTED} more" if len(recordings) > _LISTED else ""
    raise UsageError(f"{folder}: {len(recordings)} recordings in this folder, name one: {names}{more}")


def _recordings(folder: Path) -> Iterator[Path]:
    return (file for file in files_in(folder) if is_recording(file))


def completes_another(file: Path) -> bool:
    """Whether a file is one of the recordings that complete another in its folder, which is opened with it."""
    own = companions.companion(file)
    if own is None or own.gives == companions.TIMELINE:
        return False
    meant = _meant_by(file.parent, file.parent.stat().st_mtime_ns)
    return meant is not None and file in {each.path for each in meant.beside}


@lru_cache(maxsize=64)
def _meant_by(folder: Path, changed_ns: int) -> Recorded | None:
    """The recording that a folder means, kept as long as no file is added to it; None where it means none or several."""
    try:
        # A Run has what other profilers left beside its ranks' folders.
        return find_recorded(folder) or _in_folder(folder, of_ranks=True)
    except ForetraceError:
        return None


def opened_with(file: Path, folder: Path) -> Path:
    """What to open for a file of a folder: the folder, where all in it is of one program and this file is what it means."""
    try:
        recorded = find_recording(folder, of_ranks=True)
    except ForetraceError:
        return file
    return folder if recorded.path == file and recorded.beside else file


def _completes(other: Companion, main: Path, same_kind: Sequence[Path]) -> bool:
    """Whether a recording is told beside the one that is read: all but itself and the other ranks of its job."""
    return other.path != main and (other.gives == companions.COUNTERS or other.path not in same_kind)


def _others(folder: Path) -> str:
    """What the first file of another profiler in a folder is, if there is one."""
    for file in files_in(folder):
        try:
            other = told(open_source(file))
        except ForetraceError:
            continue  # naming the file itself tells why it cannot be read
        if other:
            return f"; in it is {other}"
    return ""
