"""The comparison of the steps of two sides: the verdict, and the causes of the difference.

Only whole steps count, and times are divided by their number, so that recordings of different length compare. Where the work of
a step differs, times are for as many tokens or items as a step of the first takes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from foretrace.compare.environment import differences
from foretrace.compare.parts import RECORDING
from foretrace.compare.sides import Side
from foretrace.compare.verdicts import Judged, judge, repeats
from foretrace.compare.waterfall import Cause, waterfall
from foretrace.compare.work import Basis, basis
from foretrace.errors import MissingDataError
from foretrace.measured import Interval, Verdict
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.units import format_value

SCHEMA = "foretrace.compare/1"
Known = Literal["unprofiled", "recorded"]
_LEAST = Share(0.001, "the larger step, below which no cause is named", JUDGEMENT)
_FEWEST_BLOCKS = Count(3, "blocks without a profiler on either side, for them to be compared", JUDGEMENT)


@dataclass(frozen=True)
class StepComparison:
    """Two sides, the verdict on their steps, and the causes of the difference, which sum to it."""

    before: Side
    after: Side
    before_ns: float
    after_ns: float  # for as much work as a step of the first
    known_by: Known  # how both times are known
    basis: Basis
    judged: Judged
    causes: tuple[Cause, ...]
    notes: tuple[str, ...] = ()
    why_not: str = ""  # why the two cannot be compared at all

    @property
    def verdict(self) -> Verdict:
        """Whether the second is faster; inconclusive where the two cannot be compared."""
        return self.judged.verdict

    @property
    def speedup(self) -> Interval:
        """The time before, divided by that after."""
        return self.judged.speedup

    @property
    def per(self) -> str:
        """What the times are for, behind a time."""
        if not (self.before.marked and self.after.marked):
            return "for the recording"
        if self.basis.unit != "step":
            return f"for {self.basis.says}"
        return "a step" if self.known_by == "unprofiled" else "a recorded step"

    @property
    def times(self) -> str:
        """Before and after."""
        first, second = (format_value("_ns", ns) for ns in (self.before_ns, self.after_ns))
        return f"{first} → {second} {self.per}"

    @property
    def says(self) -> str:
        """The result in one sentence."""
        times = self.times
        if self.verdict == "same":
            says = f"{times}: no difference"
        elif self.verdict == "inconclusive":
            says = f"{times}: inconclusive, because {self.judged.why}"
        else:
            faster = self.verdict == "faster"
            ratio = (
                f"{self.speedup.point:.2f} times as fast"
                if faster
                else f"{1 / self.speedup.point:.2f} times as long"
            )
            says = f"{times}: {self.verdict}, {ratio}"
        return says + self._most()

    @property
    def top(self) -> Cause | None:
        """The cause that explains most; how much recording adds explains nothing."""
        return next((cause for cause in self.causes if cause.kind != RECORDING), None)

    def _most(self) -> str:
        top = self.top
        if top is None or abs(top.delta_ns) < _LEAST * max(self.before_ns, self.after_ns):
            return ""
        more = "more" if top.delta_ns > 0 else "less"
        return f"; the most by {top.what}: {format_value('_ns', abs(top.delta_ns))} {more}"


def compare_sides(before: Side, after: Side) -> StepComparison:
    """The verdict on two sides, and why."""
    if not before.times_ns or not after.times_ns:
        empty = before if not before.times_ns else after
        raise MissingDataError(f"{empty.name}: nothing recorded that takes time")
    found = basis(before, after)
    known_by: Known = "recorded"
    first, second = before.times_ns, after.times_ns
    steps_ns = (before.recorded_ns, after.recorded_ns)
    enough = min(len(before.blocks_ns), len(after.blocks_ns)) >= _FEWEST_BLOCKS
    if enough and before.unprofiled_ns is not None and after.unprofiled_ns is not None:
        known_by, first, second = "unprofiled", before.blocks_ns, after.blocks_ns
        steps_ns = (before.unprofiled_ns, after.unprofiled_ns)
    why_not = found.why_not or _why_not(before, after, known_by)
    after_ns = steps_ns[1] * found.scale
    judged = judge(
        first,
        [time * found.scale for time in second],
        repeats=repeats((before, after), steps_ns),
        point=steps_ns[0] / after_ns,
        noun="step" if before.marked and after.marked else "recording",
    )
    if why_not and judged.verdict != "same":
        judged = replace(judged, verdict="inconclusive", why=why_not)
    causes = waterfall(before, after, steps_ns, found.scale)
    return StepComparison(
        before,
        after,
        steps_ns[0],
        after_ns,
        known_by,
        found,
        judged,
        causes,
        _notes(found, before, after, known_by),
        why_not,
    )


def _why_not(before: Side, after: Side, known_by: Known) -> str:
    """Why step times cannot be compared although the work may be the same."""
    if before.marked != after.marked:
        return "only one of the two has steps"
    if before.clock != after.clock:
        return "only one of the two holds GPU work"
    if known_by == "recorded" and before.has_stacks != after.has_stacks:
        return "one was recorded with Python calls, which slows the host down, and the other without"
    return ""


def _notes(found: Basis, before: Side, after: Side, known_by: Known) -> tuple[str, ...]:
    return (*_of_times(found, before, after, known_by), *_of_environments(before, after))


def _of_environments(before: Side, after: Side) -> tuple[str, ...]:
    """That the program ran on or with something else; other devices are told with the work."""
    others = [each.says for each in differences(before, after) if each.what != "device"]
    return (f"environments differ: {', '.join(others)}",) if others else ()


def _of_times(found: Basis, before: Side, after: Side, known_by: Known) -> tuple[str, ...]:
    if known_by == "unprofiled":
        return (
            *found.notes,
            "step times were measured without the profiler; the parts are those of recorded steps",
        )
    alone = [side.name for side in (before, after) if side.unprofiled_ns is not None]
    if len(alone) == 1:
        return (
            *found.notes,
            f"only {alone[0]} was also timed without the profiler: recorded steps are compared",
        )
    return found.notes


def to_dict(found: StepComparison) -> dict[str, Any]:
    """The comparison as `--format json` prints it; documented in docs/guide/compare.md."""
    return {
        "schema": SCHEMA,
        "verdict": found.verdict,
        "says": found.says,
        "before_ms": found.before_ns / 1e6,
        "after_ms": found.after_ns / 1e6,
        "speedup": {"point": found.speedup.point, "low": found.speedup.low, "high": found.speedup.high},
        "causes": [
            {
                "what": cause.what,
                "kind": cause.kind,
                "delta_ms": cause.delta_ns / 1e6,
                "before_ms": cause.before_ns / 1e6,
                "after_ms": cause.after_ns / 1e6,
            }
            for cause in found.causes
        ],
        "why": found.judged.why or None,
        "per": {"unit": found.basis.unit, "count": found.basis.count},
        "known_by": found.known_by,
        "chance": found.judged.chance,
        "effect": found.judged.effect,
        "repeats_pct": 100 * found.judged.repeats,
        "before": side_to_dict(found.before),
        "after": side_to_dict(found.after),
        "notes": list(found.notes),
    }


def side_to_dict(side: Side) -> dict[str, Any]:
    """One side as JSON tells it."""
    counts: Mapping[str, float] = side.counts
    return {
        "name": side.name,
        "device": side.device or None,
        "recorded_ms": side.recorded_ns / 1e6,
        "unprofiled_ms": None if side.unprofiled_ns is None else side.unprofiled_ns / 1e6,
        "steps_count": side.steps_count,
        "samples_ms": [time / 1e6 for time in side.blocks_ns or side.times_ns],
        "kernels": counts.get("kernels"),
        "launches": counts.get("launches"),
        "peak_bytes": counts.get("peak_bytes"),
        "taken_in": dict(side.taken_in),
    }
