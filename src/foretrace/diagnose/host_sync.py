"""The host waits for the device in the middle of its work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.runtime_calls import NOBODY, HostSpans
from foretrace.analyze.source_places import Places
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place, rule
from foretrace.errors import MissingDataError
from foretrace.predict import capture
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.program import LAUNCH

_LEAST_SHARE = 0.02  # of the host's time
_MOST_LAUNCHES = 4  # that computing on the device may take instead: compare, select, multiply, reduce
# Operators whose result is as large as the values of their input decide.
_SHAPED = (
    r"^aten::(?:nonzero|masked_select|_?unique\w*|unique_consecutive|repeat_interleave|argwhere|bincount)\b"
)
_LINE = re.compile(r"(?:backward of )?(.+)\((\d+)\): (.+)")


@rule
def host_sync(case: Case) -> Iterator[Finding]:
    """Calls such as .item(), .cpu(), nonzero and synchronize, in which the host waits for the GPU.

    What it does
    Looks for calls within steps that wait for the device, other than copies to it and calls that free memory,
    if they and the operators around them take at least 2 % of the host's time. The replay takes each operator that
    waited out and puts one launch in its place: what depended on the value must now be computed on the device. At
    best not even that, at worst the operator stays, without its wait, and four launches follow: the range says so.
    Where most of the waiting is for the size of a result (nonzero, a mask as index), nothing is promised: without
    the wait, what follows may have more rows to work on.

    Why it matters
    While the host waits it launches nothing; when the GPU has finished, it waits in turn until the host has
    launched again. Where the host is slower than the GPU anyway, removing the wait gains nothing.

    Use instead
    Keep values on the device: torch.where instead of `if x.item()`; read losses every 100 steps.
    """
    calls = waiting_calls(case)
    program = case.program
    wait_ns = int((program.call_end_ns - program.call_start_ns)[calls].sum())
    host = HostSpans(case.trace)
    outer = _outermost(case, host, calls)
    around = intervals.union(host.start_ns[outer], host.end_ns[outer])
    if not len(calls) or around.total_ns < _LEAST_SHARE * program.measured_host_ns:
        return
    ops, lines = _origins(case, host, calls, outer)
    names = pl.Series(ops).value_counts(sort=True)
    culprit = str(names.row(0)[0])
    makes = f" and {names.height - 1} more make" if names.height > 1 else " makes"
    yield Finding(
        rule="host-sync",
        says=f"{culprit}{makes} the host wait for the GPU {len(calls) / case.step_count:.3g} times a step, "
        f"{wait_ns / case.step_count / 1e6:.3g} ms in all.",
        why="While it waits it launches nothing, and afterwards the GPU waits for the next launch.",
        fix=Fix(
            "Keep the value on the device, or read it rarely.",
            "x = torch.where(x.max() > limit, x / limit, x)   # not: if x.max().item() > limit\n"
            "if step % 100 == 0: print(loss.item())",
        ),
        evidence={
            "calls_per_step_count": len(calls) / case.step_count,
            "wait_ns": wait_ns // case.step_count,
            "wait_pct": 100 * wait_ns / max(program.measured_host_ns, 1),
            "op": culprit,
            "spans": program.call_span[calls][:5].tolist(),
        },
        where=lines,
        change=_change(case, calls, outer, around),
        unless="the program needs the value to decide what to do next.",
    )


def waiting_calls(case: Case) -> NDArray[np.int64]:
    """Calls that wait for the device, other than for a copy to it or to free memory."""
    if not case.trace.spans.filter(pl.col("kind") == "runtime").height:
        raise MissingDataError(
            f"{case.trace.path.name}: no runtime calls recorded; record with ProfilerActivity.CUDA"
        )
    return capture.waiting_calls(case.trace, case.program)


def _outermost(case: Case, host: HostSpans, calls: NDArray[np.int64]) -> NDArray[np.int64]:
    """The outermost of torch's own operators around each call, or the call itself."""
    ids = case.program.call_span[calls].astype(np.int64)
    outer = host.outermost(ids, host.named("^aten::", "op"))
    return np.where(outer == NOBODY, ids, outer)


def _origins(
    case: Case, host: HostSpans, calls: NDArray[np.int64], outer: NDArray[np.int64]
) -> tuple[list[str], tuple[Place, ...]]:
    """The names of what waited, and the lines behind them."""
    ids = case.program.call_span[calls].astype(np.int64)
    ops = case.trace.spans["name"].cast(pl.String).gather(outer).to_list()
    counted = Places(case.trace, host).lines(ids).drop_nulls().value_counts(sort=True)
    if counted.is_empty():
        shown = pl.Series("op", ops).value_counts(sort=True)["op"].head(3)
        return ops, tuple(Place(None, None, name) for name in shown)
    return ops, tuple(_place(text) for text in counted.to_series(0).head(3))


def _place(text: str) -> Place:
    match = _LINE.fullmatch(text)
    return Place(match[1], int(match[2]), match[3]) if match else Place(None, None, text)


def _change(
    case: Case, calls: NDArray[np.int64], outer: NDArray[np.int64], around: intervals.Intervals
) -> Change:
    """One launch in the place of each operator that waited; at best nothing, at worst all of it and more."""
    program = case.program
    launches = np.flatnonzero(program.kind == LAUNCH)
    cost = dense_ns(program) + program.base_ns
    usual = int(np.median(cost[launches])) if len(launches) else 10_000
    first = calls[np.unique(outer, return_index=True)[1]]
    gone = intervals.Intervals(around.start - program.start_ns, around.end - program.start_ns)
    length = program.call_end_ns - program.call_start_ns
    inside = intervals.covered_ns(gone, program.call_start_ns, program.call_end_ns)
    whole = np.flatnonzero((inside == length) & (length > 0))
    without = Edit(removed_host=gone, removed_calls=whole)
    shaped = _shaped_by_values(case, calls)
    return Change(
        "waits replaced by one launch each",
        replace(without, added_host_ns=dict.fromkeys(first.tolist(), usual)),
        others=(
            without,
            Edit(unwaited_calls=calls, added_host_ns=dict.fromkeys(first.tolist(), _MOST_LAUNCHES * usual)),
        ),
        doubt="what follows has as many rows as the values decide, and without the wait it may have more"
        if shaped
        else "",
    )


def _shaped_by_values(case: Case, calls: NDArray[np.int64]) -> bool:
    """Whether most of the waiting is for the size of a result, such as that of nonzero or of a mask as index."""
    host = HostSpans(case.trace)
    ids = case.program.call_span[calls].astype(np.int64)
    within = host.nearest(ids, host.named(_SHAPED, "op")) != NOBODY
    wait = (case.program.call_end_ns - case.program.call_start_ns)[calls]
    return bool(wait[within].sum() > 0.5 * wait.sum())
