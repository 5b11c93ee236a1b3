"""From paths to Ranks: each recording is summarised by an engine, or its kept summary read, and all are reduced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from foretrace.errors import InputError, MissingDataError
from foretrace.ranks.cycles import Recording, choose
from foretrace.ranks.engines import engine
from foretrace.ranks.recordings import find_recordings
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import rank_in_name
from foretrace.ranks.summary import SUFFIX, SUMMARY_SCHEMA, Summary, read_summary
from foretrace.ranks.unused import LOST, UNREADABLE, Unused
from foretrace.urls import RemotePath, here, located
from foretrace.whole_files import replacing

Progress = Callable[[int, int], None]
_LISTED = 3


def read_job(
    paths: Iterable[str | os.PathLike[str]],
    *,
    on: str = "local",
    ranks_per_node: int | None = None,
    out: str | os.PathLike[str] | None = None,
    cycle: int | None = None,
    progress: Progress | None = None,
) -> Ranks:
    """The ranks that these recordings are of; recordings that are not compared are listed in `unused`.

    `cycle` is the number of a profiling cycle, the oldest is 1; without it the latest that most ranks recorded whole is taken.
    """
    keep_in = here(os.fspath(out)) if out is not None else None
    recordings, unread = _summaries(find_recordings(paths), on, keep_in, progress)
    chosen = choose(recordings, number=cycle)
    unused = (*_with_ranks(unread, recordings), *chosen.unused)
    if not chosen.recordings:
        raise InputError("no rank could be read: " + _first(unused))
    if len(chosen.recordings) < 2:
        only = chosen.recordings[0].summary
        more = f"; not used: {_first(unused)}" if unused else ""
        raise MissingDataError(
            f"{only.source}: one rank alone; name the recordings of the other ranks too, or their folder{more}"
        )
    summaries = [recording.summary for recording in chosen.recordings]
    job = reduce(summaries, ranks_per_node=ranks_per_node, unused=unused, cycle=chosen.cycle)
    paths_of = {recording.summary.source: recording.path for recording in chosen.recordings}
    return replace(job, unused=tuple(_at_path(unused, paths_of) for unused in job.unused))


def _first(unused: Sequence[Unused]) -> str:
    """The first reasons, and how many more there are."""
    more = f" (and {len(unused) - _LISTED} more)" if len(unused) > _LISTED else ""
    return "; ".join(each.says for each in unused[:_LISTED]) + more


def _at_path(unused: Unused, paths_of: Mapping[str, str]) -> Unused:
    """With the path of a recording that was known by its name only."""
    return replace(unused, path=paths_of.get(unused.path, unused.path))


def _with_ranks(unread: Iterable[Unused], recordings: Sequence[Recording]) -> list[Unused]:
    """Recordings that could not be read with the rank that their name tells, where the names of the others tell theirs."""
    named = recordings and all(
        rank_in_name(os.path.basename(recording.summary.source)) == recording.rank for recording in recordings
    )
    return [
        replace(unused, rank=rank_in_name(os.path.basename(unused.path))) if named else unused
        for unused in unread
    ]


def _summaries(
    files: Sequence[str], on: str, out: Path | None, progress: Progress | None
) -> tuple[list[Recording], list[Unused]]:
    run = engine(on)  # a name that there is none of is told before anything is read
    kept: list[Recording] = []
    unread: list[Unused] = []
    to_read: dict[str, Path | None] = {}
    for file in files:
        place = located(file) if file.endswith(SUFFIX) else _kept_as(out, file)
        if place is not None and place.is_file():
            try:
                kept.append(Recording(file, read_summary(place)))
            except InputError as error:
                if file.endswith(SUFFIX):
                    unread.append(Unused(file, UNREADABLE, str(error)))
                else:
                    to_read[file] = place
        else:
            to_read[file] = place
    if out is not None and to_read:
        _make_folder(out)
    for count, outcome in enumerate(run(list(to_read)) if to_read else (), 1):
        if outcome.summary is None:
            unread.append(Unused(outcome.path, LOST if outcome.lost else UNREADABLE, outcome.reason))
        else:
            kept.append(Recording(outcome.path, Summary.from_bytes(outcome.summary, outcome.path)))
            _keep(to_read[outcome.path], outcome.summary)
        if progress:
            progress(count, len(to_read))
    return kept, unread


def _kept_as(out: Path | None, file: str) -> Path | None:
    """The name of a recording's summary: of the file as it is now."""
    if out is None:
        return None
    place = located(file)
    try:
        version = _version(place)
    except OSError:
        return None  # reading it will tell
    if version is None:
        return None
    digest = hashlib.blake2b(os.fsencode(f"{SUMMARY_SCHEMA}\0{version}"), digest_size=8).hexdigest()
    stem = place.name.split(".")[0]
    return out / f"{stem}-{digest}{SUFFIX}"


def _version(file: Path) -> str | None:
    """What tells a file as it is now from another; None where a server does not."""
    if isinstance(file, RemotePath):
        return file.version()
    facts = file.stat()
    return f"{file.absolute()}\0{facts.st_size}\0{facts.st_mtime_ns}"


def _make_folder(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{out}: {error.strerror or error}") from error


def _keep(place: Path | None, summary: bytes) -> None:
    """Written beside and renamed: a summary is there whole or not at all."""
    if place is None:
        return
    try:
        with replacing(place) as partial:
            partial.write_bytes(summary)
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error
