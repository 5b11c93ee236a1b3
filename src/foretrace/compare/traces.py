"""The comparison of two Traces: step time, GPU time by role and by kernel, and the parts of a step, each per whole step.

Only whole steps count, and times are divided by their number, so that recordings of different length compare.
Two step times differ only if their ranges over the recorded steps do not touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_roles
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.compare.nodes import nodes
from foretrace.trace import Trace
from foretrace.units import format_value

_LEAST = 0.001  # of the larger step: kernels that differ by less are left out of what is said


@dataclass(frozen=True)
class Side:
    """One of the two recordings, per step."""

    name: str
    step_ns: float | None  # the median; null without steps
    low_ns: float | None
    high_ns: float | None
    steps_count: int  # whole steps; 0: times are of the whole recording


@dataclass(frozen=True)
class Comparison:
    """Two sides, and where their time differs; a positive difference_ns means that b takes longer."""

    a: Side
    b: Side
    roles: pl.DataFrame  # role, a_ns, b_ns, difference_ns
    kernels: pl.DataFrame  # name, role, a_count, b_count, a_ns, b_ns, difference_ns
    # type, name, a_count, b_count, a_host_ns, b_host_ns, a_ns, b_ns (on the GPU), difference_ns (on the host without one)
    nodes: pl.DataFrame
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether the step times differ by more than the steps of either side do among themselves."""
        first, second = self.a, self.b
        if first.low_ns is None or first.high_ns is None or second.low_ns is None or second.high_ns is None:
            return False
        return first.high_ns < second.low_ns or second.high_ns < first.low_ns

    @property
    def says(self) -> str:
        """The result in one sentence."""
        if self.a.step_ns is None or self.b.step_ns is None:
            return "no step time to compare: call profiler.step() at the end of each iteration" + self._most()
        times = f"{format_value('_ns', self.a.step_ns)} and {format_value('_ns', self.b.step_ns)} a step"
        if not self.differs:
            return f"{times}: no difference beyond that between steps" + self._most()
        faster, slower = sorted((self.a, self.b), key=lambda side: side.step_ns or 0.0)
        ratio = (slower.step_ns or 0.0) / max(faster.step_ns or 0.0, 1.0)
        return f"{times}: {faster.name} is {ratio:.2f} times as fast" + self._most()

    def _most(self) -> str:
        changed = self.roles.filter(pl.col("difference_ns") != 0)
        if changed.is_empty():
            return ""
        top = changed.sort(pl.col("difference_ns").abs(), descending=True).row(0, named=True)
        larger = max(self.a.step_ns or 0.0, self.b.step_ns or 0.0)
        if abs(top["difference_ns"]) < _LEAST * larger:
            return ""
        more = "more" if top["difference_ns"] > 0 else "less"
        amount = format_value("_ns", abs(top["difference_ns"]))
        return f"; the most by {top['role']}: {amount} {more} in {self.b.name}"


def compare(a: Trace, b: Trace, *, names: tuple[str, str] | None = None) -> Comparison:
    """What differs between two recordings, from a to b."""
    first, second = names or (a.path.name, b.path.name)
    sides, works = [], []
    for trace, name in ((a, first), (b, second)):
        side = _side(trace, name)
        sides.append(side)
        works.append(_work(trace, side.steps_count))
    return Comparison(
        a=sides[0],
        b=sides[1],
        roles=_by_role(*works),
        kernels=_by_kernel(*works),
        nodes=_by_node(a, b),
        notes=_notes(a, b, *sides),
    )


def _side(trace: Trace, name: str) -> Side:
    whole = [step_window for step_window in step_windows(trace) if step_window.averaged]
    times = _times(whole)
    if not times:
        return Side(name, None, None, None, 0)
    return Side(name, float(np.median(times)), float(min(times)), float(max(times)), len(whole))


def _times(whole: list[StepWindow]) -> list[int]:
    on_gpu = [each.gpu_ns for each in whole if each.gpu_ns is not None]
    return on_gpu or [each.host_ns for each in whole]


def _work(trace: Trace, steps_count: int) -> pl.DataFrame:
    """Device work by kernel name and role: `count` and `ns`, per whole step where there are steps."""
    work = device_roles.classified(trace) if trace.has_device else None
    schema = {"name": pl.String, "role": pl.String, "count": pl.Float64, "ns": pl.Float64}
    if work is None:
        return pl.DataFrame(schema=schema)
    share = 1
    if steps_count:
        numbers = [step_window.number for step_window in step_windows(trace) if step_window.averaged]
        work, share = work.filter(pl.col("step").is_in(numbers)), steps_count
    sums = work.group_by(pl.col("name").cast(pl.String), device_roles.role_names()).agg(
        count=pl.len() / share, ns=pl.col("dur_ns").sum() / share
    )
    return sums.select("name", "role", "count", "ns").cast(schema)  # type: ignore[arg-type]


def _by_role(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    sums = [each.group_by("role").agg(pl.col("ns").sum()) for each in (a, b)]
    return _differences(*(each.select("role", "ns") for each in sums), keys=["role"])


def _by_kernel(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    return _differences(a, b, keys=["name", "role"])


def _by_node(a: Trace, b: Trace) -> pl.DataFrame:
    """Parts of a step by type and name; what differs most first, on the GPU where both have one."""
    on_gpu = a.has_device and b.has_device
    sides = [nodes(trace).rename({"gpu_ns": "ns"}) for trace in (a, b)]
    both = _differences(*sides, keys=["type", "name"])
    if on_gpu:
        return both
    both = both.with_columns(difference_ns=pl.col("b_host_ns") - pl.col("a_host_ns"))
    return both.sort(pl.col("difference_ns").abs(), "type", "name", descending=[True, False, False])


def _differences(a: pl.DataFrame, b: pl.DataFrame, *, keys: list[str]) -> pl.DataFrame:
    """Both sides in one table, absent ones as 0: the kernel did not run. The largest difference first."""
    joined = a.join(b, on=keys, how="full", suffix="_b", coalesce=True)
    measures = [name for name in a.columns if name not in keys]
    pairs = [
        pl.col(column).fill_null(0.0).alias(f"{side}_{name}")
        for name in measures
        for side, column in (("a", name), ("b", f"{name}_b"))
    ]
    both = joined.select(*keys, *pairs).with_columns(difference_ns=pl.col("b_ns") - pl.col("a_ns"))
    largest = [pl.col("difference_ns").abs(), pl.col("a_ns") + pl.col("b_ns")]
    return both.sort(*largest, *keys, descending=[True, True, *(False for _ in keys)], maintain_order=True)


def _notes(a: Trace, b: Trace, first: Side, second: Side) -> tuple[str, ...]:
    notes = []
    devices = [
        ", ".join(dict.fromkeys(str(each.get("name")) for each in trace.meta.get("devices", ())))
        for trace in (a, b)
    ]
    if devices[0] != devices[1]:
        notes.append(f"recorded on different devices: {devices[0] or 'none'} and {devices[1] or 'none'}")
    for side in (first, second):
        if not side.steps_count:
            notes.append(f"{side.name} has no steps: its times are of the whole recording")
        elif side.steps_count == 1:
            notes.append(f"{side.name} has one whole step: how much steps differ is not known")
    if a.has_device != b.has_device:
        notes.append("only one of the two holds GPU work")
    if (a.python.height > 0) != (b.python.height > 0):
        notes.append(
            "one was recorded with Python calls and the other without: host times are not comparable"
        )
    return tuple(notes)
