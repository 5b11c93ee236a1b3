"""The program waits for its input."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.diagnose.patterns import host_work
from foretrace.diagnose.rule import Healthy, rule
from foretrace.intervals import Intervals
from foretrace.predict import edits
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.predict.steady import step_ns
from foretrace.units import format_value

_LEAST_SHARE = 0.05  # of the step
# How many workers a program would be given is not recorded: what is common, and a middle that does not promise much.
_FEWEST, _USUAL, _MOST = 4, 6, 12
# In the main process operators of the loader use all cores; a worker has one thread. How much longer they take
# there is not recorded: twice, at worst three times, at best not at all.
_INTRA_USUAL, _INTRA_MOST = 2.0, 3.0
_MOSTLY = 0.5
_WHY = "Nothing is launched until the batch is there."
_LOADER = (
    "loader = DataLoader(dataset, num_workers=8, persistent_workers=True, pin_memory=True, prefetch_factor=4)"
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    wait = values.get("wait_per_step_ns")
    if not values.get("calls_count"):
        return "no DataLoader was waited for"
    return None if wait is None else f"{format_value('_ns', wait)} of waiting a step"


@rule(
    title="The GPU waits for its input",
    topic="Input",
    see="input",
    headline=lambda e: f"{e['wait_pct']:.0f} % of every step is spent waiting for data",
    healthy=Healthy("input", _no_issue),
)
def input_bound(case: Case) -> Iterator[Finding]:
    """Steps wait for their input, from a DataLoader or made in line, while the GPU has nothing to do.

    What it does
    Looks for waits for a DataLoader or DataPipe of at least 5 % of the step. Loading in the main process is
    replayed in workers: a step then takes the longer of the rest and load · t / W, for W = 6 workers (the range
    is from 4 to 12, for the recording does not say how many there could be), where t is 1 for Python and 2
    (1 to 3) for the time in torch's own operators, which have all cores in the main process and one in a worker.
    Where workers load already, twice as many are tried: a step then takes the longer of the rest and half of what it
    takes now. The range includes that they do not help, and that nothing is waited for any more.
    Beside a loader or without one, it looks for stretches of Python or operators on the host, as host-stall does, right before a copy
    to the device, unless they begin with results of the same step. They are replayed in workers as above. Where most of
    that time is Python, the range includes a thread, which runs only while the main thread waits for the device. Where
    steps bring results to the host, nothing is promised: the next input may depend on them.

    Why it matters
    Nothing is launched until the batch is there.

    Use instead
    DataLoader(..., num_workers=8, persistent_workers=True, pin_memory=True), or cheaper preparation.
    """
    waits = _waits(case)
    start = (waits["start_ns"] - case.program.start_ns).to_numpy()
    host = intervals.clip(
        intervals.union(start, start + waits["dur_ns"].to_numpy()), 0, case.program.measured_host_ns
    )
    share = host.total_ns / max(case.program.measured_host_ns, 1)
    yield from _made_in_line(case)
    if share < _LEAST_SHARE:
        return
    workers = waits["name"].cast(pl.String).str.contains("MultiProcessing").any()
    change = _more_workers(case, host) if workers else _in_workers(case, host)
    loader = "its workers are too slow" if workers else "the main process loads it"
    yield Finding(
        says=f"{100 * share:.0f} % of the host's time, {host.total_ns / case.step_count / 1e6:.3g} ms a step, is spent "
        f"waiting for the DataLoader: {loader}.",
        why=_WHY,
        fix=Fix(
            "Load in worker processes, ahead of the step."
            if not workers
            else "Use more workers, or prepare less.",
            _LOADER,
        ),
        evidence={
            "wait_ns": host.total_ns // case.step_count,
            "wait_pct": 100 * share,
            "loader": "by workers" if workers else "in the main process",
            "workers_assumed": f"{_FEWEST} to {_MOST}",
            "spans": waits["id"].head(5).to_list(),
        },
        where=_callers(case, waits),
        change=change,
        unless="the machine has fewer cores than workers, or what limits loading is the disk.",
    )


def _made_in_line(case: Case) -> Iterator[Finding]:
    """Input that the program makes on the host right before it is copied."""
    work = [each for each in host_work.host_work(case) if each.feeds and not each.answers]
    host = host_work.spent(work)
    share = host.total_ns / case.step_count / case.step_ns
    if not host_work.recurs(case, work) or share < _LEAST_SHARE:
        return
    operators = sum(each.operators_ns for each in work) / host.total_ns
    yield Finding(
        says=f"{host.total_ns / case.step_count / 1e6:.3g} ms a step go by on the host before what it has made is copied "
        "to the device.",
        why=_WHY,
        fix=Fix(
            "Prepare the next batch in worker processes while the GPU computes; a thread shares Python with the step.",
            _LOADER,
        ),
        evidence={
            "wait_ns": host.total_ns // case.step_count,
            "wait_pct": 100 * share,
            "loader": "in the step",
            "operators_pct": 100 * operators,
            "spans": _copied_by(case, host),
        },
        change=_prepared_ahead(case, host, operators),
        unless="what is prepared depends on what the step before computed.",
    )


def _copied_by(case: Case, host: Intervals) -> list[int]:
    """The first calls after some work of the host."""
    calls = np.searchsorted(case.program.call_start_ns, host.end[:5]) % len(case.program.call_span)
    spans: list[int] = case.program.call_span[calls].tolist()
    return spans


def _waits(case: Case) -> pl.DataFrame:
    spans = case.trace.spans.filter(pl.col("kind").is_in(("op", "annotation")) & (pl.col("dur_ns") > 0))
    if spans.is_empty():
        case.trace.require("ops", "no operators recorded; record with ProfilerActivity.CPU")
    tracks = case.trace.spans["track_id"].gather(case.program.call_span).unique().implode()
    return spans.filter(
        pl.col("name").cast(pl.String).str.contains(runtime_calls.DATA_LOADING)
        & pl.col("track_id").is_in(tracks)
    )


def _in_workers(case: Case, host: Intervals) -> Change:
    """The wait gone, and what the workers cannot deliver in time added to every step."""
    operators = _operators_share(case, host)
    return Change(
        f"data loaded by {_USUAL} workers ({_FEWEST} to {_MOST})",
        _by_workers(case, host, operators, _USUAL, _INTRA_USUAL),
        others=_fewest_and_most(case, host, operators),
    )


def _by_workers(case: Case, host: Intervals, operators: float, workers: int, intra: float) -> Edit:
    return host_work.beside(case, host, (1 + (intra - 1) * operators) / workers)


def _fewest_and_most(case: Case, host: Intervals, operators: float) -> tuple[Edit, Edit]:
    return (
        _by_workers(case, host, operators, _FEWEST, _INTRA_MOST),
        _by_workers(case, host, operators, _MOST, 1.0),
    )


def _prepared_ahead(case: Case, host: Intervals, operators: float) -> Change:
    """Processes prepare beside the step; where it is Python that works, a thread at worst has to wait its turn."""
    back = case.trace.copies.filter(
        (pl.col("direction") == "DtoH") & (pl.col("size_bytes") > host_work.NUMBER_BYTES)
    )
    ends = _fewest_and_most(case, host, operators)
    return Change(
        f"input prepared by {_USUAL} workers ({_FEWEST} to {_MOST})",
        _by_workers(case, host, operators, _USUAL, _INTRA_USUAL),
        others=ends if operators >= _MOSTLY else (*ends, host_work.in_thread(case, host)),
        doubt="the next input may depend on the results that come to the host" if back.height else "",
    )


def _more_workers(case: Case, host: Intervals) -> Change:
    """Workers who are waited for set the pace: twice as many halve the step, down to the rest, if there are cores."""
    without = step_ns(edits.apply(case.program, Edit(removed_host=host)))
    late = max(step_ns(case.program) / 2 - without, 0)
    calls = [int(call) for call in case.program.step_calls if call < len(case.program.kind)]
    twice = Edit(removed_host=host, added_host_ns=dict.fromkeys(calls, round(late)))
    return Change("twice the workers", twice, others=(Edit(), Edit(removed_host=host)))


def _operators_share(case: Case, host: Intervals) -> float:
    """Of the time of loading, the part in torch's operators."""
    ops = case.trace.spans.filter((pl.col("kind") == "op") & (pl.col("dur_ns") > 0))
    ops = ops.filter(~pl.col("name").cast(pl.String).str.contains(runtime_calls.DATA_LOADING))
    tracks = case.trace.spans["track_id"].gather(case.program.call_span).unique().implode()
    ops = ops.filter(pl.col("track_id").is_in(tracks))
    start = (ops["start_ns"] - case.program.start_ns).to_numpy()
    covered = intervals.union(start, start + ops["dur_ns"].to_numpy())
    return intervals.intersect(host, covered).total_ns / max(host.total_ns, 1)


def _callers(case: Case, waits: pl.DataFrame) -> tuple[Place, ...]:
    """The user's frame around the first wait; the loader's name where no stack was recorded."""
    return (case.frame_at(int(waits["start_ns"][0])) or Place(None, None, str(waits["name"][0])),)
