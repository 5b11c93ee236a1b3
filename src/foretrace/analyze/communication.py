"""Communication: collectives with their bytes and bandwidth, and how much overlaps with computation."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import collective_calls, device_time
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.trace import Trace
from foretrace.units import counted, format_value

GroupBy = Literal["collective", "group", "call"]

_KEYS: dict[str, tuple[str, ...]] = {
    "collective": ("collective", "group", "ranks_count", "dtype", "algorithm", "on"),
    "group": ("group", "ranks_count", "on"),
}
# Operators of the communication libraries do not count as computation.
_NO_COMPUTATION = r"^c10d::|^record_param_comms|^_c10d_functional|^(?:nccl|rccl|xccl|gloo|mpi|ucc):"


@analysis(
    Subject.RANKS,
    keep=(
        "collective",
        "total_ns",
        "total_pct",
        "exposed_ns",
        "calls_count",
        "size_bytes",
        "bus_bytes_per_s",
        "overlap_pct",
    ),
    denominators={
        "overlap_pct": "of the time in which it communicated",
        "total_pct": "of the summed duration of all collectives",
    },
)
def communication(trace: Trace, *, group_by: GroupBy = "collective") -> Result:
    """Collectives: time, bytes, algorithm and bus bandwidth, and the share that overlaps with computation.

    Collectives are found by recorded metadata and by kernel name (NCCL, RCCL, custom all-reduce), not by DDP's
    annotations; those of gloo, MPI and UCC by the annotations of their transfers on host threads. One row per
    collective, process group, type and algorithm; group_by="group" gives one row per process group, group_by="call"
    one per call.

    Columns:
        size_bytes: size of the whole message: the bytes sent, for all_gather the bytes received.
        total_ns, mean_ns, max_ns: durations, including the time spent waiting for other ranks.
        total_pct: of the summed duration of all collectives.
        algorithm_bytes_per_s: size / time, over the calls whose size is known; a lower bound.
        bus_bytes_per_s: algorithm bandwidth times 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather,
            all_to_all, gather and scatter, 1 for broadcast, reduce and send_recv, with n ranks. It can be compared
            with the speed of the links for any n.
        exposed_ns: time in which it communicated and nothing computed.
        overlap_pct: share of the communication time in which something computed.
        communication_ns: time with any communication running; overlapping collectives count once.
        overlapped_ns: the part of communication_ns in which a computing kernel or a memset ran on the same device.
            For transfers on host threads: on any device, or without one, an operator on any thread.

    What it cannot tell from one rank: how long it waited for other ranks, and the process group where none is
    recorded. `on` is "call" for a collective that ran on no recorded device or thread (a group of one starts
    nothing): its time is not known. A recording without collectives gives an empty table, not an error.
    """
    if trace.spans.is_empty():
        raise MissingDataError(f"{trace.path.name}: nothing recorded; record with ProfilerActivity.CUDA")
    calls = _with_overlap(trace, collective_calls.find(trace))
    table = _per_call(calls) if group_by == "call" else _grouped(trace, calls, _KEYS[group_by])
    busy, overlapped = _totals(trace, calls)
    seen = calls.filter(pl.col("on") != "call")
    values: dict[str, Value] = {
        "collectives_count": calls.height,
        "total_ns": int(seen["dur_ns"].sum()) if seen.height or calls.is_empty() else None,
        "communication_ns": busy if seen.height or calls.is_empty() else None,
        "overlapped_ns": overlapped,
        "exposed_ns": None if overlapped is None else busy - overlapped,
        "overlap_pct": 100 * overlapped / busy if overlapped is not None and busy else None,
        "size_bytes": int(calls["size_bytes"].sum()) if calls["size_bytes"].count() else None,
    }
    return Result(says=_says(values), table=table, values=values, notes=_notes(calls))


def _computation(trace: Trace) -> dict[int | None, Intervals]:
    """When each device computed; without devices, under null, when operators ran on threads that do not communicate."""
    work = device_time.device_work(trace).filter((pl.col("kind") != "copy") & ~pl.col("communication"))
    if trace.has_device:
        return {device: device_time.covered(rows) for device, rows in device_time.by_device(work)}
    ops = trace.spans.filter((pl.col("kind") == "op") & pl.col("dur_ns").is_not_null())
    ops = ops.filter(~pl.col("name").is_in(device_time.names_like(ops, _NO_COMPUTATION)))
    return {None: device_time.covered(ops.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns")))}


def _with_overlap(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls with `end_ns` and `overlapped_ns`, each call on its own."""
    calls = calls.with_columns(end_ns=pl.col("start_ns") + pl.col("dur_ns"), row=pl.int_range(pl.len()))
    computing = _computation(trace) if calls.height else {}
    hidden = np.zeros(calls.height, np.int64)
    for rows, busy in _parts(calls, computing):
        covered = intervals.covered_ns(busy, rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())
        hidden[rows["row"].to_numpy()] = covered
    seen = calls["dur_ns"].is_not_null()
    return calls.drop("row").with_columns(overlapped_ns=pl.Series(hidden).set(~seen, None))


def _parts(
    calls: pl.DataFrame, computing: dict[int | None, Intervals]
) -> list[tuple[pl.DataFrame, Intervals]]:
    """The calls of each device, and those of host threads, with the computation that can overlap with them."""
    seen = calls.drop_nulls("dur_ns")
    parts = [
        (rows, computing.get(device, intervals.EMPTY))
        for device, rows in device_time.by_device(seen.filter(pl.col("on") == "device"))
    ]
    on_host = seen.filter(pl.col("on") == "host")
    if on_host.height:
        starts = [busy.start for busy in computing.values()]
        ends = [busy.end for busy in computing.values()]
        anywhere = (
            intervals.union(np.concatenate(starts), np.concatenate(ends)) if starts else intervals.EMPTY
        )
        parts.append((on_host, anywhere))
    return parts


def _totals(trace: Trace, calls: pl.DataFrame) -> tuple[int, int | None]:
    """Time with any communication, and the part of it with computation; summed over devices and the host."""
    parts = _parts(calls, _computation(trace) if calls.height else {})
    communicating, overlapped = _communicating(parts)
    return communicating, overlapped if communicating or calls.is_empty() else None


def _communicating(parts: list[tuple[pl.DataFrame, Intervals]]) -> tuple[int, int]:
    """Time with any of the calls running, and the part of it with computation."""
    unions = [(device_time.covered(calls), busy) for calls, busy in parts]
    overlapped = sum(intervals.intersect(union, busy).total_ns for union, busy in unions)
    return sum(union.total_ns for union, _ in unions), overlapped


def _grouped(trace: Trace, calls: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """One row per group of calls, the longest total first."""
    calls = calls.with_columns(collective_calls.bus_factor().alias("factor"))
    sized = pl.col("size_bytes").is_not_null() & (pl.col("dur_ns") > 0)
    moved = pl.col("size_bytes").filter(sized)
    taken = pl.col("dur_ns").filter(sized).sum()
    on_bus = (moved * pl.col("factor").filter(sized)).filter(pl.col("factor").filter(sized).is_not_null())
    bus_taken = pl.col("dur_ns").filter(sized & pl.col("factor").is_not_null()).sum()
    dur = pl.col("dur_ns")
    table = calls.group_by(keys, maintain_order=True).agg(
        calls_count=pl.len().cast(pl.Int64),
        size_bytes=pl.when(pl.col("size_bytes").count() > 0).then(pl.col("size_bytes").sum()),
        total_ns=pl.when(dur.count() > 0).then(dur.sum()),
        mean_ns=dur.mean(),
        max_ns=dur.max(),
        algorithm_bytes_per_s=pl.when(taken > 0).then(moved.sum() * 1e9 / taken),
        bus_bytes_per_s=pl.when(bus_taken > 0).then(on_bus.sum() * 1e9 / bus_taken),
    )
    whole = pl.col("total_ns").sum()
    table = table.with_columns(total_pct=pl.when(whole > 0).then(100 * pl.col("total_ns") / whole))
    table = table.join(
        _hidden(trace, calls, keys), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    first = (*keys, "calls_count", "size_bytes", "total_ns", "total_pct", "exposed_ns", "overlap_pct")
    table = table.select(*first, pl.exclude(first))
    return table.sort("total_ns", "size_bytes", descending=True, nulls_last=True, maintain_order=True)


def _hidden(trace: Trace, calls: pl.DataFrame, keys: tuple[str, ...]) -> pl.DataFrame:
    """Exposed time and overlap of each group, from the union of its calls."""
    rows = []
    schema = {name: calls.schema[name] for name in keys}
    computing = _computation(trace) if calls.height else {}
    for key, group in calls.group_by(keys, maintain_order=True):
        parts = _parts(group, computing)
        total, hidden = _communicating(parts)
        rows.append((*key, total - hidden if parts else None, 100 * hidden / total if total else None))
    return pl.DataFrame(
        rows, schema={**schema, "exposed_ns": pl.Int64, "overlap_pct": pl.Float64}, orient="row"
    )


def _per_call(calls: pl.DataFrame) -> pl.DataFrame:
    """One row per collective, in order of start."""
    speed = pl.when(pl.col("dur_ns") > 0).then(pl.col("size_bytes") * 1e9 / pl.col("dur_ns"))
    share = pl.when(pl.col("dur_ns") > 0).then(100 * pl.col("overlapped_ns") / pl.col("dur_ns"))
    return calls.select(
        "collective", "group", "ranks_count", "dtype", "algorithm", "on", "device", "step", "start_ns", "dur_ns",
        "size_bytes", share.alias("overlap_pct"), speed.alias("algorithm_bytes_per_s"),
        (speed * collective_calls.bus_factor()).alias("bus_bytes_per_s"),
    )  # fmt: skip


def _says(values: dict[str, Value]) -> str:
    count, busy, exposed = values["collectives_count"], values["communication_ns"], values["exposed_ns"]
    assert isinstance(count, int)
    if not count:
        return "no collectives recorded: this rank did not communicate"
    what = counted(count, "collective")
    if busy is None:
        return f"{what} called; no transfer recorded"
    share = values["overlap_pct"]
    says = f"{what} took {format_value('_ns', busy)}"
    if not isinstance(share, float):
        return says
    return f"{says}; {share:.1f} % overlapped with computation, {format_value('_ns', exposed)} exposed"


def _notes(calls: pl.DataFrame) -> tuple[str, ...]:
    notes = []
    if calls.filter(pl.col("on") != "call").height:
        notes.append("times include waiting for other ranks, so bandwidths are lower bounds")
    bare = calls.filter(pl.col("on") == "call")
    if bare.height:
        alone = bare.filter(pl.col("ranks_count") == 1).height
        why = f", {alone} of them in a group of one" if alone else ""
        notes.append(f"{counted(bare.height, 'call')} without a recorded kernel{why}")
    if unsized := calls["size_bytes"].null_count():
        notes.append(f"{unsized} of {calls.height} have no recorded size, so no bandwidth")
    if (sized := calls.filter(pl.col("size_bytes").is_not_null() & pl.col("ranks_count").is_null())).height:
        notes.append(f"{sized.height} of {calls.height} have no recorded group size, so no bus bandwidth")
    return tuple(notes)
