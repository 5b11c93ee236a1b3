"""Profiling cycles: which recordings of a job's ranks cover the same time, and which cycle to compare.

A schedule of torch.profiler that repeats writes a recording per rank and cycle. Cycles of one run have different step numbers;
where these are not recorded, or several runs count from 0, the time tells them apart.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from statistics import median
from typing import Any

from foretrace.errors import UsageError
from foretrace.ranks.summary import NOBODY, TRUNCATED, Summary
from foretrace.ranks.unused import DUPLICATE, OTHER_CYCLE, Unused

_OF_PROFILER = "profiler"  # marks that count on from cycle to cycle; others count from 0 in each recording
_LISTED = 6


@dataclass(frozen=True)
class Recording:
    """A summary and the file that it came from."""

    path: str
    summary: Summary

    @property
    def rank(self) -> int:
        """The rank's number."""
        return self.summary.rank

    @property
    def start_ns(self) -> int:
        """When its steps begin, on its host's clock."""
        return self.summary.epoch_ns + self.summary.begin_ns

    @property
    def end_ns(self) -> int:
        """When its steps end."""
        ends: list[int] = self.summary.steps["end_ns"].to_list()
        return self.summary.epoch_ns + max(ends, default=self.summary.begin_ns)

    @property
    def steps(self) -> frozenset[int]:
        """Step numbers that count on from one cycle to the next; empty where there are none."""
        numbers = frozenset(self.summary.steps["step"].to_list())
        return numbers if self.summary.marks == _OF_PROFILER and NOBODY not in numbers else frozenset()

    @property
    def whole(self) -> bool:
        """Whether the recording is not truncated."""
        return TRUNCATED not in dict(self.summary.repairs)


@dataclass(frozen=True)
class Cycle:
    """Which cycle is compared, of how many; `steps` are its first and last, None where they are not numbered."""

    number: int  # from 1, the oldest first
    count: int
    steps: tuple[int, int] | None
    ranks: int

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)

    @property
    def says(self) -> str:
        """Cycle 2 of 3 (steps 12 to 14)."""
        return f"cycle {self.number} of {self.count}{_steps_in_words(self.steps)}"


@dataclass(frozen=True)
class Chosen:
    """The recordings to compare, one of each rank; the others; and the cycle, None where there is only one."""

    recordings: list[Recording]
    unused: tuple[Unused, ...]
    cycle: Cycle | None


def choose(recordings: Iterable[Recording], *, number: int | None = None, own: str | None = None) -> Chosen:
    """The cycle of this number, or of the recording `own`; without either the latest of those that most ranks recorded whole."""
    distinct, duplicates = _without_duplicates(recordings, own)
    cycles = grouped(distinct)
    about = [
        Cycle(place, len(cycles), _first_and_last(cycle), len(cycle)) for place, cycle in enumerate(cycles, 1)
    ]
    if number is not None and not 1 <= number <= max(len(cycles), 1):
        there = "; ".join(f"{each.says}: {each.ranks} ranks" for each in about[-_LISTED:])
        raise UsageError(f"no cycle {number}; recorded: {there}" if about else f"no cycle {number}")
    if not cycles:
        return Chosen([], duplicates, None)
    place = _latest_complete(cycles) if number is None else number - 1
    for each, cycle in enumerate(cycles):
        if any(recording.path == own for recording in cycle):
            place = each
    chosen = about[place]
    others = tuple(
        Unused(
            recording.path,
            OTHER_CYCLE,
            f"{recording.path}: rank {recording.rank} of {cycle.says}; {chosen.says} is compared",
            recording.rank,
        )
        for cycle, of_cycle in zip(about, cycles, strict=True)
        if cycle is not chosen
        for recording in of_cycle
    )
    return Chosen(cycles[place], (*duplicates, *others), chosen if len(cycles) > 1 else None)


def grouped(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """The recordings by cycle, the oldest first; none has two of one rank."""
    worlds = Counter(recording.summary.world for recording in recordings if recording.summary.world)
    usual = worlds.most_common(1)[0][0] if worlds else None
    by_world: dict[int | None, list[Recording]] = defaultdict(list)
    for recording in recordings:
        by_world[recording.summary.world or usual].append(recording)
    cycles = [cycle for of_world in by_world.values() for cycle in _of_one_job(of_world)]
    return sorted(cycles, key=_middle_ns)


def _of_one_job(recordings: Sequence[Recording]) -> list[list[Recording]]:
    numbered = [recording for recording in recordings if recording.steps]
    cycles = [cycle for same in _by_steps(numbered) for cycle in _by_time(same)]
    without = [recording for recording in recordings if not recording.steps]
    if not cycles:
        return _by_time(without)
    for recording in without:
        free = [cycle for cycle in cycles if all(other.rank != recording.rank for other in cycle)]
        near = min(free, key=lambda cycle: abs(_middle_ns(cycle) - recording.start_ns), default=None)
        if near is None:
            cycles.append([recording])
        else:
            near.append(recording)
    return cycles


def _by_steps(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Recordings that have steps in common, directly or through others."""
    together: list[tuple[set[int], list[Recording]]] = []
    for recording in recordings:
        steps, members = set(recording.steps), [recording]
        apart = []
        for other in together:
            if steps & other[0]:
                steps |= other[0]
                members = other[1] + members
            else:
                apart.append(other)
        together = [*apart, (steps, members)]
    return [members for _, members in together]


def _by_time(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Recordings that began at about the same time, if any two of them are known to be of different times."""
    distance_ns = _least_distance_ns(recordings)
    if distance_ns is None:
        return [list(recordings)] if recordings else []
    cycles: list[list[Recording]] = []
    for recording in sorted(recordings, key=lambda recording: recording.start_ns):
        if not cycles or recording.start_ns - cycles[-1][0].start_ns >= distance_ns / 2:
            cycles.append([])
        cycles[-1].append(recording)
    return cycles


def _least_distance_ns(recordings: Sequence[Recording]) -> int | None:
    """Between the starts of two recordings of one rank, or of one host's clock with a pause between them."""
    by_clock: dict[tuple[str, object], list[Recording]] = defaultdict(list)
    for recording in recordings:
        by_clock["rank", recording.rank].append(recording)
        if recording.summary.host:
            by_clock["host", recording.summary.host].append(recording)
    distances = []
    for (kind, _), of_clock in by_clock.items():
        ordered = sorted(of_clock, key=lambda recording: recording.start_ns)
        ends = accumulate((recording.end_ns for recording in ordered), max)
        for end_ns, (first, second) in zip(ends, pairwise(ordered), strict=False):
            longest_ns = max(first.end_ns - first.start_ns, second.end_ns - second.start_ns)
            if kind == "rank" or second.start_ns - end_ns > longest_ns:
                distances.append(second.start_ns - first.start_ns)
    return min(distances, default=None)


def _without_duplicates(
    recordings: Iterable[Recording], own: str | None
) -> tuple[list[Recording], tuple[Unused, ...]]:
    """Of recordings of one rank that overlap in time `own`, else the best one."""
    kept: dict[int, list[Recording]] = defaultdict(list)
    duplicates = []
    for recording in sorted(recordings, key=lambda recording: (recording.path != own, *_quality(recording))):
        same = next((other for other in kept[recording.rank] if _overlap(recording, other)), None)
        if same is None:
            kept[recording.rank].append(recording)
            continue
        says = f"{recording.path}: rank {recording.rank} again; {same.path} is used"
        duplicates.append(Unused(recording.path, DUPLICATE, says, recording.rank))
    return [recording for of_rank in kept.values() for recording in of_rank], tuple(duplicates)


def _quality(recording: Recording) -> tuple[bool, int, int, str]:
    """Sorts the best recording first."""
    summary = recording.summary
    return not recording.whole, -summary.steps.height, -summary.rows.height, recording.path


def _overlap(one: Recording, other: Recording) -> bool:
    """Whether two recordings of one rank, by their clock, cover any moment both."""
    return one.start_ns == other.start_ns or (one.start_ns < other.end_ns and other.start_ns < one.end_ns)


def _latest_complete(cycles: Sequence[Sequence[Recording]]) -> int:
    whole = [sum(recording.whole for recording in cycle) for cycle in cycles]
    return max(range(len(cycles)), key=lambda place: (whole[place], len(cycles[place]), place))


def _middle_ns(cycle: Sequence[Recording]) -> float:
    return median(recording.start_ns for recording in cycle)


def _first_and_last(cycle: Sequence[Recording]) -> tuple[int, int] | None:
    steps = [step for recording in cycle for step in recording.steps]
    return (min(steps), max(steps)) if steps else None


def _steps_in_words(steps: tuple[int, int] | None) -> str:
    if steps is None:
        return ""
    first, last = steps
    return f" (step {first})" if first == last else f" (steps {first} to {last})"
