"""The optimizer updates one parameter after the other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import optimizer_steps
from foretrace.diagnose.patterns.cpu_operators import clock, cpu_operators, rows_and_size, together
from foretrace.diagnose.rule import CPU, headline, on, rule
from foretrace.diagnose.seen import too_little
from foretrace.predict.changes import Change
from foretrace.predict.costs.cpu_overheads import FUSED_NS_PER_ELEMENT, FUSED_PARAMETER_NS
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import ProgramTime
from foretrace.sourced import JUDGEMENT, Count, Share

LEAST_SHARE = Share(0.04, "the step", JUDGEMENT)
LEAST_OPERATORS = Count(4, "operators a parameter, below which there is no loop", JUDGEMENT)


@on(CPU)
@headline("{optimizer_pct:.0f} % of every step updates parameters one by one")
@rule("The optimizer loops over the parameters", "Optimizer", see="operators")
def optimizer_loop(case: Case) -> Iterator[Finding]:
    """An optimizer's step made of several small operators for each parameter, where torch has a fused one.

    Finds steps of Adam, AdamW, SGD and Adagrad that are not fused and take at least {LEAST_SHARE} of the step.

    Slow
        optimizer = torch.optim.AdamW(model.parameters())

    Fast
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    Why
    On a CPU torch updates one parameter after the other, in about ten operators that each read and write all of it.
    The fused optimizer reads and writes each parameter and its state once.

    How the worth is predicted
    The optimizer's steps are replayed as {FUSED_PARAMETER_NS} for each parameter and {FUSED_NS_PER_ELEMENT} nanoseconds
    for each of its elements; the range is from half as much to twice as much.

    When not
    The optimizer has options that its fused form lacks, or a version of torch before 2.4, whose fused form needs a GPU.
    """
    during = optimizer_steps.during(case, fusable=True)
    if not during.total_ns:
        return
    table = cpu_operators(case).table
    inside = table.filter(
        pl.Series(intervals.covered_ns(during, table["start_ns"].to_numpy(), table["start_ns"].to_numpy() + 1) > 0)
    )  # fmt: skip
    names = inside["name"]
    if names.str.contains("_fused_|_foreach_").any():
        return
    step_ns = float((clock(case, during.end) - clock(case, during.start)).sum()) / case.step_count
    parameters, elements = _parameters(case, inside)
    leaves = inside.filter(~pl.col("calls_others")).height / case.step_count
    if leaves < LEAST_OPERATORS * max(parameters, 1):
        return
    if too_little(case, "the optimizer", step_ns / case.step_ns, LEAST_SHARE):
        return
    fused = parameters * FUSED_PARAMETER_NS + elements * FUSED_NS_PER_ELEMENT
    optimizer = optimizer_steps.name(case)
    yield Finding(
        says=f"{optimizer} updates {parameters:.0f} parameters one by one, in {leaves:.0f} operators a step: "
        f"{100 * step_ns / case.step_ns:.0f} % of it.",
        why="Each operator reads and writes all of a parameter.",
        fix=Fix("Use the fused optimizer.", f"torch.optim.{optimizer}(model.parameters(), fused=True)"),
        evidence={
            "optimizer_pct": 100 * step_ns / case.step_ns,
            "optimizer_ns": round(step_ns),
            "parameters_count": parameters,
            "operators_per_step_count": leaves,
        },
        where=case.places(inside["op_id"].to_list()),
        change=Change(
            "a fused optimizer",
            _fused(case, during, fused),
            others=(_fused(case, during, 2 * fused), _fused(case, during, fused / 2)),
        ),
        unless="it has options that the fused form lacks.",
    )


def _parameters(case: Case, inside: pl.DataFrame) -> tuple[float, float]:
    """How many parameters a step updates, and their elements: those of the operator that is called most evenly, once each."""
    arguments = case.arguments.with_columns(pl.col("op_id").cast(pl.Int64))
    known = inside.join(arguments, on="op_id", how="inner").drop_nulls("shapes")
    updates = known.filter(
        pl.col("name").is_in(("aten::addcdiv_", "aten::sub_", "aten::add_", "aten::lerp_"))
    )
    if updates.is_empty():
        return 0.0, 0.0
    counts = updates.with_columns(
        size=pl.Series([rows_and_size(shapes)[1] for shapes in updates["shapes"]], dtype=pl.Int64)
    ).filter(pl.col("size") > 1)
    by_name = counts.group_by("name").agg(pl.len().alias("calls"), pl.col("size").sum())
    if by_name.is_empty():
        return 0.0, 0.0
    chosen = by_name.sort("size", "calls", descending=True).row(0, named=True)
    return chosen["calls"] / case.step_count, chosen["size"] / case.step_count


def _fused(case: Case, during: ProgramTime, fused_ns: float) -> Edit:
    """All optimizer steps gone, and a fused one in place of each step's."""
    share = (during.end - during.start) / max(int(np.sum(during.end - during.start)), 1)
    now = clock(case, during.end) - clock(case, during.start)
    new = np.minimum(fused_ns * case.step_count * share, now)
    return together(case, zip(during.start.tolist(), during.end.tolist(), new.tolist(), strict=True))
