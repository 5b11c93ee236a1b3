"""From paths to Ranks: each recording is summarised by an engine, or its kept summary read, and all are reduced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from foretrace.errors import InputError, MissingDataError
from foretrace.ranks.engines import engine
from foretrace.ranks.recordings import find_recordings
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summary import SUFFIX, SUMMARY_SCHEMA, Summary, read_summary
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
    progress: Progress | None = None,
) -> Ranks:
    """The ranks that these recordings are of; files that cannot be read are named in `unread`."""
    keep_in = here(os.fspath(out)) if out is not None else None
    summaries, unread = _summaries(find_recordings(paths), on, keep_in, progress)
    one_each, repeated = _one_each(summaries)
    unread.update(repeated)
    if not one_each:
        reasons = list(unread.values())
        more = f" (and {len(reasons) - _LISTED} more)" if len(reasons) > _LISTED else ""
        raise InputError("no rank could be read: " + "; ".join(reasons[:_LISTED]) + more)
    if len(one_each) < 2:
        (only,) = one_each
        raise MissingDataError(
            f"{only.source}: one rank alone; name the recordings of the other ranks too, or their folder"
        )
    return reduce(one_each, ranks_per_node=ranks_per_node, unread=unread)


def _summaries(
    files: Sequence[str], on: str, out: Path | None, progress: Progress | None
) -> tuple[list[tuple[str, Summary]], dict[str, str]]:
    run = engine(on)  # a name that there is none of is told before anything is read
    kept: list[tuple[str, Summary]] = []
    unread: dict[str, str] = {}
    to_read: dict[str, Path | None] = {}
    for file in files:
        place = located(file) if file.endswith(SUFFIX) else _kept_as(out, file)
        if place is not None and place.is_file():
            try:
                kept.append((file, read_summary(place)))
            except InputError as error:
                if file.endswith(SUFFIX):
                    unread[file] = str(error)
                else:
                    to_read[file] = place
        else:
            to_read[file] = place
    if out is not None and to_read:
        _make_folder(out)
    for count, outcome in enumerate(run(list(to_read)) if to_read else (), 1):
        if outcome.summary is None:
            unread[outcome.path] = outcome.reason
        else:
            kept.append((outcome.path, Summary.from_bytes(outcome.summary, outcome.path)))
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


def _one_each(read: Sequence[tuple[str, Summary]]) -> tuple[list[Summary], dict[str, str]]:
    """One summary of each rank, that with the most steps; the names of the others."""
    chosen: dict[int, tuple[str, Summary]] = {}
    repeated: dict[str, str] = {}
    for file, summary in sorted(read, key=lambda each: (-each[1].steps.height, each[0])):
        first = chosen.setdefault(summary.rank, (file, summary))
        if first[0] != file:
            repeated[file] = f"{file}: rank {summary.rank} again; {first[0]} is taken"
    return [summary for _, summary in chosen.values()], repeated
