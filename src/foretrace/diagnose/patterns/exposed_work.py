"""Exposed work: copies and collectives while nothing is computed, on the GPU or, of collectives, on threads of the host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import collective_calls, device_time
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.intervals import Intervals
from foretrace.predict.builder import QUIET_NS
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime, RecordingTime
from foretrace.predict.program import WAIT


@dataclass(frozen=True)
class Exposed:
    """Device work, what of it computation hides, and how long it is exposed."""

    work: DeviceWork
    hidden: dict[int, float]  # shares of the tasks
    exposed_ns: int  # in all recorded steps
    computing_ns: int = 0  # computation beside which no such work runs yet
    standing: ProgramTime | None = (
        None  # where it runs on the host's threads: when the host stands still for it
    )

    @property
    def per_step_ns(self) -> int:
        """How long it is exposed in a step."""
        return self.exposed_ns // self.work.case.step_count

    @property
    def step_share(self) -> float:
        """The part of the step in which it is exposed."""
        return self.exposed_ns / self.work.case.step_count / self.work.case.step_ns

    @property
    def most_hidden(self) -> float:
        """The share of what is exposed that computation could hide: no more than there is of it."""
        return min(1.0, self.computing_ns / max(self.exposed_ns, 1))

    @property
    def order_is_known(self) -> bool:
        """Whether the replay knows what waits for this work: as `order_is_known`, or the host stands still for it.

        Also where other work began just when most of what is exposed had ended.
        """
        if self.standing is not None or order_is_known(self.work):
            return True
        rows = self.work.rows
        others = self.work.case.tasks.filter(~pl.col("task").is_in(rows["task"].implode()))["task"]
        awaited = self.work.case.program.task_after[others.to_numpy()].tolist()
        # What comes before an awaited task in its stream and step holds that one up.
        last = pl.col("task").filter(pl.col("task").is_in(awaited)).max().over("stream", "step")
        exposed = pl.col("dur_ns") * (1 - pl.col("task").replace_strict(self.hidden, return_dtype=pl.Float64))
        followed = rows.select(exposed.filter(pl.col("task") <= last).sum()).item()
        return bool(2 * followed >= rows.select(exposed.sum()).item())

    def change(self, says: str, share: float, *, least: float, most: float = 1.0) -> Change:
        """That share of what is exposed hidden; from the least to the most."""
        return Change(says, self.shortened(share), others=(self.shortened(least), self.shortened(most)))

    def shortened(self, share: float, *, only: Mapping[int, float] | None = None) -> Edit:
        """That share of what is exposed gone; or of some tasks a share of their own, of all of their time."""
        if self.standing is not None:
            start, end = self.standing.start, self.standing.end
            part = intervals.union(start, start + np.round(share * (end - start)).astype(np.int64))
            return Edit(removed_host=ProgramTime(part))
        dur = self.work.case.program.task_dur_ns
        gone = {task: share * (1 - hidden) for task, hidden in self.hidden.items()} if only is None else only
        return Edit(durations_ns={task: round(int(dur[task]) * (1 - part)) for task, part in gone.items()})


def find(work: DeviceWork) -> Exposed:
    """How far computation on the same device hides this work."""
    times = device_time.device_work(work.case.trace).select("id", "start_ns", "end_ns", "device")
    timed = work.rows.join(times, on="id", maintain_order="left")
    computing = _computing(work.case)
    launched = computing.filter(pl.col("id").is_in(work.case.tasks["id"].implode()))
    hidden: dict[int, float] = {}
    exposed_ns = computing_ns = 0
    for device, rows in device_time.by_device(timed):
        busy, own = (
            device_time.covered(frame.filter(pl.col("device").eq_missing(device)))
            for frame in (computing, launched)
        )
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        shares = intervals.covered_ns(busy, start, end) / (end - start).clip(1)
        exposed_ns += intervals.subtract(intervals.union(start, end), busy).total_ns
        computing_ns += intervals.subtract(own, intervals.union(start, end)).total_ns
        hidden.update(zip(rows["task"].to_list(), shares.tolist(), strict=True))
    return Exposed(work, hidden, exposed_ns, computing_ns)


def _computing(case: Case) -> pl.DataFrame:
    """Kernels and memsets that are no communication."""
    return device_time.device_work(case.trace).filter((pl.col("kind") != "copy") & ~pl.col("communication"))


def collectives(case: Case) -> DeviceWork:
    """The collectives on the GPU."""
    communicating = device_time.device_work(case.trace).filter(pl.col("communication"))
    return DeviceWork(case, case.tasks.join(communicating.select("id"), on="id", maintain_order="left"))


def order_is_known(work: DeviceWork) -> bool:
    """Whether the recording tells what waits for this work: it shares a stream with other work, or waits are recorded."""
    tasks, program = work.case.tasks, work.case.program
    others = tasks.filter(~pl.col("task").is_in(work.rows["task"].implode()))["stream"]
    return bool((program.kind == WAIT).any() or work.rows["stream"].is_in(others.implode()).all())


def collectives_on_host(case: Case) -> Exposed:
    """The collectives on threads of the host, while the GPU computes nothing."""
    calls = collective_calls.find(case.trace).filter((pl.col("on") == "host") & (pl.col("dur_ns") > 0))
    start = (calls["start_ns"] - case.program.start_ns).to_numpy()
    transfers = _within(case, intervals.union(start, start + calls["dur_ns"].to_numpy()))
    busy = case.program.in_program(RecordingTime(device_time.covered(_computing(case))))
    exposed = intervals.subtract(transfers, busy)
    standing = ProgramTime(intervals.intersect(exposed, _quiet(case)))
    return Exposed(
        case.device_work(pl.lit(value=False)),
        {},
        exposed.total_ns,
        intervals.subtract(busy, transfers).total_ns,
        standing,
    )


def _within(case: Case, stretches: Intervals) -> ProgramTime:
    return ProgramTime(intervals.clip(stretches, 0, case.program.measured_host_ns))


def _quiet(case: Case) -> ProgramTime:
    """Long stretches in which the threads that launch begin and end no operator and no call: they wait."""
    tracks = case.trace.spans["track_id"].gather(case.program.call_span).unique()
    spans = case.trace.spans.filter(
        pl.col("kind").is_in(("op", "runtime")) & pl.col("track_id").is_in(tracks.implode())
    )
    start = (spans["start_ns"] - case.program.start_ns).to_numpy()
    ends = start + spans["dur_ns"].fill_null(0).to_numpy()
    edges = np.unique(np.concatenate((start, ends, [0, case.program.measured_host_ns])))
    long = np.diff(edges) >= QUIET_NS
    return _within(case, Intervals(edges[:-1][long], edges[1:][long]))
