"""Anomaly detection left on: autograd keeps the stack of each forward operator, and checks each function for NaN.

Not a rule itself; `host-sync` looks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.host.runtime_calls import NOBODY
from foretrace.diagnose.case import Case
from foretrace.intervals import Intervals

_FUNCTION = r"^autograd::engine::evaluate_function: "
_CHECK = r"^aten::_is_any_true$"
_MOSTLY = 0.5  # of the functions that launch: those with a check
_USUAL_LEAD_NS = 10_000  # of an operator before it calls anything, where there is none to tell
_MOST_SLOWED = 2.0  # times that caches may cost
_HARDLY_LONGER = 3  # times the usual lead: less is the host's own scatter


def detected(case: Case, outer: NDArray[np.int64]) -> bool:
    """Whether most waits lie in autograd's functions, each behind a check."""
    host = case.host
    functions = host.named(_FUNCTION, "op")
    checked = np.unique(host.nearest(np.flatnonzero(host.named(_CHECK, "op")), functions))
    checked = checked[checked != NOBODY]
    launching = np.unique(host.nearest(case.program.call_span.astype(np.int64), functions))
    launching = launching[launching != NOBODY]
    waits = host.nearest(outer, functions)
    return bool(len(checked) > _MOSTLY * max(len(launching), 1) and np.isin(waits, checked).mean() > _MOSTLY)


def traced(case: Case) -> Intervals:
    """The host's time, as recorded, at the beginning of operators that autograd follows, beyond what others take there."""
    host = case.host
    spans = case.trace.spans
    calling = spans["kind"].is_in(("op", "runtime")).to_numpy()
    children = np.flatnonzero(calling & (host.parent != NOBODY))
    first = host.end_ns.copy()
    np.minimum.at(first, host.parent[children], host.start_ns[children])
    lead = first - host.start_ns
    followed = np.unique(case.trace.ops["forward_id"].drop_nulls().cast(pl.Int64).to_numpy())
    others = np.setdiff1d(np.flatnonzero(host.named("^aten::", "op")), followed)
    usual = int(np.median(lead[others])) if len(others) else _USUAL_LEAD_NS
    long = followed[lead[followed] > _HARDLY_LONGER * usual]
    return intervals.union(host.start_ns[long] + usual, first[long])


@dataclass(frozen=True)
class Slowed:
    """How much longer than needed the forward pass takes besides, and what goes with it."""

    factor: float
    gone: Intervals  # of the recording, in the place of what went before


def slowed(case: Case, gone: Intervals) -> Slowed:
    """What goes of the host's time when `gone` does, and forward launches take no longer than backward ones.

    Walking the stack at each operator leaves the caches to others: a launch itself, which keeps none, then takes longer
    in the forward pass than in the backward pass. So does what lies between launches.
    """
    program, host = case.program, case.host
    launches = np.diff(program.task_from) > 0
    backward = host.nearest(program.call_span.astype(np.int64), host.named(_FUNCTION, "op")) != NOBODY
    took = program.call_end_ns - program.call_start_ns
    if not (launches & backward).any() or not (launches & ~backward).any():
        return Slowed(1.0, gone)
    usual = max(float(np.median(took[launches & backward])), 1.0)
    factor = min(max(float(np.median(took[launches & ~backward])) / usual, 1.0), _MOST_SLOWED)
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1])) + program.start_ns
    end = np.maximum(program.call_start_ns + program.start_ns, begin)
    covered = intervals.covered_ns(gone, begin, end)
    more = covered + np.where(backward, 0, (end - begin - covered) * (1 - 1 / factor)).astype(np.int64)
    return Slowed(factor, intervals.union(begin, begin + more))
