"""The host does something long that calls neither operators nor the runtime, and the GPU has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, Place, rule
from foretrace.intervals import Intervals
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_NS, _LEAST_SHARE = 300_000, 0.05  # of one gap, and of the step


@rule
def host_stall(case: Case) -> Iterator[Finding]:
    """A stretch of plain Python, sleep or input and output on the main thread, in every step.

    What it does
    Looks for stretches of at least 300 µs in which no operator or runtime call begins or ends, outside data
    loaders, that take at least 5 % of a step together.

    Why it matters
    Nothing is launched meanwhile. Once the GPU has finished what is queued, it waits.

    Use instead
    Do it in another thread or process, less often, or after the step's launches.
    """
    loading = _loading(case)
    gaps = [(start, end) for start, end in _quiet(case) if not _covered(loading, start, end)]
    marks = [step.start_ns - case.program.start_ns for step in case.trace.steps]
    stalled = np.unique(np.searchsorted(marks, [start for start, _ in gaps], "right"))
    if 2 * len(stalled) <= len(marks):  # a stall of the program is there in most steps; once is a hiccup
        return
    total = sum(end - start for start, end in gaps)
    if not gaps or total / case.step_count < _LEAST_SHARE * case.step_ns:
        return
    start, end = np.array(gaps, np.int64).T
    where = _frames(case, gaps)
    yield Finding(
        rule="host-stall",
        says=f"The host spends {total / case.step_count / 1e6:.3g} ms of a step on something that is neither an "
        "operator nor a launch.",
        why="No work reaches the GPU meanwhile.",
        fix=Fix(
            "Move it to another thread or process, do it less often, or after the step's launches.",
            "threading.Thread(target=work, daemon=True).start()",
        ),
        evidence={"gaps_per_step_count": len(gaps) / case.step_count, "stalled_ns": total // case.step_count},
        where=where,
        change=Change("the stall removed", Edit(removed_host=Intervals(start, end))),
        unless="the time is needed where it is, for instance to wait for another process.",
    )


def _quiet(case: Case) -> list[tuple[int, int]]:
    """Stretches of the host's line, within steps, in which no operator or call begins or ends."""
    program = case.program
    tracks = case.trace.spans["track_id"].gather(program.call_span).unique().implode()
    events = case.trace.spans.filter(
        pl.col("kind").is_in(("op", "runtime"))
        & pl.col("track_id").is_in(tracks)
        & pl.col("dur_ns").is_not_null()
    )
    start = events["start_ns"].to_numpy()
    marks = [edge for step in case.trace.steps for edge in (step.start_ns, step.end_ns)]
    edges = np.sort(np.concatenate((start, start + events["dur_ns"].to_numpy(), np.array(marks, np.int64))))
    edges -= program.start_ns
    long = np.flatnonzero(np.diff(edges) >= _LEAST_NS)
    outside = {
        step.end_ns - program.start_ns for step in case.trace.steps
    }  # from one step's end to the next one's start is the profiler's
    reach = np.maximum.accumulate(program.call_end_ns)
    begin = np.concatenate(([0], reach))
    ends = np.concatenate((program.call_start_ns, [program.measured_host_ns]))
    found = []
    for at in long.tolist():
        low, high = int(edges[at]), int(edges[at + 1])
        call = int(np.searchsorted(program.call_start_ns, low, "right"))
        inside = begin[call] <= low and high <= ends[call]
        if inside and low not in outside:
            found.append((low, high))
    return found


def _loading(case: Case) -> list[tuple[int, int]]:
    spans = case.trace.spans.filter(
        pl.col("kind").is_in(("op", "annotation"))
        & pl.col("name").cast(pl.String).str.contains(r"^enumerate\(Data(Loader|Pipe)\)#")
    )
    start = (spans["start_ns"] - case.program.start_ns).to_list()
    return [(at, at + dur) for at, dur in zip(start, spans["dur_ns"].fill_null(0), strict=True)]


def _covered(ranges: list[tuple[int, int]], start: int, end: int) -> bool:
    return any(low < end and start < high for low, high in ranges)


def _frames(case: Case, gaps: list[tuple[int, int]]) -> tuple[Place, ...]:
    """The user's innermost Python frame in the middle of the longest gaps."""
    python = case.trace.spans.filter(pl.col("kind") == "python").join(
        case.trace.python.select(pl.col("span_id").alias("id"), "stack_id"), on="id", maintain_order="left"
    )
    places: dict[Place, None] = {}
    for start, end in sorted(gaps, key=lambda gap: gap[0] - gap[1])[:6]:
        middle = (start + end) // 2 + case.program.start_ns
        around = python.filter(
            (pl.col("start_ns") <= middle) & (pl.col("start_ns") + pl.col("dur_ns") > middle)
        ).sort("depth")
        if not around.is_empty() and around["stack_id"][-1] is not None:
            places[case.user_frame(around["stack_id"][-1])] = None
    return tuple(places)
