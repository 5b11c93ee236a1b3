"""Ranks of one job: which recordings beside one another are of its ranks, told from how the files begin.

No recording is read for it: torch.profiler writes the rank and the number of ranks before the first event.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretrace.errors import ForetraceError
from foretrace.ingest.run import other_ranks
from foretrace.ingest.source import open_source
from foretrace.urls import RemotePath, look_ahead

_DISTRIBUTED = re.compile(rb'"distributedInfo"\s*:\s*(?=\{)')
_NUMBER = re.compile(r"[0-9]+")
_LOOKED_AT = 1_000  # files of one folder


@dataclass(frozen=True)
class _Member:
    """What the beginning of a recording says of its rank."""

    path: Path
    rank: int
    world_size: int
    backend: str

    @property
    def job(self) -> tuple[int, str]:
        """What all ranks of a job have in common."""
        return self.world_size, self.backend

    @property
    def name(self) -> str:
        """The file's name without its rank: `#.json` for both `0.json` and `1.json`."""
        return re.sub(rf"(?<!\d)0*{self.rank}(?!\d)", "#", self.path.name)


def find_others(path: Path) -> tuple[Path, ...]:
    """The recordings of the other ranks of the same job, by rank: of its Run, or beside it; none where that is not plain."""
    in_run = other_ranks(path)
    if in_run is not None:
        return in_run
    member = _member(path)
    if member is None or member.world_size < 2:
        return ()
    looked_at = None if isinstance(path, RemotePath) else _LOOKED_AT
    beside = [each for each in sorted(path.parent.iterdir())[:looked_at] if each != path and each.is_file()]
    look_ahead(beside)
    found = [each for each in map(_member, beside) if each and each.job == member.job]
    if not _distinct([member, *found]):  # several recordings of a rank: those that are named alike
        found = [each for each in found if each.name == member.name]
    return _by_rank(found) if _distinct([member, *found]) else ()


def unreadable_others(path: Path, others: Sequence[Path]) -> tuple[Path, ...]:
    """Files beside a rank's recording and the `others` of its job that are named alike, but for numbers, and are of no rank."""
    alike = _NUMBER.sub("#", path.name)
    looked_at = None if isinstance(path, RemotePath) else _LOOKED_AT
    known = {path, *others}
    beside = [
        file for file in sorted(path.parent.iterdir())[:looked_at] if file not in known and file.is_file()
    ]
    return tuple(file for file in beside if _NUMBER.sub("#", file.name) == alike and _member(file) is None)


def lowest_rank(paths: Sequence[Path]) -> Path | None:
    """The recording of the lowest rank, where all are of different ranks of one job."""
    members = [each for each in map(_member, paths) if each]
    one_job = len(members) == len(paths) and len({member.job for member in members}) == 1
    return _by_rank(members)[0] if one_job and _distinct(members) else None


def _member(path: Path) -> _Member | None:
    try:
        head = open_source(path).head
    except ForetraceError:
        return None  # not readable is no rank; naming the file itself tells why
    match = _DISTRIBUTED.search(head)
    if match is None:
        return None
    try:
        facts, _ = json.JSONDecoder().raw_decode(head[match.end() :].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None  # longer than the beginning that was looked at, or damaged
    if not isinstance(facts, dict):
        return None
    rank, size = facts.get("rank"), facts.get("world_size")
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        return None
    return _Member(path, rank, size, str(facts.get("backend")))


def _distinct(members: Sequence[_Member]) -> bool:
    return len({member.rank for member in members}) == len(members)


def _by_rank(members: Sequence[_Member]) -> tuple[Path, ...]:
    return tuple(each.path for each in sorted(members, key=lambda each: each.rank))
