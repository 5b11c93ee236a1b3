"""The critical path: the chain of host work, launches, GPU work and waits that determines how long a step takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host import dependency_graph
from foretrace.analyze.concepts.host.dependency_graph import (
    CLASSES,
    HOST,
    INPUT,
    NOBODY,
    Array,
    DependencyGraph,
)
from foretrace.analyze.concepts.host.runtime_calls import DATA_LOADING
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import measured_window, step_windows
from foretrace.errors import MissingDataError, unknown
from foretrace.intervals import Intervals, Times
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_TOGETHER = "all"
_DISTURBED = 1.2  # times the median, or less than its inverse: such a step is named


@dataclass(frozen=True)
class Stretch:
    """A stretch of time, and where the walk through it begins: a node of the graph, or else the host."""

    name: str
    start_ns: int
    end_ns: int
    last: int


@dataclass(frozen=True)
class Path:
    """The segments of a path, latest first; together they cover its stretch, each moment once."""

    start_ns: Times
    end_ns: Times
    kind: Array  # index into CLASSES
    span_id: Array  # the span of each segment; NOBODY for host work


@analysis(
    Subject.LIMIT,
    denominators={
        **{f"{name}_pct": "of length_ns; the eight parts sum to it" for name in CLASSES},
        "total_pct": "of length_ns of the last row",
    },
)
def critical_path(trace: Trace, *, by: Literal["step", "name"] = "step", annotation: str = "") -> Result:
    """The critical path of each step: its shares of host, launch, kernel, sync and copy time.

    Definition
        The path is followed backwards from the last activity of a step (GPU work it launched, or the host). GPU work
        leads to what it waited for: the previous work on its stream, its launch call, or work on another stream that
        it had to wait for. A blocking call leads to the GPU work it waited for, and host work to the previous
        blocking call. Speeding up anything off this path does not make the step shorter. The rules are HTA's, with
        its gaps filled; `docs/peers.md` lists the differences.

    Columns
        length_ns: duration of the step, as in `steps`; the last row runs from the start of the first to the end of
        the last step.
        host: the host working, including runtime calls, outside the classes below.
        input: the host in a DataLoader's next().
        launch: from the start of a launch call to the start of its work, where the work waited for nothing else.
        kernel: kernels and memsets.
        copy: copies.
        communication: kernels of collectives.
        sync: from the end of what a blocking call waited for until it returned; all of a call that waited for nothing.
        gap: between GPU work and the next work that was already queued.
        Each *_pct is a share of length_ns; the eight parts sum to length_ns exactly.
        With --by name: the spans on the path of the last row, by their time on it.

    Headline and values
        Those of the step of median length, which one disturbed step does not move. Steps that take over 1.2 times as long,
        or less than the inverse of that, are named.

    Options
        annotation: analyse the ranges of this annotation instead of the steps, each up to the end of the GPU work
        launched in it.

    What it cannot tell
        Which event a stream waits for (rarely recorded): the last work to end on another stream is taken instead.
        Waits for other ranks: they are inside communication kernels. A launch that waits because the queue is full
        counts as host. Dependencies between host threads that run in parallel.
    """
    if not trace.has_device:
        raise MissingDataError(f"{trace.path.name}: no GPU work recorded; record with ProfilerActivity.CUDA")
    if trace.device_spans["launch_id"].null_count() == trace.device_spans.height:
        raise MissingDataError(
            f"{trace.path.name}: no GPU work is linked to its launch; record with ProfilerActivity.CPU too"
        )
    graph = dependency_graph.build(trace)
    stretches = _annotated(trace, annotation) if annotation else _steps(trace)
    loading = _loading(trace)
    paths = [walk(graph, stretch, loading) for stretch in stretches]
    shares = _by_stretch(stretches, paths)
    middle = _median_row(shares)
    values: dict[str, Value] = shares.row(middle, named=True)
    together_ns = shares["length_ns"][-1]
    return Result(
        says=_says(values, len(paths[middle].kind), shares.height - 1),
        table=shares if by == "step" else _by_name(trace, paths[-1], together_ns),
        values=values,
        notes=(*_disturbed(shares, values), *_notes(trace, stretches[-1])),
    )


def _median_row(shares: pl.DataFrame) -> int:
    """The row of the step of median length; without steps, the only one."""
    steps = shares.with_row_index("row").head(-1).sort("length_ns", maintain_order=True)
    return int(steps["row"][(steps.height - 1) // 2]) if steps.height else 0


def _disturbed(shares: pl.DataFrame, median: dict[str, Value]) -> tuple[str, ...]:
    """Steps that are not like the median one."""
    usual = float(median["length_ns"] or 0)
    odd = [
        f"{name} ({format_value('_ns', length)})"
        for name, length in shares.head(-1).select("window", "length_ns").iter_rows()
        if length > _DISTURBED * usual or _DISTURBED * length < usual
    ]
    if not odd:
        return ()
    shown = ", ".join(odd[:4]) + (f" and {len(odd) - 4} more" if len(odd) > 4 else "")
    return (f"unlike the median step of {format_value('_ns', usual)}: {shown}",)


def walk(graph: DependencyGraph, stretch: Stretch, loading: Intervals = intervals.EMPTY) -> Path:
    """The path through a stretch, backwards from its end."""
    node, at = stretch.last, stretch.end_ns
    pieces: list[tuple[Any, Any, Any, Any]] = []
    if node == NOBODY:
        node, at = graph.last_return(0, stretch.end_ns)
        pieces.append(([max(at, stretch.start_ns)], [stretch.end_ns], [HOST], [NOBODY]))
    nodes = _chain(graph, node, stretch.start_ns)
    entered = np.append(at, graph.enter[nodes[:-1]]) if len(nodes) else np.empty(0, np.int64)
    own, link, enter = graph.own_from[nodes], graph.link_from[nodes], graph.enter[nodes]
    spans = graph.span_id[nodes].astype(np.int64)
    nothing = np.full(len(nodes), NOBODY)
    # Three segments per node, in the order in which the walk meets them.
    start = np.stack((own, link, enter), axis=1).ravel()
    end = np.stack((entered, own, link), axis=1).ravel()
    kinds = (graph.own_class[nodes], graph.link_class[nodes], np.full(len(nodes), HOST))
    kind = np.stack(kinds, axis=1).ravel()
    span = np.stack((spans, spans, nothing), axis=1).ravel()
    pieces.append((start, end, kind, span))
    start, end, kind, span = (np.concatenate(columns) for columns in zip(*pieces, strict=True))
    start, end = np.maximum(start, stretch.start_ns), np.minimum(end, stretch.end_ns)
    sound = end > start
    return _with_input(Path(start[sound], end[sound], kind[sound], span[sound]), loading)


def _chain(graph: DependencyGraph, node: int, until_ns: int) -> Array:
    """The nodes that a walk meets down to a time."""
    following, enter = graph.steps_back
    chain = []
    while node != NOBODY:
        chain.append(node)
        node = following[node] if enter[node] > until_ns else NOBODY
    return np.array(chain, np.int64)


def _with_input(path: Path, loading: Intervals) -> Path:
    """The path with the host's time in a DataLoader as a separate class."""
    host = np.flatnonzero(path.kind == HOST)[::-1]  # backwards, so in order of time
    inside = intervals.intersect(Intervals(path.start_ns[host], path.end_ns[host]), loading)
    if not len(inside.start):
        return path
    outside = intervals.subtract(Intervals(path.start_ns[host], path.end_ns[host]), loading)
    rest = path.kind != HOST
    start = np.concatenate((path.start_ns[rest], inside.start, outside.start))
    order = np.argsort(-start, kind="stable")
    parts = (
        (path.end_ns[rest], inside.end, outside.end),
        (path.kind[rest], np.full(len(inside.start), INPUT), np.full(len(outside.start), HOST)),
        (path.span_id[rest], np.full(len(inside.start) + len(outside.start), NOBODY)),
    )
    end, kind, span = (np.concatenate(part)[order] for part in parts)
    return Path(start[order], end, kind, span)


def _loading(trace: Trace) -> Intervals:
    """When the host waited for a DataLoader."""
    marked = (
        trace.spans.lazy()
        .filter(pl.col("kind").is_in(("annotation", "op")))
        .select("name", "start_ns", "dur_ns")
    )
    notes = marked.collect()
    spans = notes.filter(pl.col("name").is_in(device_time.names_like(notes, DATA_LOADING)))
    return device_time.covered(spans.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)))


def _steps(trace: Trace) -> list[Stretch]:
    """The whole steps, then all of them together; without steps, the recording."""
    windows = step_windows(trace)
    work = _launched(trace)
    last = {
        step: (end, row)
        for step, end, row in work.drop_nulls("step")
        .sort("end_ns", maintain_order=True)
        .group_by("step")
        .agg(pl.col("end_ns", "row").last())
        .iter_rows()
    }
    stretches = []
    for window in windows:
        if window.whole and window.wall_ns > 0:
            end, row = last.get(window.number, (None, NOBODY))
            node = row if end == window.end_ns else NOBODY
            stretches.append(Stretch(f"step {window.number}", window.start_ns, window.end_ns, node))
    together = measured_window(trace, windows)
    return [*stretches, _stretch(_TOGETHER, together.start_ns, together.end_ns, work)]


def _launched(trace: Trace) -> pl.DataFrame:
    """Device work with a launch: its row among the nodes, its step, its launch and its end."""
    rows = trace.device_spans.with_row_index("row").select("row", "step", "end_ns", "launch_id")
    return rows.drop_nulls("launch_id")


def _stretch(name: str, start_ns: int, end_ns: int, work: pl.DataFrame) -> Stretch:
    """A stretch whose walk begins with the GPU work that ends exactly with it, if there is any."""
    last = work.filter(pl.col("end_ns") == end_ns)["row"]
    return Stretch(name, start_ns, end_ns, int(last[-1]) if len(last) else NOBODY)


def _annotated(trace: Trace, annotation: str) -> list[Stretch]:
    """Each instance of an annotation on the host, and all of them together."""
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    spans = trace.spans.filter((pl.col("kind") == "annotation") & pl.col("dur_ns").is_not_null())
    spans = spans.filter(pl.col("name").cast(pl.String) == annotation)
    spans = spans.filter(~pl.col("track_id").is_in(on_device.implode()))
    if spans.is_empty():
        others = trace.spans.filter(pl.col("kind") == "annotation")["name"].unique().cast(pl.String).sort()
        raise unknown(
            f"no annotation named {annotation!r} in {trace.path.name}", annotation, others, listed=""
        )
    calls = trace.spans.select(launch_id="id", called_ns="start_ns")
    work = _launched(trace).join(calls, on="launch_id", how="left", maintain_order="left")
    stretches = []
    for number, (start, dur) in enumerate(spans.select("start_ns", "dur_ns").iter_rows()):
        launched = work.filter(pl.col("called_ns").is_between(start, start + dur))
        end = max(start + dur, int(launched["end_ns"].max() or 0))  # type: ignore[arg-type]
        if end > start:
            stretches.append(_stretch(f"{annotation} {number}", start, end, launched))
    start = min(stretch.start_ns for stretch in stretches)
    end = max(stretch.end_ns for stretch in stretches)
    return [*stretches, _stretch(_TOGETHER, start, end, work)]


def _by_stretch(stretches: list[Stretch], paths: list[Path]) -> pl.DataFrame:
    """One row per stretch: its length, the parts of its path, and their shares."""
    rows = []
    for stretch, path in zip(stretches, paths, strict=True):
        length = stretch.end_ns - stretch.start_ns
        parts = np.zeros(len(CLASSES), np.int64)
        np.add.at(parts, path.kind, path.end_ns - path.start_ns)
        shares = [100 * part / length if length else None for part in parts.tolist()]
        rows.append((stretch.name, length, *shares, *parts.tolist()))
    schema: dict[str, type[pl.DataType]] = {"window": pl.String, "length_ns": pl.Int64}
    schema |= {f"{name}_pct": pl.Float64 for name in CLASSES} | {f"{name}_ns": pl.Int64 for name in CLASSES}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _by_name(trace: Trace, path: Path, length_ns: Value) -> pl.DataFrame:
    """What is on the path, by class and name, the longest first."""
    pieces = pl.DataFrame(
        {
            "class": pl.Series(path.kind).replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String),
            "span": pl.Series(path.span_id, dtype=pl.Int64).replace(NOBODY, None),
            "length": path.end_ns - path.start_ns,
        }
    )
    named = pieces.with_columns(name=trace.spans["name"].gather(pieces["span"]))
    table = named.group_by("class", "name", maintain_order=True).agg(
        pieces_count=pl.len(), total_ns=pl.col("length").sum()
    )
    share = 100 * pl.col("total_ns") / length_ns if length_ns else pl.lit(None, pl.Float64)
    return table.with_columns(total_pct=share).sort("total_ns", descending=True, maintain_order=True)


def _says(values: dict[str, Value], count: int, steps: int) -> str:
    shares = {name: float(values[f"{name}_pct"] or 0) for name in CLASSES}
    first, second = sorted(shares, key=lambda name: -shares[name])[:2]
    length = format_value("_ns", values["length_ns"])
    of = f"{values['window']}, the median of {steps}, {length}" if steps > 1 else length
    return (
        f"{of}: the critical path is {shares[first]:.1f} % {first} and {shares[second]:.1f} % {second} time "
        f"({counted(count, 'segment')})"
    )


def _notes(trace: Trace, together: Stretch) -> tuple[str, ...]:
    work = device_time.device_work(trace)
    inside = work.filter(
        pl.col("orphan") & (pl.col("end_ns") > together.start_ns) & (pl.col("start_ns") < together.end_ns)
    )
    if inside.is_empty():
        return ()
    return (f"{device_time.queued_before(inside.height)}: on the path only where later work waited for them",)
