"""Before arrival: what ranks did from the end of one collective to their arrival at the next, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.diagnose.patterns.collective_arrivals import Late, Matches
from foretrace.intervals import Intervals
from foretrace.trace import Trace

# Each takes what the ones before it left, so they sum to the time.
PARTS = ("computation", "input", "operators", "other")
Window = tuple[int, int]
_LONGEST = 6


@dataclass(frozen=True)
class Activity:
    """When a rank computed on its device, waited for input, called operators or the runtime; the rest is `other`."""

    computation: Intervals
    input: Intervals
    operators: Intervals

    def parts_ns(self, window: Window) -> dict[str, int]:
        """A stretch of time by part."""
        known = {name: intervals.clip(getattr(self, name), *window).total_ns for name in PARTS[:3]}
        return {**known, "other": max(window[1] - window[0], 0) - sum(known.values())}

    def stretches(self, part: str, window: Window) -> Intervals:
        """Where in the window the part is, the longest stretch first."""
        if part == "other":
            found = intervals.gaps(_either(self.computation, self.input, self.operators), *window)
        else:
            found = intervals.clip(getattr(self, part), *window)
        order = np.argsort(found.start - found.end, kind="stable")
        return Intervals(found.start[order], found.end[order])


def activity(trace: Trace) -> Activity:
    """What a rank did when."""
    computation = device_time.covered(computing(trace))
    spans = trace.spans.filter(pl.col("dur_ns") > 0).with_columns(
        end_ns=pl.col("start_ns") + pl.col("dur_ns")
    )
    loading = device_time.names_like(spans, runtime_calls.DATA_LOADING)
    loads = device_time.covered(
        spans.filter(pl.col("name").is_in(loading) & pl.col("kind").is_in(("op", "annotation")))
    )
    calls = device_time.covered(spans.filter(pl.col("kind").is_in(("op", "runtime"))))
    loads = intervals.subtract(loads, computation)
    return Activity(computation, loads, intervals.subtract(calls, _either(computation, loads)))


def computing(trace: Trace) -> pl.DataFrame:
    """Kernels and memsets that are no communication."""
    work = device_time.device_work(trace)
    return work.filter((pl.col("kind") != "copy") & ~pl.col("communication"))


def window(matches: Matches, case: Case, rank: int, late: Late) -> Window | None:
    """From the end of what this rank communicated before, or the step's start, to its arrival; None if it did not arrive."""
    mine = matches.table.filter(pl.col("rank") == rank)
    arrival = mine.filter(pl.col("key") == late.key)
    if arrival.is_empty():
        return None
    until = int(arrival["start_ns"][0])
    before = mine.filter(~pl.col("key").is_in(list(late.waits_ns)) & (pl.col("end_ns") <= until))["end_ns"]
    if len(before):
        return int(before.max()), until  # type: ignore[arg-type]
    return next(step.start_ns for step in case.trace.steps if step.number == late.step), until


def more_ns(
    matches: Matches, cases: Mapping[int, Case], known: Mapping[int, Activity], lates: Sequence[Late]
) -> dict[str, float]:
    """For each part, what the late rank spends more on it in a step than the median of those that wait; at the median."""
    steps: dict[int, dict[str, float]] = {}
    for late in lates:
        spent = {
            rank: known[rank].parts_ns(span)
            for rank, case in cases.items()
            if (span := window(matches, case, rank, late)) is not None
        }
        own = spent.pop(late.rank)
        sums = steps.setdefault(late.step, dict.fromkeys(PARTS, 0.0))
        for part in PARTS:
            sums[part] += own[part] - float(np.median([each[part] for each in spent.values()]))
    return {part: float(np.median([each[part] for each in steps.values()])) for part in PARTS}


def same_kernels_ratio(late: Trace, others: Sequence[Trace]) -> float | None:
    """How much longer the late rank's kernels take than the median rank's, over those that all launch equally often."""
    each = [
        computing(trace)
        .group_by(pl.col("name").cast(pl.String))
        .agg(count=pl.len(), dur_ns=pl.col("dur_ns").sum())
        for trace in (late, *others)
    ]
    own = each[0]
    ratios = []
    for other in each[1:]:
        both = own.join(other, on="name").filter(pl.col("count") == pl.col("count_right"))
        if theirs := int(both["dur_ns_right"].sum()):
            ratios.append(int(both["dur_ns"].sum()) / theirs)
    return float(np.median(ratios)) if ratios else None


def places(case: Case, known: Activity, part: str, windows: Sequence[Window]) -> tuple[Place, ...]:
    """Lines of the user's source in the longest stretches of a part; none where no stack was recorded."""
    if part == "computation":
        work = computing(case.trace).sort("dur_ns", descending=True)
        inside = pl.any_horizontal(pl.col("start_ns").is_between(*span) for span in windows)
        return case.places(work.filter(inside)["op_id"].drop_nulls().head(50).to_list())
    longest = sorted(
        (int(end - start), int(start + end) // 2)
        for span in windows
        for start, end in zip(*known.stretches(part, span), strict=True)
    )
    found = (place for _, middle in longest[: -_LONGEST - 1 : -1] if (place := case.frame_at(middle)))
    return tuple(dict.fromkeys(found))[:3]


def _either(*sets: Intervals) -> Intervals:
    return intervals.union(
        np.concatenate([each.start for each in sets]), np.concatenate([each.end for each in sets])
    )
