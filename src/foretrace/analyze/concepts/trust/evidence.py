"""The evidence that the trust report judges, and the Note that each of its checks returns.

`completeness` and `disturbance` contain the checks; `trust` weighs their notes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import polars as pl

from foretrace.analyze.concepts.device.device_time import COMMUNICATION, ORPHAN, names_like
from foretrace.analyze.concepts.host import cut_steps
from foretrace.analyze.concepts.host.device_feed import fed_pct, gpu_bound
from foretrace.analyze.result import Value
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.trace import Trace

Severity = Literal["no", "care", "info"]

# Judgement: a loss below one percent changes a step time by less than the normal spread of CPU-limited steps.
SMALL_PCT = 1.0
# Above one half, the remaining data says more about the loss than about the program.
MOST_PCT = 50.0


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
    def serial(self) -> pl.DataFrame:
        """GPU work that its stream runs one after another.

        Branches of a CUDA graph, and collectives of queues that ROCm shows as one, do run in parallel.
        """
        work = self.device.filter(~pl.col("name").is_in(names_like(self.device, COMMUNICATION)))
        graphs = self.trace.kernels.filter(pl.col("graph_id").is_not_null()).select(id="span_id")
        return work.join(graphs, on="id", how="anti", maintain_order="left") if graphs.height else work

    @cached_property
    def orphans(self) -> pl.DataFrame:
        """GPU work that neither a launch nor an operator of the recording is linked to."""
        return self.device.filter(ORPHAN)

    @cached_property
    def runtime(self) -> pl.DataFrame:
        """Runtime calls, with whether one launches a kernel or a copy and whether GPU work links to it."""
        return cut_steps.runtime_calls(self.trace)

    @cached_property
    def launches(self) -> pl.DataFrame:
        """Calls that must lead to GPU work: kernel and graph launches, except those captured into a graph."""
        return cut_steps.launch_calls(self.trace)

    @cached_property
    def missing(self) -> pl.DataFrame:
        """Launches without GPU work."""
        return self.launches.filter(~pl.col("has_work"))

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
        return cut_steps.cut_steps(self.trace, self.windows)

    @cached_property
    def fed_pct(self) -> float | None:
        """Share of the time, from the first to the last launched work, in which a GPU had work running or queued."""
        return fed_pct(self.trace)

    @cached_property
    def gpu_bound(self) -> bool:
        """Whether the GPU hardly ever waited for the host, so that the host's delays cost nothing."""
        return gpu_bound(self.trace)

    @cached_property
    def whole(self) -> list[StepWindow]:
        """The complete steps of the kind that averages are of, warm-up included."""
        kinds = {window.kind for window in self.windows if window.averaged}
        return [
            window
            for window in self.windows
            if window.number not in self.cut and (window.kind in kinds or not kinds)
        ]

    @cached_property
    def clocks(self) -> list[tuple[str, list[int]]]:
        """Durations of the complete steps by clock; the clock of the limiting side first."""
        return self.clocks_of(self.whole)

    def clocks_of(self, windows: list[StepWindow]) -> list[tuple[str, list[int]]]:
        """Durations of these steps by clock; the clock of the limiting side first."""
        host = [window.host_ns for window in windows]
        gpu = [window.gpu_ns for window in windows if window.gpu_ns is not None]
        gpu = gpu if len(gpu) == len(host) else []
        # If the CPU is the limit, its work after the first step's last kernel is missing from that step.
        first = int(bool(windows) and windows[0] is self.windows[0])
        both = [("GPU", gpu), ("host", host)] if self.gpu_bound else [("host", host), ("GPU", gpu[first:])]
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
