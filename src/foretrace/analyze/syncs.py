"""Syncs: calls in which the host waited for the GPU, with the operator and source line of each."""

from __future__ import annotations

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.host.runtime_calls import NOBODY, Flags, HostSpans, Ids
from foretrace.analyze.concepts.trees.source_places import Places
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import step_windows
from foretrace.errors import MissingDataError
from foretrace.runtime_names import Effect
from foretrace.trace import Trace
from foretrace.units import counted, format_value, shorten

# Why an operator around the call makes the host wait; the first pattern that matches counts.
_REASONS = (
    ("boolean mask", r"^aten::(?:index|index_put_?|_index_put_impl_|masked_select)$"),
    ("nonzero", r"^aten::(?:nonzero|nonzero_numpy|argwhere|where|unique\w*|_unique2?|repeat_interleave)$"),
    ("item", r"^aten::(?:item|_local_scalar_dense|is_nonzero|equal|allclose)$"),
)


@analysis(
    Subject.HOST,
    keep=("call", "wait_ns", "wait_pct", "where", "op", "calls_count", "idle_after_ns"),
    denominators={
        "wait_pct": "of the host's time in complete steps (host_ns of `steps`); only calls in steps count",
        "per_step_count": "calls within complete steps, per complete step",
    },
)
def syncs(trace: Trace) -> Result:
    """Calls in which the host waited for the GPU, with the operator and source line of each.

    Blocking calls are synchronisations (cudaDeviceSynchronize, cudaStreamSynchronize, cudaEventSynchronize, their driver
    and HIP forms), copies without "Async" (cudaMemcpy, hipMemcpyWithStream), asynchronous copies from or to pageable
    memory (they return when the memory can be used again), and calls that free memory (cudaFree). One row per call,
    reason, operator and line; times are summed over the calls of a row.

    reason          why the program waited: item (.item(), float(), bool(), printing), boolean mask, nonzero,
                    copy to host (.cpu(), .to("cpu"), .tolist()), pageable copy (from unpinned memory to the GPU),
                    blocking copy (any other), free memory, or synchronize if no operator explains the call
    op              the outermost operator around the call: what the program called
    where           the program's innermost Python function around the call; needs with_stack=True
    calls_count, per_step_count    all calls; calls within complete steps, per complete step
    wait_ns         duration of the calls: how long the host was blocked
    pending_ns      the part of wait_ns in which any GPU was running; the rest is the cost of the call itself
    wait_pct        wait_ns of calls within steps, of the host's time in steps (host_ns of `steps`)
    idle_after_ns   how long the GPUs were idle because the queue had run empty: gaps that began during a call and in
                    which it ended. A gap counts once, for the first such call. Null where no work follows.
    waited_for      the copy that the call made, otherwise the last GPU work to end during the call (the most frequent
                    of the row); null where there was nothing to wait for

    The last sync of a recording is often the profiler's own: it is outside all steps. A wait alone costs nothing if the
    host would have had to wait anyway; idle_after_ns is the time the GPU lost, not all of it because of the sync.
    Whether a copy is pageable is known only from its recorded name.
    """
    host = HostSpans(trace)
    calls = blocking_calls(trace, host)
    if not trace.spans.filter(pl.col("kind") == "runtime").height:
        raise MissingDataError(
            f"{trace.path.name}: no runtime calls recorded; record with ProfilerActivity.CUDA"
        )
    places = Places(trace, host)
    windows = [window for window in step_windows(trace) if window.averaged]
    steps = [window.number for window in windows]
    host_ns = sum(window.host_ns for window in windows)
    measured = _measured(trace, calls).with_columns(
        in_step=pl.col("step").is_in(steps) if steps else pl.lit(value=False),
        **_explained(trace, host, places, calls),
    )
    table = _grouped(measured, len(steps), host_ns)
    values = _values(measured, len(steps), host_ns)
    return Result(
        says=_says(table, values), table=table, values=values, notes=_notes(places, values, bool(steps))
    )


def blocking_calls(trace: Trace, host: HostSpans) -> pl.DataFrame:
    """Runtime calls that wait for the GPU, in order: id, name, start_ns, end_ns, step, op_id, reason."""
    sync, copies, free = (
        host.calls_that(wanted)
        for wanted in (Effect.SYNC, Effect.COPY | Effect.BLOCKS, Effect.FREE | Effect.BLOCKS)
    )
    moved = trace.spans.filter((pl.col("kind") == "copy") & pl.col("launch_id").is_not_null()).select(
        pl.col("id").alias("span_id"), "launch_id"
    )
    copy = moved.join(trace.copies, on="span_id", how="left")
    to_host = _flags(host, copy.filter(pl.col("direction") == "DtoH")["launch_id"])
    pageable = _flags(host, copy.filter(pl.col("pageable"))["launch_id"])
    blocking = sync | copies | free | pageable
    calls = trace.spans.filter(pl.Series(blocking) & pl.col("dur_ns").is_not_null())
    ids = calls["id"].to_numpy()
    reason = np.where(
        to_host[ids], "copy to host", np.where(copies[ids] | pageable[ids], "pageable copy", "synchronize")
    )
    reason = np.where(copies[ids] & ~pageable[ids] & ~to_host[ids], "blocking copy", reason)
    reason = np.where(free[ids], "free memory", reason)
    return calls.select(
        "id",
        "name",
        "start_ns",
        (pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"),
        "dur_ns",
        "step",
        "op_id",
    ).with_columns(reason=pl.Series(reason, dtype=pl.String))


def _flags(host: HostSpans, ids: pl.Series) -> Flags:
    flags = np.zeros(len(host.start_ns), bool)
    flags[ids.to_numpy()] = True
    return flags


def _measured(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with `pending_ns`, `idle_after_ns` and `waited_for`."""
    work = trace.device_spans
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    busy = device_time.covered(work)
    ends = work["end_ns"].to_numpy()
    by_end = np.argsort(ends, kind="stable")
    last = np.searchsorted(ends[by_end], end, side="right") - 1
    row = by_end[np.maximum(last, 0)] if len(by_end) else np.zeros(len(end), np.int64)
    waited = (last >= 0) & (ends[row] > start) if len(ends) else np.zeros(len(end), bool)
    own = work.filter(pl.col("kind") == "copy").drop_nulls("launch_id").unique("launch_id", keep="first")
    copied = calls.select("id").join(
        own.select(pl.col("launch_id").alias("id"), pl.col("name").alias("own")),
        on="id",
        how="left",
        maintain_order="left",
    )
    names = pl.Series(np.where(waited, row, NOBODY), dtype=pl.Int64).replace(NOBODY, None)
    ended = work["name"].gather(names).cast(pl.String).alias("ended")
    return calls.with_columns(
        wait_ns=pl.col("dur_ns"),
        pending_ns=pl.Series(intervals.covered_ns(busy, start, end), dtype=pl.Int64),
        idle_after_ns=_idle_after(busy, start, end),
        waited_for=copied.select(pl.coalesce(pl.col("own").cast(pl.String), ended)).to_series(),
    )


def _idle_after(busy: intervals.Intervals, start: Ids, at: Ids) -> pl.Series:
    """Length of the gap that began during a call and in which it ended; 0 for none, null after the last work."""
    following = np.searchsorted(busy.start, at, side="right")
    # The gap before interval k is number k; a call that ends while the GPU is running ends in none.
    known = (following > 0) & (following < len(busy.start))
    drained = np.append(busy.end, 0)[following - 1]
    inside = known & (at >= drained) & (start <= drained)
    length = np.zeros(len(at), np.int64)
    order = np.argsort(at, kind="stable")
    _, first = np.unique(np.where(inside, following, NOBODY)[order], return_index=True)
    chosen = np.zeros(len(at), bool)
    chosen[order[first]] = True
    rows = np.flatnonzero(chosen & inside)
    length[rows] = busy.start[following[rows]] - busy.end[following[rows] - 1]
    past = following >= len(busy.start)
    past &= at >= (busy.end[-1] if len(busy.end) else 0)
    return pl.Series(np.where(past, NOBODY, length), dtype=pl.Int64).replace(NOBODY, None)


def _explained(trace: Trace, host: HostSpans, places: Places, calls: pl.DataFrame) -> dict[str, pl.Series]:
    """For each call: the outermost operator, the source line, and the reason, as far as operators show it."""
    ids = calls["id"].cast(pl.Int64).to_numpy()
    ops = host.kind("op")
    linked = calls["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    # A call may be linked to an operator of another thread only by its id.
    inner = np.where((host.nearest(ids, ops) == NOBODY) & (linked != NOBODY), linked, ids)
    outer = host.outermost(inner, ops)
    where = places.lines(inner)
    reason = calls["reason"].to_numpy().astype(object)
    open_reason = np.isin(reason, ("copy to host", "synchronize", "pageable copy", "blocking copy"))
    taken = np.zeros(len(ids), bool)
    for name, pattern in _REASONS:
        inside = (host.nearest(inner, host.named(pattern, "op")) != NOBODY) & open_reason & ~taken
        reason[inside] = name
        taken |= inside
    _after_copies(reason, calls, taken)
    return {
        "op": trace.spans["name"]
        .gather(pl.Series(outer, dtype=pl.Int64).replace(NOBODY, None))
        .cast(pl.String),
        "where": where,
        "reason": pl.Series(reason.tolist(), dtype=pl.String),
    }


def _after_copies(
    reason: np.ndarray[tuple[int], np.dtype[np.object_]], calls: pl.DataFrame, taken: Flags
) -> None:
    """Gives a sync the reason of the copy that the same operator made before it."""
    op = calls["op_id"].cast(pl.Int64).fill_null(NOBODY).to_numpy()
    same = (op[1:] == op[:-1]) & (op[1:] != NOBODY)
    for place in np.flatnonzero(same & (reason[1:] == "synchronize") & ~taken[1:]).tolist():
        reason[place + 1] = reason[place]


def _grouped(calls: pl.DataFrame, steps: int, host_ns: int) -> pl.DataFrame:
    """One row per call name, reason, operator and line; the most expensive first."""
    in_step = pl.col("in_step")
    table = calls.group_by(pl.col("name").cast(pl.String).alias("call"), "reason", "op", "where").agg(
        calls_count=pl.len(),
        per_step_count=in_step.sum() / steps if steps else pl.lit(None, pl.Float64),
        wait_ns=pl.col("wait_ns").sum(),
        pending_ns=pl.col("pending_ns").sum(),
        longest_ns=pl.col("wait_ns").max(),
        wait_pct=100 * pl.col("wait_ns").filter(in_step).sum() / host_ns
        if host_ns
        else pl.lit(None, pl.Float64),
        idle_after_ns=pl.when(pl.col("idle_after_ns").count() > 0).then(pl.col("idle_after_ns").sum()),
        waited_for=pl.col("waited_for").drop_nulls().mode().sort().first(),
        in_steps=in_step.any(),
    )
    # Syncs within steps are the program's; others are likely the profiler's.
    keys = ("call", "reason", "op", "where")
    order = table.with_columns(cost=pl.col("wait_ns") + pl.col("idle_after_ns").fill_null(0)).sort(
        "in_steps", "cost", *keys, descending=[True, True, *[False] * len(keys)]
    )
    return order.drop("cost", "in_steps")


def _values(calls: pl.DataFrame, steps: int, host_ns: int) -> dict[str, Value]:
    inside = calls.filter(pl.col("in_step"))
    wait = int(inside["wait_ns"].sum())
    return {
        "calls_count": calls.height,
        "wait_ns": int(calls["wait_ns"].sum()),
        "pending_ns": int(calls["pending_ns"].sum()),
        "idle_after_ns": int(calls["idle_after_ns"].sum()),
        "outside_steps_count": calls.height - inside.height if steps else None,
        "per_step_count": inside.height / steps if steps else None,
        "wait_pct": 100 * wait / host_ns if host_ns else None,
    }


def _says(table: pl.DataFrame, values: dict[str, Value]) -> str:
    count = int(values["calls_count"] or 0)
    if not count:
        return "no call waited for the GPU"
    top = table.row(0, named=True)
    operator = f", in {shorten(top['op'], 40)}" if top["op"] else ""
    line = f" at {top['where']}" if top["where"] else ""
    often = f" ({values['per_step_count']:.3g} per step)" if values["per_step_count"] is not None else ""
    return (
        f"{counted(count, 'blocking call')}{often} blocked the host for {format_value('_ns', values['wait_ns'])}; "
        f"most expensive: {top['call']} ({top['reason']}{operator}){line}"
    )


def _notes(places: Places, values: dict[str, Value], has_steps: bool) -> tuple[str, ...]:
    notes = []
    if values["calls_count"] and not places.known:
        notes.append("no Python stacks recorded: source lines are not known (record with with_stack=True)")
    outside = values["outside_steps_count"]
    if outside:
        notes.append(
            f"{counted(int(outside), 'call')} outside complete steps, listed last: often the profiler's own"
        )
    if not has_steps:
        notes.append("no steps recorded: counts per step and shares are not known")
    return tuple(notes)
