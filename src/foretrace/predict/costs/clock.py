"""The clock of a GPU that multiplies: doing so most of the time, it draws all the power it may, and clocks lower.

What a fix takes away, casts or copies, is time in which the tensor cores rested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from foretrace import hardware
from foretrace.predict import edits
from foretrace.predict.changes import Change, applied
from foretrace.predict.edits import Edit
from foretrace.predict.program import Program
from foretrace.predict.steady import step_ns as replayed_step_ns
from foretrace.sourced import JUDGEMENT, Factor, Share

_FITTED = "fitted by hand to the pairs of docs/accuracy.md, which scatter"
COOL = Share(0.5, "the step, taken by half-precision products before they slow down", _FITTED, devices="H200")
SLOPE = Factor(0.3, "what they take beyond that, by which they slow down", _FITTED, devices="H200")
LEAST_RATE = Share(0.4, "the peak: slower products wait for memory, and stay cool", JUDGEMENT)
LEAST_SLOWER = Factor(1.01, "times as long, below which the effect is left out", JUDGEMENT)
_HALF = ("bf16", "fp16", "fp8")


def times_at_peak_ns(device: hardware.Device | None, products: pl.DataFrame) -> dict[int, float]:
    """Tasks that multiply in half precision on tensor cores, with what each would take at the peak."""
    if device is None:
        return {}
    in_half = products.filter(
        pl.col("operand_dtype").is_in(_HALF)
        & pl.col("tensor_cores").fill_null(value=True)
        & pl.col("op_flops").is_not_null()
    )
    return {
        task: flops / peak * 1e9
        for task, dtype, flops in in_half.select("task", "operand_dtype", "op_flops").iter_rows()
        if (peak := hardware.peak_flops(device, dtype))
    }


class Clocked(NamedTuple):
    """Changes with what they do to the clock, and the step that they leave where it was replayed to tell."""

    changes: tuple[Change, ...]
    after_ns: float | None = None


def with_clock(
    program: Program,
    changes: tuple[Change, ...],
    *,
    at_peak_ns: Mapping[int, float],
    step_ns: float,
    step_count: int,
) -> Clocked:
    """The changes, and the one that they bring about if they leave the GPU little but products to do.

    `at_peak_ns` comes from `times_at_peak_ns`; `step_ns` and `step_count` are of the program before the changes.
    """
    if not at_peak_ns or not changes:
        return Clocked(changes)
    tasks = np.fromiter(at_peak_ns, np.int64, len(at_peak_ns))
    fastest_ns = np.fromiter(at_peak_ns.values(), np.float64, len(at_peak_ns))
    edit = edits.merge(change.edit for change in changes)
    given = np.fromiter(map(edit.durations_ns.__contains__, at_peak_ns), bool, len(at_peak_ns))
    before_ns = program.task_dur_ns[tasks]
    after_ns = before_ns.copy()
    after_ns[given] = [edit.durations_ns[task] for task in tasks[given].tolist()]
    hot_before = fastest_ns > LEAST_RATE * before_ns
    gone = np.zeros(len(program.task_dur_ns), bool)
    gone[edit.removed_tasks] = True
    gone_call = np.zeros(len(program.kind), bool)
    gone_call[edit.removed_calls] = True
    hot_after = (fastest_ns > LEAST_RATE * after_ns) & ~gone[tasks] & ~gone_call[program.task_call[tasks]]
    after_step_ns = replayed_step_ns(applied(program, edit, changes))
    was = _slowdown(before_ns[hot_before].sum() / step_count / step_ns)
    becomes = _slowdown(after_ns[hot_after].sum() / step_count / max(after_step_ns, 1.0))
    times = np.where(given | ~hot_before, becomes, becomes / was)
    stretched = {
        task: factor
        for task, factor in zip(tasks[hot_after].tolist(), times[hot_after].tolist(), strict=True)
        if factor > LEAST_SLOWER
    }
    if not stretched:
        return Clocked(changes, after_step_ns)
    most = max(stretched.values())
    says = f"matrix products {most:.2f} times as long, because the GPU clocks lower the more it multiplies"
    return Clocked((*changes, Change(says, Edit(stretched=stretched))))


def _slowdown(share: float) -> float:
    return 1 + SLOPE * max(min(share, 1.0) - COOL, 0.0)
