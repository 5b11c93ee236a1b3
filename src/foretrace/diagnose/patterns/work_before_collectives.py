"""Work before collectives: what ranks did from the end of one collective to their arrival at the next, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.diagnose.patterns.collective_arrivals import Late, Matches
from foretrace.predict.numbers import RecordingTime, joined
from foretrace.sourced import JUDGEMENT, Count
from foretrace.trace import Trace

# Each takes what the ones before it left, so they sum to the time.
PARTS = ("computation", "input", "operators", "other")
Stretch = tuple[int, int]  # of a recording's time
_LONGEST = Count(6, "stretches that are looked at for source lines", JUDGEMENT)
_LONGEST_KERNELS = Count(50, "kernels that are looked at for source lines", JUDGEMENT)


@dataclass(frozen=True)
class Activity:
    """When a rank computed on its device, waited for input, called operators or the runtime; the rest is `other`."""

    computation: RecordingTime
    input: RecordingTime
    operators: RecordingTime

    def parts_ns(self, stretch: Stretch) -> dict[str, int]:
        """A stretch of time by part."""
        known = {
            name: intervals.clip(of_part, *stretch).total_ns
            for name, of_part in zip(PARTS, (self.computation, self.input, self.operators), strict=False)
        }
        return {**known, "other": max(stretch[1] - stretch[0], 0) - sum(known.values())}

    def stretches(self, part: str, within: Stretch) -> Iterator[Stretch]:
        """Where a part is within some time, the longest stretch first."""
        if part == "other":
            times = intervals.gaps(joined(self.computation, self.input, self.operators), *within)
        else:
            times = intervals.clip(getattr(self, part), *within)
        for place in np.argsort(times.start - times.end, kind="stable"):
            yield int(times.start[place]), int(times.end[place])

    def longest(self, part: str, within: Sequence[Stretch], total_ns: float) -> RecordingTime:
        """The longest stretches of a part, until they are this long together; as long in each of the times."""
        starts, ends = [], []
        for some_time in within:
            left = round(total_ns / len(within))
            for start, end in self.stretches(part, some_time):
                if left <= 0:
                    break
                starts.append(start)
                ends.append(min(end, start + left))
                left -= ends[-1] - starts[-1]
        return RecordingTime(intervals.union(np.array(starts, np.int64), np.array(ends, np.int64)))


def activity(trace: Trace) -> Activity:
    """What a rank did when."""
    computation = RecordingTime(device_time.covered(computing(trace)))
    spans = trace.spans.filter(pl.col("dur_ns") > 0)
    spans = spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))
    loading = device_time.names_like(spans, runtime_calls.DATA_LOADING)
    loads = spans.filter(pl.col("name").is_in(loading) & pl.col("kind").is_in(("op", "annotation")))
    waiting = intervals.subtract(RecordingTime(device_time.covered(loads)), computation)
    calls = RecordingTime(device_time.covered(spans.filter(pl.col("kind").is_in(("op", "runtime")))))
    return Activity(computation, waiting, intervals.subtract(calls, joined(computation, waiting)))


def computing(trace: Trace) -> pl.DataFrame:
    """Kernels and memsets that are no communication."""
    work = device_time.device_work(trace)
    return work.filter((pl.col("kind") != "copy") & ~pl.col("communication"))


def before_arrival(matches: Matches, case: Case, rank: int, late: Late) -> Stretch | None:
    """From the end of what this rank communicated before, or the step's start, to its arrival; None if it did not arrive."""
    own = matches.table.filter(pl.col("rank") == rank)
    arrival = own.filter(pl.col("key") == late.key)
    if arrival.is_empty():
        return None
    until = int(arrival["start_ns"][0])
    earlier = own.filter(~pl.col("key").is_in(list(late.waits_ns)) & (pl.col("end_ns") <= until))["end_ns"]
    if len(earlier):
        return int(earlier.max()), until  # type: ignore[arg-type]
    return next(step.start_ns for step in case.trace.steps if step.number == late.step), until


def more_ns(
    matches: Matches, cases: Mapping[int, Case], activities: Mapping[int, Activity], lates: Sequence[Late]
) -> dict[str, float]:
    """For each part, what the late rank spends more on it in a step than the median of those that wait; at the median."""
    steps: dict[int, dict[str, float]] = {}
    for late in lates:
        spent = {
            rank: activities[rank].parts_ns(stretch)
            for rank, case in cases.items()
            if (stretch := before_arrival(matches, case, rank, late)) is not None
        }
        own = spent.pop(late.rank)
        sums = steps.setdefault(late.step, dict.fromkeys(PARTS, 0.0))
        for part in PARTS:
            sums[part] += own[part] - float(np.median([parts[part] for parts in spent.values()]))
    return {part: float(np.median([more[part] for more in steps.values()])) for part in PARTS}


def same_kernels_ratio(late: Trace, others: Sequence[Trace]) -> float | None:
    """How much longer the late rank's kernels take than the median rank's, over those that all launch equally often."""
    own, *theirs = (
        computing(trace)
        .group_by(pl.col("name").cast(pl.String))
        .agg(count=pl.len(), dur_ns=pl.col("dur_ns").sum())
        for trace in (late, *others)
    )
    ratios = []
    for other in theirs:
        both = own.join(other, on="name").filter(pl.col("count") == pl.col("count_right"))
        if other_ns := int(both["dur_ns_right"].sum()):
            ratios.append(int(both["dur_ns"].sum()) / other_ns)
    return float(np.median(ratios)) if ratios else None


def places(case: Case, activity: Activity, part: str, stretches: Sequence[Stretch]) -> tuple[Place, ...]:
    """Lines of the user's source in the longest stretches of a part; none where no stack was recorded."""
    if part == "computation":
        work = computing(case.trace).sort("dur_ns", descending=True)
        within = pl.any_horizontal(pl.col("start_ns").is_between(*stretch) for stretch in stretches)
        return case.places(work.filter(within)["op_id"].drop_nulls().head(_LONGEST_KERNELS).to_list())
    by_length = sorted(
        (end - start, (start + end) // 2)
        for stretch in stretches
        for start, end in activity.stretches(part, stretch)
    )
    frames = (case.frame_at(middle) for _, middle in by_length[: -_LONGEST - 1 : -1])
    return tuple(dict.fromkeys(frame for frame in frames if frame))[:3]
