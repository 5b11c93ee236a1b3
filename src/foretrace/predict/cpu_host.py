"""The host of a program without a GPU: a step is what its thread does, so its moments are those of its operators.

Such a program has no calls of a device's runtime. In their place stand the begin and the end of every operator of the
thread that takes the steps: what lies between two of them can be taken out, or replaced, on its own.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.predict.program import Program
from foretrace.sourced import JUDGEMENT, Count, Factor, Nanoseconds, Share
from foretrace.trace import Trace

_RECORDED = (
    "docs/accuracy.md (programs without a GPU), light passes against unprofiled steps; torch 2.13, EPYC 9004"
)
OP_NS = Nanoseconds(1_500, "recording an operator on a CPU, where no step was measured", _RECORDED)
_MOST_OP_NS = Nanoseconds(4_000, "recording an operator on a CPU, at most", _RECORDED)
_FRAME_NS = Nanoseconds(400, "recording a Python call or an allocation", "predict/calibrate.py")
_LEAST_LEFT = Share(0.3, "a recorded stretch that every correction leaves", JUDGEMENT)
_SCALES = (
    Factor(
        0.5, "the recorded host, at its fastest: other processes held it up while it was recorded", JUDGEMENT
    ),
    Factor(
        4.0,
        "the recorded host, at its slowest: other processes hold the measured steps up, and all alike",
        JUDGEMENT,
    ),
)
_LEAST_STEPS = Count(3, "steps of which one is the median", JUDGEMENT)
_REACHED = Share(0.02, "the measured step, by which a fitted one may miss it", JUDGEMENT)


def moments(trace: Trace, window: tuple[int, int]) -> pl.DataFrame:
    """The begins and ends of the operators of the thread that takes the steps, as calls that take no time."""
    start, end = window
    ops = trace.spans.filter(
        (pl.col("kind") == "op") & pl.col("dur_ns").is_not_null()
        & pl.col("start_ns").is_between(start, end, closed="left")
    ).with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"))  # fmt: skip
    ops = ops.filter(pl.col("track_id") == _stepping(trace, ops), pl.col("end_ns") <= end)
    begins = ops.with_columns(end_ns=pl.col("start_ns"), dur_ns=pl.lit(0, pl.Int64))
    ends = ops.with_columns(start_ns=pl.col("end_ns"), dur_ns=pl.lit(0, pl.Int64))
    return pl.concat((begins, ends)).sort("start_ns", maintain_order=True)


def _stepping(trace: Trace, ops: pl.DataFrame) -> int:
    """The thread with the steps' marks, else with most operators."""
    marks = trace.spans.filter(
        (pl.col("kind") == "annotation") & pl.col("name").cast(pl.String).str.starts_with("ProfilerStep#")
    )
    frame = marks if marks.height else ops
    counted = frame.group_by("track_id").len().sort("len", "track_id", descending=(True, False))
    return int(counted["track_id"][0]) if counted.height else -1


def of_moments(program: Program) -> bool:
    """Whether a program is made of such moments."""
    if not len(program.kind) or len(program.task_span):
        return False
    return bool((program.call_start_ns == program.call_end_ns).all())


def host_step_ns(program: Program) -> float:
    """What its host takes for a step."""
    inside = program.step_calls < len(program.gap_ns)
    between = int(program.between_ns[inside].sum())
    every = int(program.gap_ns.sum() + program.base_ns.sum()) + program.tail_gap_ns - between
    return every / max(len(program.step_calls), 1)


def unrecorded(program: Program, *, op_ns: float, scale: float = 1.0) -> Program:
    """The program without what recording costs, an operator and a Python call; the rest this much longer."""
    cost = (op_ns * program.gap_ops + _FRAME_NS * program.gap_frames).astype(np.int64)
    gap = np.maximum((_LEAST_LEFT * program.gap_ns).astype(np.int64), program.gap_ns - cost)
    return replace(
        program, gap_ns=(gap * scale).astype(np.int64), tail_gap_ns=round(program.tail_gap_ns * scale)
    )


def undisturbed(program: Program) -> Program:
    """The program with what each of its steps does at its place taking what it takes in the median step.

    Another process that takes the core for some milliseconds makes one operator of one step longer, and shows in no other
    step. Where steps differ in what they call, or fewer than three were recorded, everything stays as it is.
    """
    edges = np.append(program.step_calls, len(program.kind)).astype(np.int64)
    counts = np.diff(edges)
    if len(counts) < _LEAST_STEPS or counts[0] < 1 or (counts != counts[0]).any():
        return program
    first = int(edges[0])
    gap = program.gap_ns.copy()
    np.subtract.at(gap, program.step_calls, program.between_ns)
    steps = gap[first:].reshape(len(counts), counts[0])
    usual = np.median(steps, axis=0).astype(np.int64)
    usual[0] = np.median(steps[1:, 0])  # what came before the first step was not recorded
    begins = gap[first]
    gap[first:] = np.tile(usual, len(counts))
    gap[first] = begins
    return replace(program, gap_ns=np.maximum(gap, 0), between_ns=np.zeros_like(program.between_ns))


def fitted(program: Program, step_ns: float | None, waited: NDArray[np.int64]) -> tuple[Program, str, bool]:
    """The program as it runs without a profiler, in words, and whether it meets the measured step.

    What an operator costs to record explains the difference to the measured step as far as that is plausible; what is
    left is the machine's, and lies on everything alike. `waited` are waits that were measured, and stay as they are.
    """
    program = undisturbed(program)
    if step_ns is None:
        made = unrecorded(program, op_ns=OP_NS)
        return _with(made, waited), "the step time without a profiler is estimated: nothing measured it", True
    wanted = step_ns - float(waited.sum()) / max(len(program.step_calls), 1)
    low, high = 0.0, float(_MOST_OP_NS)
    for _ in range(24):
        middle = (low + high) / 2
        if host_step_ns(unrecorded(program, op_ns=middle)) > wanted:
            low = middle
        else:
            high = middle
    left = host_step_ns(unrecorded(program, op_ns=high))
    scale = float(np.clip(wanted / max(left, 1.0), *_SCALES))
    made = _with(unrecorded(program, op_ns=high, scale=scale), waited)
    reached = abs(host_step_ns(made) / step_ns - 1) < _REACHED
    if not reached:
        recorded = host_step_ns(program)
        return made, (
            f"the recorded steps are not like the measured one: {recorded / 1e6:.3g} ms recorded, "
            f"{step_ns / 1e6:.3g} ms measured"
        ), False  # fmt: skip
    basis = f"fitted to the measured step: {high / 1e3:.1f} µs to record an operator, the rest {scale:.2f} times as recorded"
    return made, basis, True


def _with(program: Program, waited: NDArray[np.int64]) -> Program:
    return replace(program, gap_ns=program.gap_ns + waited)
