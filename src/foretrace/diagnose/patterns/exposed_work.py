"""Exposed work: copies and collectives on the GPU while nothing is computed."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import WAIT


@dataclass(frozen=True)
class Exposed:
    """Device work, what of it computation hides, and how long it is exposed."""

    work: DeviceWork
    hidden: dict[int, float]  # shares of the tasks
    exposed_ns: int  # in all recorded steps

    @property
    def per_step_ns(self) -> int:
        """How long it is exposed in a step."""
        return self.exposed_ns // self.work.case.step_count

    @property
    def step_share(self) -> float:
        """The part of the step in which it is exposed."""
        return self.exposed_ns / self.work.case.step_count / self.work.case.step_ns

    def change(self, says: str, share: float, *, least: float, most: float = 1.0) -> Change:
        """That share of what is exposed hidden; from the least to the most."""
        return Change(says, self._hide(share), others=(self._hide(least), self._hide(most)))

    def _hide(self, share: float) -> Edit:
        dur = self.work.case.program.task_dur_ns
        return Edit(
            durations_ns={
                task: round(int(dur[task]) * (1 - share * (1 - hidden)))
                for task, hidden in self.hidden.items()
            }
        )


def find(work: DeviceWork) -> Exposed:
    """How far computation on the same device hides this work."""
    times = device_time.device_work(work.case.trace).select("id", "start_ns", "end_ns", "device")
    timed = work.rows.join(times, on="id", maintain_order="left")
    computing = device_time.device_work(work.case.trace).filter(
        (pl.col("kind") != "copy") & ~pl.col("communication")
    )
    hidden: dict[int, float] = {}
    exposed_ns = 0
    for device, rows in device_time.by_device(timed):
        busy = device_time.covered(computing.filter(pl.col("device").eq_missing(device)))
        start, end = rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()
        shares = intervals.covered_ns(busy, start, end) / (end - start).clip(1)
        exposed_ns += intervals.subtract(intervals.union(start, end), busy).total_ns
        hidden.update(zip(rows["task"].to_list(), shares.tolist(), strict=True))
    return Exposed(work, hidden, exposed_ns)


def collectives(case: Case) -> DeviceWork:
    """The collectives on the GPU."""
    communicating = device_time.device_work(case.trace).filter(pl.col("communication"))
    return DeviceWork(case, case.tasks.join(communicating.select("id"), on="id", maintain_order="left"))


def order_is_known(work: DeviceWork) -> bool:
    """Whether the replay knows what waits for this work: it shares a stream with other work, or waits are recorded."""
    tasks, program = work.case.tasks, work.case.program
    others = tasks.filter(~pl.col("task").is_in(work.rows["task"].implode()))["stream"]
    return bool((program.kind == WAIT).any() or work.rows["stream"].is_in(others.implode()).all())
