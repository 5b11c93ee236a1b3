"""The recordings of a job's ranks: in folders, in Runs, by pattern, or named one by one."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from foretrace.errors import InputError
from foretrace.ingest.run import rank_facts, rank_number, recording_of
from foretrace.ranks.summary import SUFFIX
from foretrace.urls import RemotePath, look_ahead, matching, named, walked

_ENDINGS = (".json", ".json.gz", ".json.zst", SUFFIX)
_NOT_RECORDINGS = ("run.json", "rank.json")


def find_recordings(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Files that are, by where they lie and what they are called, recordings or summaries of ranks."""
    found: dict[str, None] = {}
    for path in paths:
        found.update(dict.fromkeys(_at(named(path))))
    return list(found)


def _at(place: Path) -> Iterator[str]:
    path = str(place)
    try:
        if place.is_dir():
            files = list(_in_run(place)) or sorted(_in_folder(place))
            if not files:
                raise InputError(f"{path}: no recording in this folder")
            yield from map(str, files)
        elif place.exists():
            yield path
        else:
            files = _matching(place)
            if not files and isinstance(place, RemotePath):
                place.stat()  # says whether there is nothing, or no leave to see it
            if not files:
                raise InputError(f"{path}: no such file or folder")
            for each in files:
                yield from _at(each) if each.is_dir() else [str(each)]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _matching(pattern: Path) -> list[Path]:
    if isinstance(pattern, RemotePath):
        return list(matching(pattern))
    return [Path(each) for each in sorted(glob.glob(str(pattern), recursive=True))]


def _in_run(folder: Path) -> Iterator[Path]:
    """Of each rank of a Run the light recording, else the rich one."""
    told = sorted(folder.glob("rank*/rank.json"), key=lambda file: rank_number(file.parent))
    look_ahead(told)
    for file in told:
        facts = rank_facts(file.parent)
        recording = recording_of(file.parent, facts, "light") or recording_of(file.parent, facts, "rich")
        if recording is not None:
            yield recording


def _in_folder(folder: Path) -> Iterator[Path]:
    for file in walked(folder):
        if file.name.endswith(_ENDINGS) and file.name not in _NOT_RECORDINGS:
            yield file
