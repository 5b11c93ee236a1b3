"""Any two things compared: recordings, benchmarks, or folders of them; and more than two recordings as a trend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from foretrace.compare import benches, memory, steps
from foretrace.compare.benches import Bench, BenchComparison, compare_benches
from foretrace.compare.sides import Side
from foretrace.compare.steps import SCHEMA, StepComparison, compare_sides
from foretrace.compare.subjects import (
    Folder,
    MemorySnapshot,
    OpenCase,
    Recording,
    Subject,
    matched,
    open_subject,
)
from foretrace.compare.traces import Comparison, compare
from foretrace.errors import UsageError
from foretrace.measured import Verdict

Pair = Comparison | BenchComparison


@dataclass(frozen=True)
class FolderComparison:
    """Two folders: what has the same name in both."""

    before: str
    after: str
    pairs: tuple[tuple[str, Pair], ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """Slower where any is and none is faster, and so on; inconclusive where they go both ways."""
        found = {verdict_of(pair) for _, pair in self.pairs}
        if {"faster", "slower"} <= found:
            return "inconclusive"
        decided: tuple[Verdict, ...] = ("slower", "faster", "inconclusive", "same")
        return next(verdict for verdict in decided if verdict in found)

    @property
    def says(self) -> str:
        """The result in one sentence."""
        names: tuple[Verdict, ...] = ("faster", "slower", "same", "inconclusive")
        counts = [(name, sum(verdict_of(pair) == name for _, pair in self.pairs)) for name in names]
        return f"{len(self.pairs)} pairs of the same name: " + ", ".join(
            f"{count} {name}" for name, count in counts if count
        )


Compared = Comparison | BenchComparison | FolderComparison


def verdict_of(pair: Pair) -> Verdict:
    """The verdict on one pair."""
    return pair.steps.verdict if isinstance(pair, Comparison) else pair.verdict


def compare_subjects(before: Subject, after: Subject, open_case: OpenCase) -> Compared:
    """Two things of the same sort, compared."""
    if isinstance(before, Recording) and isinstance(after, Recording):
        return compare(before.case, after.case, names=(before.name, after.name))
    if isinstance(before, Bench) and isinstance(after, Bench):
        return compare_benches(before, after)
    if isinstance(before, Folder) and isinstance(after, Folder):
        return _folders(before, after, open_case)
    sorts = [_sort(subject) for subject in (before, after)]
    raise UsageError(
        f"{before.name} is {sorts[0]} and {after.name} is {sorts[1]}: compare two of the same sort"
    )


def _sort(subject: Subject) -> str:
    if isinstance(subject, MemorySnapshot):
        return "a memory snapshot"
    if isinstance(subject, Folder):
        return f"a folder with {len(subject.files)} recordings or benchmarks"
    return "a benchmark" if isinstance(subject, Bench) else "a recording"


def _folders(before: Folder, after: Folder, open_case: OpenCase) -> FolderComparison:
    both, only_before, only_after = matched(before, after)
    pairs = []
    for name in both:
        sides = [open_subject(folder.files[name], name, open_case) for folder in (before, after)]
        found = compare_subjects(sides[0], sides[1], open_case)
        if not isinstance(found, FolderComparison):
            pairs.append((name, found))
    return FolderComparison(before.name, after.name, tuple(pairs), tuple(only_before), tuple(only_after))


@dataclass(frozen=True)
class TrendRow:
    """One recording of several in a row, against the first and against the one before it."""

    side: Side
    against_first: StepComparison | None  # None for the first itself
    against_previous: StepComparison | None


def trend(sides: Sequence[Side]) -> tuple[TrendRow, ...]:
    """The recordings in order."""
    rows = [TrendRow(sides[0], None, None)]
    for previous, side in pairwise(sides):
        rows.append(TrendRow(side, compare_sides(sides[0], side), compare_sides(previous, side)))
    return tuple(rows)


def to_dict(found: Compared) -> dict[str, Any]:
    """As `--format json` prints it."""
    if isinstance(found, Comparison):
        told = None if found.memory is None else memory.to_dict(found.memory)
        return {**steps.to_dict(found.steps), "notes": list(found.notes), "memory": told}
    if isinstance(found, BenchComparison):
        return benches.to_dict(found)
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "says": found.says,
        "pairs": [{"name": name, **to_dict(pair)} for name, pair in found.pairs],
        "only_before": list(found.only_before),
        "only_after": list(found.only_after),
    }


def trend_to_dict(rows: Sequence[TrendRow]) -> dict[str, Any]:
    """First against last in the fields of every comparison, and all in a row in `trend`."""
    last = rows[-1].against_first
    assert last is not None  # there are two at least
    return {**steps.to_dict(last), "trend": [_row_to_dict(row) for row in rows]}


def _row_to_dict(row: TrendRow) -> dict[str, Any]:
    told: dict[str, Any] = {
        "name": row.side.name,
        "step_ms": (row.side.step_ns or row.side.recorded_ns) / 1e6,
    }
    for name, found in (("against_first", row.against_first), ("against_previous", row.against_previous)):
        told[name] = None if found is None else _short(found)
    return told


def _short(found: StepComparison) -> dict[str, Any]:
    full = steps.to_dict(found)
    return {name: full[name] for name in ("verdict", "before_ms", "after_ms", "speedup", "causes", "why")}
