"""Launches captured in CUDA graphs: which calls a graph would replay, what prevents it, and the edit."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device.device_time import device_work, names_like
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.concepts.names.named_spans import ids_like, rows_of
from foretrace.predict import waits
from foretrace.predict.calibrate import dense_ns
from foretrace.predict.costs import graph
from foretrace.predict.edits import Edit
from foretrace.predict.numbers import Calls
from foretrace.predict.program import BLOCKING_COPY, SYNC, Program
from foretrace.predict.tasks import task_table
from foretrace.runtime_names import Effect, calls_that
from foretrace.sourced import JUDGEMENT, Count, Share
from foretrace.trace import Trace

# NCCL's and symmetric memory's kernels can be captured (NCCL User Guide, "Using NCCL with CUDA Graphs"; since NCCL 2.9.6).
# What runs on the host's threads cannot, nor what pickles objects there and sends their sizes first.
_ON_HOST = r"^(?:gloo|mpi|ucc):"
_OF_OBJECTS = r": (?:all_gather|gather|broadcast|scatter|send|recv)_object(?:_list)?\b"
COLLECTIVES = "every rank has to capture the same collectives, and how long each then waits for the others is not recorded"
WAITS = "the host waits for the device within the step"
LEAST_PER_GRAPH = Count(
    40, "launches of a graph, on average: what they take the host is ten times its replay", JUDGEMENT
)
NEAR_END = Share(
    0.1,
    "the launches of a step, before or behind a wait: what reads a result, or brings an input",
    JUDGEMENT,
)
LEAST_ALIKE = Share(
    2 / 3, "the steps: one that writes a log, or was the first, does not stand for the program", JUDGEMENT
)
LEAST_SHARED = Share(
    0.95,
    "what a step launches, launched by the next one too: what lies around the model, such as a sampler's arithmetic, may differ",
    "a U-Net that is called four times for a picture: 0.995; a GPT-2 whose cache grows: 0.86",
)


def loading_ns(trace: Trace, program: Program) -> NDArray[np.int64]:
    """For each call, how much of the recorded gap before it went to data loading."""
    loading = trace.spans[ids_like(trace, ("op", "annotation"), runtime_calls.DATA_LOADING)]
    start = (loading["start_ns"] - program.start_ns).to_numpy()
    spent = intervals.union(start, start + loading["dur_ns"].fill_null(0).to_numpy())
    begin = np.concatenate(([0], np.maximum.accumulate(program.call_end_ns)[:-1]))
    return intervals.covered_ns(spent, np.minimum(begin, program.call_start_ns), program.call_start_ns)


def capturable(trace: Trace, program: Program) -> NDArray[np.bool_]:
    """Calls that a graph would replay: not copies between host and device, nor what follows data loading."""
    loads = loading_ns(trace, program) > 0
    outside = trace.copies.filter(pl.col("direction").is_in(("HtoD", "DtoH")))["span_id"]
    copies = np.zeros(len(program.kind), bool)
    tasks = task_table(trace, program)
    copies[tasks.filter(pl.col("id").is_in(outside.implode()))["call"].to_numpy()] = True
    captured: NDArray[np.bool_] = ~(loads | copies | np.isin(program.kind, (SYNC, BLOCKING_COPY)))
    return captured


def obstacle(trace: Trace, program: Program) -> str | None:
    """Why the steps cannot be captured as they are; None where nothing does."""
    if reason := preventing(trace, program):
        return reason
    if _waits_inside(trace, program):
        return WAITS
    return _changing(trace, program)


def between_waits(trace: Trace, program: Program, captured: NDArray[np.bool_]) -> str | None:
    """Why not even what lies between the host's waits can be captured, a graph for each piece."""
    if reason := preventing(trace, program):
        return reason
    if not _waits_inside(trace, program):
        return None
    if reason := _shaped(trace, program):
        return reason
    launches = int((captured & (np.diff(program.task_from) > 0)).sum())
    pieces = len(edit(program, captured).added_host_ns)
    return WAITS if launches < LEAST_PER_GRAPH * pieces else None


def doubt(trace: Trace, program: Program) -> str:
    """Why graphs of the recorded launches may not do what the program does; empty where they do."""
    if _waits_inside(trace, program):
        return f"{WAITS}, and what it reads may decide what it launches"
    return _changing(trace, program) or (COLLECTIVES if communicates(trace, program) else "")


def communicates(trace: Trace, program: Program) -> bool:
    """Whether collectives run on the device within the steps."""
    work = device_work(trace).filter(pl.col("communication"))["id"].to_numpy()
    return bool(np.isin(program.task_span, work).any())


def _changing(trace: Trace, program: Program) -> str | None:
    """Why it is not known that the steps are alike; None where they are."""
    if len(trace.steps) < 2:
        return "fewer than two steps are marked, so it is not known that they repeat"
    return "the steps do not launch the same kernels in the same shapes" if differ(trace, program) else None


def differ(trace: Trace, program: Program) -> bool:
    """Whether several steps are marked and too few of them are alike."""
    return len(trace.steps) > 1 and not _repeats(trace, program)


def shapes_differ(trace: Trace, program: Program) -> bool:
    """Whether several steps are marked and too few of them launch nearly the same, in the same shapes, as the one before."""
    if not differ(trace, program):
        return False
    counted = _launched(trace, program).group_by("step", "launched").len()
    total = counted.group_by("step").agg(pl.col("len").sum().alias("total"))
    before = counted.with_columns(pl.col("step") + 1)
    both = counted.join(before, on=("step", "launched"), suffix="_before")
    shared = both.group_by("step").agg(pl.min_horizontal("len", "len_before").sum().alias("shared"))
    longest = total.join(total.with_columns(pl.col("step") + 1), on="step", suffix="_before").select(
        "step", longest=pl.max_horizontal("total", "total_before")
    )
    alike = longest.join(shared, on="step").filter(pl.col("shared") >= LEAST_SHARED * pl.col("longest"))
    return len(alike) < LEAST_ALIKE * len(longest)


def preventing(trace: Trace, program: Program) -> str | None:
    """What no graph can hold."""
    names = trace.spans["name"].gather(program.call_span)
    if calls_that(names, Effect.GRAPH).any():
        return "the program uses one already"
    later = names.filter(pl.Series(program.step > 0))
    in_stream = calls_that(later, Effect.STREAM_ORDERED)
    if (calls_that(later, Effect.ALLOCATE, Effect.FREE) & ~in_stream).any():
        return "memory is allocated from the driver within the step"
    if _named(trace, program, _ON_HOST):
        return "its collectives run on the host (gloo, MPI or UCC)"
    if _named(trace, program, _OF_OBJECTS):
        return "it sends Python objects to other ranks, which the host pickles"
    return None


def _named(trace: Trace, program: Program, pattern: str) -> bool:
    """Whether an annotation or a Python function within the program has such a name."""
    within = pl.col("start_ns").is_between(program.start_ns, program.start_ns + program.measured_host_ns)
    spans = trace.spans.filter(pl.col("kind").is_in(("annotation", "python")) & within)
    return bool(spans["name"].is_in(names_like(spans, pattern)).any())


def _shaped(trace: Trace, program: Program) -> str | None:
    """Whether the host waits for sizes that the values decide: of a result, or of a collective's parts."""
    calls, host = waits.waiting_calls(trace, program), runtime_calls.HostSpans(trace)
    if waits.for_sizes(host, program, calls).any():
        return "the host waits within the step for how large a result is"
    if waits.for_splits(trace, host, program, calls).any():
        return "the host reads within the step how a collective splits its tensor"
    return None


def edit(program: Program, captured: NDArray[np.bool_]) -> Edit:
    """One graph for each run of captured calls that starts anything, within one step."""
    pure = program.gap_ns > dense_ns(program)
    opens = captured & pure
    opens[1:] |= captured[1:] & ~captured[:-1]
    first = program.step_calls[program.step_calls < len(opens)]
    opens[first] |= captured[first]
    piece = np.cumsum(opens)
    starts = np.diff(program.task_from) > 0
    working = np.unique(piece[captured & starts])
    heads = {int(call): int(graph.LAUNCH_NS) for call in np.flatnonzero(opens) if piece[call] in working}
    return Edit(captured_calls=Calls(np.flatnonzero(captured)), added_host_ns=heads)


def _waits_inside(trace: Trace, program: Program) -> bool:
    """Whether the host waits for the device between two launches of one step; near its ends a wait is outside the graph."""
    launches = np.flatnonzero(capturable(trace, program) & (np.diff(program.task_from) > 0))
    waiting = waits.waiting_calls(trace, program)
    host = runtime_calls.HostSpans(trace)
    for_sizes = waits.for_sizes(host, program, waiting) | waits.for_splits(trace, host, program, waiting)
    return splits(program, launches, waiting[~for_sizes]) or splits(
        program, launches, waiting[for_sizes], near_end=0.0
    )


def splits(
    program: Program, launches: NDArray[np.int64], waiting: NDArray[np.int64], near_end: float = NEAR_END
) -> bool:
    """Whether one of the waiting calls lies in the midst of a step's launches, not near an end of them."""
    of_step = program.step[launches]
    begin, end = (np.searchsorted(of_step, program.step[waiting], side) for side in ("left", "right"))
    before = np.clip(np.searchsorted(launches, waiting), begin, end)
    return bool((np.minimum(before - begin, end - before) > near_end * (end - begin)).any())


def _launched(trace: Trace, program: Program) -> pl.DataFrame:
    """Each launch's step, and one number for its kernel, its grid and the shapes of its operator."""
    tasks = task_table(trace, program)
    grids = trace.kernels.select(
        pl.col("grid_x", "grid_y", "grid_z").gather(rows_of(trace, "kernels", tasks["id"]))
    )
    shapes = trace.ops.select(pl.col("shapes").gather(rows_of(trace, "ops", tasks["op_id"])))
    rows = tasks.select("name", "kind").hstack(grids).hstack(shapes).hash_rows()
    return tasks.select("step", launched=rows)


def _repeats(trace: Trace, program: Program) -> bool:
    """Whether most steps launch the same kernels with the same grids, from operators on the same shapes."""
    of_step = _launched(trace, program).group_by("step", maintain_order=True).agg("launched")
    # Each step as one text: comparing every step with every other took minutes where there are many.
    alike = max(
        Counter(launched.to_numpy().tobytes() for launched in of_step["launched"]).values(), default=0
    )
    return alike >= max(LEAST_ALIKE * len(trace.steps), 2)
