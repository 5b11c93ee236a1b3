"""Tensors are cast to another type and straight back."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.diagnose.redundant_copies import device_copies, removed
from foretrace.predict.changes import Change

_LEAST_SHARE = 0.02


@rule
def dtype_casts(case: Case) -> Iterator[Finding]:
    """Casts that are undone by the next one: x.float().half(), x.to(bf16).to(fp32).

    What it does
    Follows casts on the device that come one after another on equally many elements. Where the type returns to
    the one that the first cast began with, all of them could go. They must take 2 % of the GPU's time.

    Why it matters
    Each cast reads and writes the whole tensor and computes nothing.

    Use instead
    Keep one type through the region; under torch.autocast leave casts to torch.
    """
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    copies = device_copies(case)
    trips = _round_trips(copies)
    mine = copies.filter(pl.col("task").is_in(trips))
    spent = int(mine["dur_ns"].sum())
    if mine.is_empty() or spent < _LEAST_SHARE * device_ns:
        return
    types = sorted(set(mine["source"]) | set(mine["target"]))
    yield Finding(
        rule="dtype-casts",
        says=f"{mine.height / case.step_count:.0f} casts a step between {' and '.join(types)} undo each other and take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix("Keep one type through the region.", "y = f(x)  # not f(x.float().to(x.dtype))"),
        evidence={
            "casts_ns": spent // case.step_count,
            "casts_pct": 100 * spent / device_ns,
            "casts_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].to_list()),
        change=Change("casts there and back removed", removed(case, mine)),
        unless="the rounding in between is wanted.",
    )


def _round_trips(copies: pl.DataFrame) -> list[int]:
    """Tasks of casts that return within a step to the type they began with, nothing else on the stream between."""
    found: list[int] = []
    run: list[tuple[int, str, str, int]] = []  # task, source, target, elements
    previous = -2
    for task, order, source, target, count in copies.select(
        "task", "order", "source", "target", "count"
    ).iter_rows():
        follows = run and order == previous + 1 and count == run[-1][3] and source == run[-1][2]
        if not follows:
            run = []
        previous = order
        if source == target:
            run = []
            continue
        run.append((task, source, target, count))
        back = [place for place, each in enumerate(run) if each[1] == target]
        if back:
            found += [each[0] for each in run[back[-1] :]]
            run = run[: back[-1]]
    return found
