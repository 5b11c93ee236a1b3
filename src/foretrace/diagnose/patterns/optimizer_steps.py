"""Optimizer steps: when the host runs the optimizers' updates, by whether torch has a fused form of them."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import phases
from foretrace.analyze.concepts.names.named_spans import ids_like
from foretrace.diagnose.case import Case
from foretrace.predict.numbers import ProgramTime

_OPTIMIZER = r"Optimizer\.step#(\w+)\."
HAVE_FUSED = ("Adam", "AdamW", "SGD", "Adagrad")


def during(case: Case, *, fusable: bool) -> ProgramTime:
    """When optimizers step that have a fused form in torch, or the others; without the closure that a step may run first."""
    return case.keep(f"optimizer steps {fusable}", lambda: _during(case, fusable))


def _during(case: Case, fusable: bool) -> ProgramTime:
    host = case.trace.tracks.filter(pl.col("device").is_null())["id"].implode()
    steps = case.trace.spans[ids_like(case.trace, ("annotation", "op"), "^Optimizer.step#")]
    steps = steps.filter(pl.col("track_id").is_in(host))
    has_fused = (
        pl.col("name").cast(pl.String).str.extract(_OPTIMIZER).is_in(HAVE_FUSED).fill_null(value=False)
    )
    chosen = steps.filter(has_fused == fusable)
    begins = phases.last_backward_ns(case.trace, chosen)
    ends = (chosen["start_ns"] + chosen["dur_ns"].fill_null(0)).to_numpy()
    start_ns = case.program.start_ns
    return ProgramTime(intervals.union(begins - start_ns, np.maximum(ends, begins) - start_ns))


def name(case: Case) -> str:
    """The class of the optimizers with a fused form that step most often."""
    named = case.trace.spans["name"].cast(pl.String).str.extract(_OPTIMIZER)
    counted = named.filter(named.is_in(HAVE_FUSED)).value_counts(sort=True)
    return str(counted[named.name][0]) if counted.height else HAVE_FUSED[1]


def calls_within(case: Case, during: ProgramTime) -> NDArray[np.bool_]:
    """For each call of the program, whether it begins in this time."""
    start = case.program.call_start_ns
    return intervals.covered_ns(during, start, start + 1) > 0
