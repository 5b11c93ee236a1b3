"""What a Run knows of GPU memory beside the snapshots themselves: when steps were, the counters, where memory ran out.

All times are nanoseconds of the Unix clock, as those of a Snapshot are. The recordings of the same Run begin at
`trace.meta`'s absolute start on the same clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.errors import ForetraceError
from foretrace.ingest.run import passes_of, rank_facts, rank_number, recording_of

_RANK = "rank.json"


@dataclass(frozen=True)
class MemoryStep:
    """A step of the memory pass, as the host went through it."""

    step: int  # counted as the recordings of the Run count
    began_ns: int
    ended_ns: int


@dataclass(frozen=True)
class DeviceMemory:
    """What torch counted on one device: `torch.cuda.memory_stats()` before and after the memory pass."""

    device: int
    peak_allocated_bytes: int | None  # within the pass
    peak_reserved_bytes: int | None
    driver_free_bytes: int | None  # at its end, of the whole device
    driver_total_bytes: int | None
    before: Mapping[str, int]
    after: Mapping[str, int]


@dataclass(frozen=True)
class FailedAllocation:
    """The first allocation of a rank that failed; the snapshot is of that moment."""

    snapshot: Path | None
    why_no_snapshot: str | None
    at_ns: int | None
    step: int | None
    device: int | None
    asked_bytes: int | None
    limit_bytes: int | None  # what the process may have of the device: all of it, if nothing was set
    driver_free_bytes: int | None
    history: bool  # whether the snapshot holds events
    stack: tuple[tuple[str, int, str], ...]  # file, line, function; the innermost first
    count: (
        int  # failed allocations, this one included; cuDNN tries and fails without an error that anybody sees
    )


@dataclass(frozen=True)
class RunMemory:
    """Of one rank."""

    folder: Path
    snapshot: Path | None  # of the memory pass
    steps: tuple[MemoryStep, ...]
    devices: tuple[DeviceMemory, ...]
    failed: FailedAllocation | None


def read_run_memory(path: Path) -> RunMemory | None:
    """Of a Run (its lowest rank that has any), a rank's folder, or a snapshot in one; `None` if there is nothing."""
    if (path / _RANK).is_file():
        return _of_rank(path)
    if path.is_dir():
        ranks = sorted((file.parent for file in path.glob(f"rank*/{_RANK}")), key=rank_number)
        return next((found for found in map(_of_rank, ranks) if found is not None), None)
    found = _of_rank(path.parent) if (path.parent / _RANK).is_file() else None
    known = (found.snapshot, found.failed.snapshot if found.failed else None) if found else ()
    return found if path in known else None


def _of_rank(folder: Path) -> RunMemory | None:
    try:
        facts = rank_facts(folder)
    except ForetraceError:
        return None  # a snapshot can be read without what lies beside it
    recorded = [each for each in passes_of(facts) if each.get("kind") == "memory"]
    failed = facts.get("out_of_memory")
    if not recorded and not isinstance(failed, dict):
        return None
    last = recorded[-1] if recorded else {}
    return RunMemory(
        folder=folder,
        snapshot=recording_of(folder, facts, "memory"),
        steps=tuple(_steps(last)),
        devices=tuple(_device(each) for each in _dicts(last.get("devices"))),
        failed=_failed(folder, failed) if isinstance(failed, dict) else None,
    )


def _steps(recorded: Mapping[str, Any]) -> list[MemoryStep]:
    read = [
        (_number(each.get("step")), _number(each.get("began_ns")), _number(each.get("ended_ns")))
        for each in _dicts(recorded.get("step_times"))
    ]
    return [
        MemoryStep(step, began, ended)
        for step, began, ended in read
        if step is not None and began is not None and ended is not None and began <= ended
    ]


def _device(facts: Mapping[str, Any]) -> DeviceMemory:
    return DeviceMemory(
        device=_number(facts.get("device")) or 0,
        peak_allocated_bytes=_number(facts.get("peak_allocated_bytes")),
        peak_reserved_bytes=_number(facts.get("peak_reserved_bytes")),
        driver_free_bytes=_number(facts.get("driver_free_bytes")),
        driver_total_bytes=_number(facts.get("driver_total_bytes")),
        before=_counters(facts.get("before")),
        after=_counters(facts.get("after")),
    )


def _failed(folder: Path, facts: Mapping[str, Any]) -> FailedAllocation:
    # Only the name: a Run that someone sent must not point out of its folder.
    path = folder / Path(str(facts.get("file"))).name
    why = facts.get("why_no_file")
    return FailedAllocation(
        snapshot=path if isinstance(facts.get("file"), str) and path.is_file() else None,
        why_no_snapshot=str(why) if why else None,
        at_ns=_number(facts.get("at_ns")),
        step=_number(facts.get("step")),
        device=_number(facts.get("device")),
        asked_bytes=_number(facts.get("asked_bytes")),
        limit_bytes=_number(facts.get("limit_bytes")),
        driver_free_bytes=_number(facts.get("driver_free_bytes")),
        history=facts.get("history") is True,
        stack=tuple(
            (str(each.get("file")), _number(each.get("line")) or 0, str(each.get("function")))
            for each in _dicts(facts.get("stack"))
        ),
        count=_number(facts.get("count")) or 1,
    )


def _dicts(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _counters(value: object) -> dict[str, int]:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): number for name, each in items if (number := _number(each)) is not None}


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
