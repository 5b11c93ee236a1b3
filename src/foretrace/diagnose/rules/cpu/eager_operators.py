"""Operators run one by one: each reads and writes memory of its own, and Python calls them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.analyze.concepts.work.work_models import MATRIX_FAMILIES
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import model_gaps
from foretrace.diagnose.patterns.cpu_operators import (
    CpuOperators,
    clock,
    cpu_operators,
    innermost,
    named_times,
    together,
)
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.intervals import Intervals
from foretrace.predict.builder import QUIET_NS
from foretrace.predict.changes import Change
from foretrace.predict.costs.cpu_overheads import COMPILED_NS, LEFT_AROUND
from foretrace.predict.edits import Edit
from foretrace.sourced import JUDGEMENT, Factor, Share

LEAST_SHARE = Share(0.1, "the step", JUDGEMENT)
_LEAST = Factor(0.5, "what compiling is likely to save, at least", JUDGEMENT)
_MOST = Factor(1.25, "what compiling is likely to save, at most", JUDGEMENT)
_FUSED = ("elementwise", "norm", "softmax", "copy", "dropout", "reduction", "concatenation")
_OUTSIDE = rf"^Optimizer\.|{DATA_LOADING}"
_COMPILED = "CompiledFunction|Torch-Compiled Region|^graph_\\d|cpp_fused|^Call CompiledFxGraph"


@on(CPU)
@headline("{eager_pct:.0f} % of every step is small operators and the time around them")
@rule("Operators run one by one", "Fusion", see="operators")
def eager_operators(case: Case) -> Iterator[Finding]:
    """Element-wise operators, normalisations and copies that run one after the other, called from Python.

    Finds them in the forward and the backward pass, outside of data loaders and optimizers, where with the time around
    operators (Python, dispatch, autograd) they take at least {LEAST_SHARE} of the step and nothing is compiled yet.

    Slow
        y = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x**3)))

    Fast
        model = torch.compile(model)  # needs a C++ compiler

    Why
    Each operator goes through all of its tensors, and finds little of them in the cache that the one before wrote.
    torch.compile makes one loop of operators that follow one another, and calls it without Python between.

    How the worth is predicted
    Of operators between two matrix products the one that takes longest stays, and the others ride along in its loop:
    a loop costs {COMPILED_NS} besides. Around the operators {LEFT_AROUND} of the time is left. Products, attention and the
    optimizer stay as they are. The range is from half of what that saves to a quarter more. Time around operators counts
    within operators, between nodes of the backward pass, and between operators that a module calls, as the rich recording of
    a Run shows: Python that the program itself runs between them stays.

    When not
    Shapes change with every step, or the program ends before compiling (tens of seconds) has paid off.
    """
    if case.names.str.contains(_COMPILED).any():
        return
    model = _within_model(case)
    if model.fused.table.is_empty():
        return
    if _share(case, model) >= LEAST_SHARE:  # only then is the rich recording worth opening
        model = _reachable(case, model)
    fused, around_ns, share = model.fused, model.around_ns(case), _share(case, model)
    if too_little(case, "operators that could be fused, and time around operators", share, LEAST_SHARE):
        return
    yield Finding(
        says=f"{fused.per_step_count:.0f} operators a step that could be fused take {fused.self_step_ns / 1e6:.3g} ms one "
        f"by one, and {around_ns / 1e6:.3g} ms pass around operators: {100 * share:.0f} % of the step.",
        why="Each goes through memory on its own, and Python and autograd call it.",
        fix=Fix("Compile the model.", "model = torch.compile(model)"),
        evidence={
            "eager_pct": 100 * share,
            "fusable_per_step_count": fused.per_step_count,
            "fusable_ns": round(fused.self_step_ns),
            "around_ns": round(around_ns),
        },
        where=fused.places(),
        change=Change(
            "the model compiled",
            _compiled(case, model, 1.0),
            others=(_compiled(case, model, _LEAST), _compiled(case, model, _MOST)),
        ),
        unless="shapes change with every step, or the program ends before compiling has paid off.",
    )


@dataclass(frozen=True)
class _Model:
    """What torch.compile would see: matrix products, operators that it fuses, and the time around them all."""

    products: CpuOperators
    fused: CpuOperators
    around: pl.DataFrame  # start_ns, end_ns, spent_ns

    def around_ns(self, case: Case) -> float:
        """The time around operators, a step."""
        return float(self.around["spent_ns"].sum()) / case.step_count


def _within_model(case: Case) -> _Model:
    """The operators outside of loaders and optimizers."""
    operators, outside = cpu_operators(case), named_times(case, _OUTSIDE)
    start = operators.table["start_ns"].to_numpy()
    inside = operators.where(pl.Series(intervals.covered_ns(outside, start, start + 1) == 0))
    products = innermost(inside.where(pl.col("family").is_in(MATRIX_FAMILIES)))
    multiplying = _during(products)
    start = inside.table["start_ns"].to_numpy()
    alone = inside.where(pl.Series(intervals.covered_ns(multiplying, start, start + 1) == 0))
    leaves = alone.where(~pl.col("calls_others"), pl.col("family").is_not_null())
    busy = intervals.union(
        np.concatenate((multiplying.start, _during(leaves).start, outside.start)),
        np.concatenate((multiplying.end, _during(leaves).end, outside.end)),
    )
    free = intervals.gaps(busy, 0, case.program.measured_host_ns)
    # What is long is no overhead of calling: a loop of Python's own, or a sleep, which compiling leaves as it is.
    short = clock(case, free.end) - clock(case, free.start) < QUIET_NS
    fused = leaves.where(pl.col("family").is_in(_FUSED))
    return _Model(products, fused, _spent(case, Intervals(free.start[short], free.end[short])))


def _reachable(case: Case, model: _Model) -> _Model:
    """The same, with the time around operators that compiling can reach."""
    around = Intervals(model.around["start_ns"].to_numpy(), model.around["end_ns"].to_numpy())
    return replace(model, around=_spent(case, intervals.intersect(around, model_gaps.compilable(case))))


def _spent(case: Case, free: Intervals) -> pl.DataFrame:
    spent = clock(case, free.end) - clock(case, free.start)
    return pl.DataFrame({"start_ns": free.start, "end_ns": free.end, "spent_ns": spent})


def _share(case: Case, model: _Model) -> float:
    return (model.fused.self_step_ns + model.around_ns(case)) / max(case.step_ns, 1.0)


def _during(operators: CpuOperators) -> Intervals:
    return intervals.union(operators.table["start_ns"].to_numpy(), operators.table["end_ns"].to_numpy())


def _compiled(case: Case, model: _Model, times: float) -> Edit:
    """Runs of operators between two products as one loop each, with less around them; `times` as much saved as is likely."""
    begins = np.sort(model.products.table["start_ns"].to_numpy())
    run = pl.Series(np.searchsorted(begins, model.fused.table["start_ns"].to_numpy()))
    runs = model.fused.table.with_columns(run=run).with_columns(
        loop_ns=pl.min_horizontal(
            pl.col("dur_ns").max() + float(COMPILED_NS), pl.col("dur_ns").sum().cast(pl.Float64)
        ).over("run"),
        first=pl.col("op_id") == pl.col("op_id").sort_by("dur_ns", descending=True).first().over("run"),
    )
    # Of a run the longest stays, as the loop, and the others ride along.
    runs = runs.with_columns(new_ns=pl.when("first").then("loop_ns").otherwise(0.0))
    rows = [
        (start, end, own - times * (own - new))
        for start, end, own, new in runs.select("start_ns", "end_ns", "dur_ns", "new_ns").iter_rows()
    ]
    left = 1 - (1 - LEFT_AROUND) * times
    rows += [
        (start, end, spent * left)
        for start, end, spent in model.around.select("start_ns", "end_ns", "spent_ns").iter_rows()
    ]
    return together(case, rows)
