"""The comparison of two recordings: that of their steps, and tables to look into: roles, kernels, operators, parts of a step.

Only whole steps count, and times are divided by their number, so that recordings of different length compare.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from foretrace.analyze.concepts.device import device_roles
from foretrace.analyze.steps import step_windows
from foretrace.compare import operators as operator_tables
from foretrace.compare.memory import MemoryComparison, same_device, snapshot_beside
from foretrace.compare.nodes import nodes
from foretrace.compare.sides import Side, side_of
from foretrace.compare.steps import StepComparison, compare_sides
from foretrace.diagnose.case import Case
from foretrace.trace import Trace


@dataclass(frozen=True)
class Comparison:
    """Two recordings: the comparison of their steps, and tables to look into, made when asked for."""

    steps: StepComparison
    a_trace: Trace
    b_trace: Trace
    memory: MemoryComparison | None = None  # of their snapshots, where both have one
    unread: tuple[str, ...] = ()  # what is there and not compared: snapshots, other ranks

    @property
    def a(self) -> Side:
        """The first."""
        return self.steps.before

    @property
    def b(self) -> Side:
        """The second."""
        return self.steps.after

    @property
    def says(self) -> str:
        """The result in one sentence."""
        return self.steps.says

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of it."""
        return (*self.steps.notes, *self.unread)

    @cached_property
    def _works(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        first, second = (_work(trace, side.steps_count) for trace, side in self._both)
        return first, second.with_columns(pl.col("ns") * self.steps.basis.scale)

    @property
    def _both(self) -> tuple[tuple[Trace, Side], tuple[Trace, Side]]:
        return (self.a_trace, self.a), (self.b_trace, self.b)

    @cached_property
    def roles(self) -> pl.DataFrame:
        """GPU time: role, a_ns, b_ns, difference_ns."""
        return _by_role(*self._works)

    @cached_property
    def kernels(self) -> pl.DataFrame:
        """By kernel: name, role, a_count, b_count, a_ns, b_ns, difference_ns.

        Kernels of two devices have names of their own: there by operator and role, named by the longest of each side.
        """
        if self.a.device == self.b.device:
            return _differences(*self._works, keys=["name", "role"])
        sums = [
            side.group_by("op", "role").agg(
                pl.col("count", "ns").sum(), pl.col("kernel").sort_by("ns", descending=True).first()
            )
            for side in self._operators
        ]
        both = _differences(*(side.drop("kernel") for side in sums), keys=["op", "role"])
        for side, kernels in zip(("a", "b"), sums, strict=True):
            named = kernels.select("op", "role", pl.col("kernel").alias(f"{side}_kernel"))
            both = both.join(named, on=["op", "role"], how="left", maintain_order="left")
        return both

    @cached_property
    def nodes(self) -> pl.DataFrame:
        """Parts of a step: type, name, a_count, b_count, a_host_ns, b_host_ns, a_ns, b_ns (on the GPU), difference_ns."""
        return _by_node(self.a_trace, self.b_trace)

    @cached_property
    def modules(self) -> pl.DataFrame:
        """GPU time by module (the host's own, without a GPU): module, a_count, b_count, a_ns, b_ns, difference_ns."""
        sums = [side.group_by("module").agg(pl.col("count", "ns").sum()) for side in self._operators]
        return _differences(*sums, keys=["module"])

    @cached_property
    def operators(self) -> pl.DataFrame:
        """By module, operator and shapes, matched: change (kept, added, removed), and both sides."""
        return operator_tables.matched(*self._operators)

    @cached_property
    def _operators(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        first, second = (operator_tables.operators(trace) for trace, _ in self._both)
        return first, second.with_columns(pl.col("ns") * self.steps.basis.scale)


def compare(a: Case | Trace, b: Case | Trace, *, names: tuple[str, str] | None = None) -> Comparison:
    """What differs between two recordings, from a to b."""
    traces = [recording.whole if isinstance(recording, Case) else recording for recording in (a, b)]
    first, second = names or (traces[0].path.name, traces[1].path.name)
    (before, why_first), (after, why_second) = snapshot_beside(a), snapshot_beside(b)
    return Comparison(
        compare_sides(side_of(a, first), side_of(b, second)),
        traces[0],
        traces[1],
        memory=same_device(before, after),
        unread=(*(why for why in (why_first, why_second) if why), *_other_ranks(*traces)),
    )


def _other_ranks(before: Trace, after: Trace) -> tuple[str, ...]:
    """What a comparison of one rank of each job leaves out."""
    both = [(trace.meta.get("rank"), trace.meta.get("world_size")) for trace in (before, after)]
    if not all(isinstance(rank, int) and isinstance(world, int) and world > 1 for rank, world in both):
        return ()
    first, second = (f"rank {rank} of {world}" for rank, world in both)
    return (
        f"only {first} and {second} are compared; `foretrace ranks` of each job's folder shows whether another rank "
        "causes a difference in communication",
    )


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
    sums = [work.group_by("role").agg(pl.col("ns").sum()) for work in (a, b)]
    return _differences(*(side.select("role", "ns") for side in sums), keys=["role"])


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
