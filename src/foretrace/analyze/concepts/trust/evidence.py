"""The evidence that the trust report judges, and the Note that each of its checks returns.

`completeness` and `disturbance` contain the checks; `trust` weighs their notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device.device_time import ORPHAN
from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.analyze.result import Value
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.runtime_names import Effect, calls_that
from foretrace.schema import DEVICE_KINDS
from foretrace.trace import Trace

Severity = Literal["no", "care", "info"]

# Judgement: a loss below one percent changes a step time by less than the normal spread of CPU-limited steps.
SMALL_PCT = 1.0
# Above one half, the remaining data says more about the loss than about the program.
MOST_PCT = 50.0
# Judgement: a first or last step with fewer launches than this share of the others' median was not recorded completely;
# a step of gradient accumulation lacks only the optimizer's launches.
_CUT_PCT = 50.0
# Judgement: a GPU that had work queued for this share of the time hides the host's delays.
_FED_PCT = 90.0


@dataclass(frozen=True)
class Note:
    """One fact about a recording: a stable code, its weight, a sentence, and its numbers."""

    code: str
    severity: Severity
    says: str
    values: Mapping[str, Value] = field(default_factory=dict)


@dataclass
class Evidence:
    """A recording's launches, links, steps and clocks, each computed when first needed."""

    trace: Trace

    @cached_property
    def device(self) -> pl.DataFrame:
        """GPU work with a sound duration, with `launch_ns`: when its launch call began."""
        work = self.trace.device_spans.select(
            "id", "track_id", "kind", "name", "start_ns", "dur_ns", "end_ns", "launch_id", "op_id", "step"
        )
        # An id is a row number.
        return work.with_columns(launch_ns=self.trace.spans["start_ns"].gather(work["launch_id"]))

    @cached_property
    def linked(self) -> pl.DataFrame:
        """GPU work whose launch was recorded."""
        return self.device.filter(pl.col("launch_id").is_not_null())

    @cached_property
    def orphans(self) -> pl.DataFrame:
        """GPU work that neither a launch nor an operator of the recording is linked to."""
        return self.device.filter(ORPHAN)

    @cached_property
    def runtime(self) -> pl.DataFrame:
        """Runtime calls, with whether one launches a kernel or a copy and whether GPU work links to it."""
        spans = self.trace.spans
        calls = spans.select("id", "name", "start_ns", "step")[np.flatnonzero(of_kind(self.trace, "runtime"))]
        # Every GPU row counts here, even one with an impossible duration: its launch was not lost.
        used = spans["launch_id"].gather(np.flatnonzero(of_kind(self.trace, DEVICE_KINDS))).drop_nulls()
        has_work = np.zeros(spans.height, bool)
        has_work[used.to_numpy()] = True
        return calls.with_columns(
            kernel=pl.Series(calls_that(calls["name"], Effect.KERNEL, Effect.GRAPH)),
            copy=pl.Series(calls_that(calls["name"], Effect.COPY, Effect.FILL)),
            has_work=pl.Series(has_work[calls["id"].to_numpy()]),
            captured=self._captured(calls),
        )

    @cached_property
    def launches(self) -> pl.DataFrame:
        """Calls that must lead to GPU work: kernel and graph launches, except those captured into a graph."""
        return self.runtime.filter(pl.col("kernel") & ~pl.col("captured"))

    @cached_property
    def missing(self) -> pl.DataFrame:
        """Launches without GPU work."""
        return self.launches.filter(~pl.col("has_work"))

    @staticmethod
    def _captured(calls: pl.DataFrame) -> pl.Series:
        """For each call, whether a stream capture was open: it records launches instead of executing them."""
        start = calls["start_ns"].to_numpy()
        begins, ends = (
            start[calls_that(calls["name"], wanted)] for wanted in (Effect.BEGIN_CAPTURE, Effect.END_CAPTURE)
        )
        following = np.searchsorted(ends, begins)
        known = following < len(ends)
        captures = intervals.union(begins[known], ends[following[known]])
        return pl.Series(intervals.covered_ns(captures, start, start + 1) > 0, dtype=pl.Boolean)

    @cached_property
    def gpu_ns(self) -> int:
        """Sum of all GPU work."""
        return int(self.device["dur_ns"].sum() or 0)

    @cached_property
    def resolution_ns(self) -> int:
        """Resolution of the times: 1000 if all of them are whole microseconds."""
        whole = ((pl.col("start_ns") % 1000 == 0) & (pl.col("dur_ns").fill_null(0) % 1000 == 0)).all()
        spans = self.trace.spans
        # A few tell of most recordings that they are not.
        return 1000 if all(bool(some.select(whole).item()) for some in (spans.head(1000), spans)) else 1

    @cached_property
    def window_ns(self) -> int:
        """Length of the recording, at least 1."""
        first, last = self.trace.spans.select(
            pl.col("start_ns").filter(pl.col("dur_ns").is_not_null()).min(),
            (pl.col("start_ns") + pl.col("dur_ns")).max().alias("end"),
        ).row(0)
        return max(int(last) - int(first), 1) if first is not None else 1

    @cached_property
    def windows(self) -> tuple[StepWindow, ...]:
        """The recorded steps."""
        return step_windows(self.trace)

    @cached_property
    def cut(self) -> dict[int, str]:
        """Number of each step that was not recorded completely -> why."""
        noun, calls = self._calls_per_step()
        lost = dict(self.missing.group_by("step").len().iter_rows()) if self.trace.has_device else {}
        latest = self._latest_end()
        late = {step.number for step in self.trace.steps if latest is not None and step.end_ns > latest}
        reasons: dict[int, str] = {}
        for place, window in enumerate(self.windows):
            number, missing = window.number, int(lost.get(window.number, 0))
            others = self._usual(calls, place) if place in (0, len(calls) - 1) else 0.0
            if number in late:
                reasons[number] = "its annotation ends after the recording"
            elif missing and missing * 100 >= calls[place] * SMALL_PCT:
                reasons[number] = f"{missing:,} of {calls[place]:,} launches without GPU work"
            elif calls[place] < others * _CUT_PCT / 100:
                reasons[number] = f"{calls[place]:,} {noun}, the others {others:,.0f}"
            elif not window.whole:
                reasons[number] = f"GPU work of {window.launched_count:,} launches, less than the step before"
        return reasons

    def _usual(self, calls: list[int], place: int) -> float:
        """The median of the other steps of the same kind."""
        kind = self.windows[place].kind
        alike = [
            count for other, count in enumerate(calls) if other != place and self.windows[other].kind == kind
        ]
        return float(np.median(alike or [0]))

    def _calls_per_step(self) -> tuple[str, list[int]]:
        """What is counted (launches, or operators if there are none), and the count for each step."""
        noun, calls = "launches", self.launches
        if not calls.height:
            noun, calls = "operators", self.trace.spans.filter(pl.col("kind") == "op")
        count = dict(calls.group_by("step").len().iter_rows())
        return noun, [int(count.get(window.number, 0)) for window in self.windows]

    def _latest_end(self) -> int | None:
        """When a step's annotation may end: beyond, the profiler had stopped, and its duration is not a step time."""
        end, windows = self.trace.meta.get("window_end_ns"), self.trace.meta.get("windows") or ()
        if end is None:
            return None
        first = min((int(window[1]) for window in windows), default=0)
        return int(end) + max(int(end) - first, 0) // 100

    @cached_property
    def fed_pct(self) -> float | None:
        """Share of the time, from the first to the last launched work, in which a GPU had work running or queued."""
        if not self.linked.height:
            return None
        reach = pl.col("end_ns").cum_max().shift(1)
        waits = self.linked.select(  # in order of start, as all spans are
            wait_ns=pl.when(pl.col("launch_ns") > reach)
            .then((pl.col("start_ns") - reach).clip(0))
            .otherwise(0)
        )
        first, last = self.linked.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
        share: float = 100 * (1 - int(waits["wait_ns"].sum() or 0) / max(last - first, 1))
        return share

    @cached_property
    def gpu_bound(self) -> bool:
        """Whether the GPU hardly ever waited for the host, so that the host's delays cost nothing."""
        return self.fed_pct is not None and self.fed_pct >= _FED_PCT

    @cached_property
    def clocks(self) -> list[tuple[str, list[int]]]:
        """Durations of the complete steps by clock; the clock of the limiting side first."""
        kinds = {window.kind for window in self.windows if window.averaged}
        whole = [
            window
            for window in self.windows
            if window.number not in self.cut and (window.kind in kinds or not kinds)
        ]
        host = [window.host_ns for window in whole]
        gpu = [window.gpu_ns for window in whole if window.gpu_ns is not None]
        gpu = gpu if len(gpu) == len(host) else []
        # If the CPU is the limit, its work after the first step's last kernel is missing from that step.
        both = [("GPU", gpu), ("host", host)] if self.gpu_bound else [("host", host), ("GPU", gpu[1:])]
        return [(clock, times) for clock, times in both if times]


def weigh(share_pct: float) -> Severity:
    """How much a loss of this share weighs."""
    return "no" if share_pct > MOST_PCT else "care" if share_pct >= SMALL_PCT else "info"


def amount(spans: pl.DataFrame, whole_ns: int) -> dict[str, Value]:
    """How many spans, how long in all, and what share of a time that is."""
    total = int(spans["dur_ns"].sum() or 0)
    return {"affected_count": spans.height, "affected_ns": total, "share_pct": 100 * total / max(whole_ns, 1)}


def some(count: int, noun: str) -> str:
    """3 launches."""
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if re.search(r"(ch|sh|s)$", noun) else "s")
