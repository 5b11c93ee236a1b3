"""The recordings of a job's ranks: in folders, in Runs, by pattern, or named one by one."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from foretrace.errors import InputError
from foretrace.ingest.run import rank_number, read_facts, recording_of
from foretrace.ranks.summary import SUFFIX

_ENDINGS = (".json", ".json.gz", ".json.zst", SUFFIX)
_NOT_RECORDINGS = ("run.json", "rank.json")


def find_recordings(paths: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Files that are, by where they lie and what they are called, recordings or summaries of ranks."""
    found: dict[str, None] = {}
    for path in paths:
        found.update(dict.fromkeys(_at(os.fspath(path))))
    return list(found)


def _at(path: str) -> Iterator[str]:
    place = Path(path)
    try:
        if place.is_dir():
            files = list(_in_run(place)) or sorted(_in_folder(place))
            if not files:
                raise InputError(f"{path}: no recording in this folder")
            yield from map(str, files)
        elif place.exists():
            yield path
        else:
            files = [Path(each) for each in sorted(glob.glob(path, recursive=True))]
            if not files:
                raise InputError(f"{path}: no such file or folder")
            for each in files:
                yield from _at(str(each)) if each.is_dir() else [str(each)]
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _in_run(folder: Path) -> Iterator[Path]:
    """Of each rank of a Run the light recording, else the rich one."""
    for rank in sorted(folder.glob("rank*"), key=rank_number):
        if (rank / "rank.json").is_file():
            facts = read_facts(rank / "rank.json")
            recording = recording_of(rank, facts, "light") or recording_of(rank, facts, "rich")
            if recording is not None:
                yield recording


def _in_folder(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.endswith(_ENDINGS) and not name.startswith(".") and name not in _NOT_RECORDINGS:
                yield Path(parent) / name
