"""Products slow each other down: a GPU that multiplies most of the time draws all the power it may, and clocks lower.

Not a rule itself; every prediction of a diagnosis takes it into account. What a fix takes away, casts or copies, is time
in which the tensor cores rested.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace import hardware
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import matrix_products
from foretrace.predict import edits
from foretrace.predict.changes import Change, apply
from foretrace.predict.edits import Edit
from foretrace.predict.prediction import Prediction, predict
from foretrace.predict.steady import step_ns

# Of the step, what products in half precision may take before they slow down, and by how much of what is beyond that
# they then do: fitted by hand to the H200 recordings of benchmarks/pairs, which scatter.
_COOL, _SLOPE = 0.5, 0.3
_LEAST_RATE = 0.4  # of the peak: slower products wait for memory, and stay cool
_LEAST_SLOWER = 1.01


def predicted(case: Case, changes: tuple[Change, ...]) -> Prediction:
    """What the changes, made together, would make of the step, on a GPU that may have to clock lower then."""
    return predict(case.calibration, slower(case, changes))


def slower(case: Case, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes, and the one that they bring about if they leave the GPU little but products to do."""
    multiplied = case.keep("flops of products in half precision", lambda: _flops(case))
    if not multiplied or not changes:
        return changes
    tasks = np.array(list(multiplied), np.int64)
    fastest_ns = np.array(list(multiplied.values()))  # at the peak
    edit = edits.merge(change.edit for change in changes)
    program = apply(case.program, changes)
    given = np.isin(tasks, list(edit.durations_ns))
    before_ns = case.program.task_dur_ns[tasks]
    after_ns = np.array([edit.durations_ns.get(int(task), 0) for task in tasks])
    after_ns = np.where(given, after_ns, before_ns)
    hot_before = fastest_ns > _LEAST_RATE * before_ns
    hot_after = (fastest_ns > _LEAST_RATE * after_ns) & ~np.isin(tasks, edit.removed_tasks)
    hot_after &= ~np.isin(case.program.task_call[tasks], edit.removed_calls)
    was = _factor(before_ns[hot_before].sum() / case.step_count / case.step_ns)
    becomes = _factor(after_ns[hot_after].sum() / case.step_count / max(step_ns(program), 1.0))
    times = np.where(given | ~hot_before, becomes, becomes / was)
    stretched = {
        int(task): float(factor)
        for task, factor in zip(tasks[hot_after], times[hot_after], strict=True)
        if factor > _LEAST_SLOWER
    }
    if not stretched:
        return changes
    most = max(stretched.values())
    says = f"products {most:.2f} times as long, for the GPU clocks lower the more it multiplies"
    return (*changes, Change(says, Edit(stretched=stretched)))


def _factor(share: float) -> float:
    return 1 + _SLOPE * max(min(share, 1.0) - _COOL, 0.0)


def _flops(case: Case) -> dict[int, float]:
    """Tasks that multiply in half precision on tensor cores, with what they would take at the peak, in nanoseconds."""
    if case.device is None:
        return {}
    found = matrix_products.kernels(case).filter(
        pl.col("operand_dtype").is_in(("bf16", "fp16", "fp8"))
        & pl.col("tensor_cores").fill_null(value=True)
        & pl.col("op_flops").is_not_null()
    )
    return {
        task: flops / peak * 1e9
        for task, dtype, flops in found.select("task", "operand_dtype", "op_flops").iter_rows()
        if (peak := hardware.peak_flops(case.device, dtype))
    }
