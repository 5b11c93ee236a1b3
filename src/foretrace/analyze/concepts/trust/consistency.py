"""Whether a recording can have happened: what lies outside of it, overlaps, is missing or takes no time, as notes.

Complete recordings of the corpus break none of these rules beyond the rounding of their clocks: calls of a thread nest, all
happens while the profiler runs, a launch lies in its operator, a stream runs its work in the order of the launches, and a wait
for the device ends after its work.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.analyze.concepts.trust.evidence import MOST_PCT, Evidence, Note, amount, some, weigh
from foretrace.ingest.nesting import TAKES_PART, nested
from foretrace.runtime_names import Effect, calls_that
from foretrace.schema import DEVICE_KINDS
from foretrace.units import format_value

# Twice the resolution of recordings in whole microseconds.
_ROUNDING_NS = 2_000
# The shortest kernels of the corpus take 560 ns, where times are finer than microseconds.
_SHORTEST_KERNEL_NS = 300
_SHORTEST_CALL_NS = 100
# Faster copies cannot be: twice NVLink-C2C between a Grace CPU and its GPU, more than the fastest cache of any GPU.
_MOST_BYTES_PER_NS = {"HtoD": 1_000, "DtoH": 1_000, "DtoD": 20_000}
# A DeepSeek recording ends 2 % behind its profiler's window; a call of a damaged one 37 times as far.
_BEYOND = 0.1
# Judgement: in the corpus a wait for the device ends 4 µs after its work, on an MI300 up to 8 µs before.
_EARLY_NS = 50_000
# A queued kernel starts within microseconds; ranks that share a GPU wait for each other up to 27 % of the time.
_LONG_IDLE_NS, _LATENCY_NS, _IDLE_QUEUED_PCT = 5_000, 8_000, 35.0
# step() itself takes 0.14 ms at most between two steps of the corpus.
_BETWEEN_STEPS_NS, _BETWEEN_STEPS, _OVERLAP_OF_STEPS = 1_000_000, 0.25, 0.05
_OUTSIDE_OF_RECORDING = 0.01
# Fewer spans tell nothing of all.
_MANY = 20
_CALLS = ("op", "runtime")
_ON_HOST = (*_CALLS, "python")


def unlaunched(evidence: Evidence) -> Iterator[Note]:
    """GPU work that recorded operators launched, by calls that are not in the recording."""
    work = evidence.device.filter(pl.col("launch_id").is_null() & pl.col("op_id").is_not_null())
    if not work.height or not evidence.runtime.height:
        return
    values = amount(work, evidence.gpu_ns)
    share = max(float(values["share_pct"] or 0), 100 * work.height / evidence.device.height)
    yield Note(
        "launches-missing", weigh(share),
        f"{some(work.height, 'GPU task')} of {evidence.device.height:,} belong to recorded operators, but their launch calls are "
        "missing: calls of the CUDA or HIP runtime were filtered out, so the host's time for launches is too short.",
        {**values, "share_pct": share},
    )  # fmt: skip


def uncopied(evidence: Evidence) -> Iterator[Note]:
    """Copy calls whose copies are missing; calls that fill memory may be of zero bytes, and leave nothing then."""
    if not evidence.trace.has_device:
        return
    calls = evidence.runtime.filter(~pl.col("captured"))
    calls = calls.filter(pl.Series(calls_that(calls["name"], Effect.COPY), dtype=pl.Boolean))
    lost = calls.filter(~pl.col("has_work"))
    if (
        not lost.height or evidence.trace.format != "kineto"
    ):  # others record a call once for each layer that it passes
        return
    share = 100 * lost.height / calls.height
    yield Note(
        "copies-lost", weigh(share),
        f"{lost.height:,} of {some(calls.height, 'copy call')} ({share:.2g} %) have no copy: copies were dropped or filtered "
        "out, so the time that the host waits for them is unexplained.",
        {"affected_count": lost.height, "share_pct": share},
    )  # fmt: skip


def outside(evidence: Evidence) -> Iterator[Note]:
    """Events that do not lie inside the time that the profiler ran."""
    first, last = _window(evidence)
    if last <= first:
        return
    slack = _BEYOND * (last - first)
    spans = evidence.trace.spans.select(
        "kind", "start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    )
    on_host = pl.col("kind").is_in(_ON_HOST)
    # Work that was queued before the profiler ran may have begun before.
    spans = spans.filter(on_host | pl.col("kind").is_in(DEVICE_KINDS))
    early = on_host & (pl.col("start_ns") < first - slack)
    beyond = spans.filter((pl.col("end") > last + slack) | early)
    if not beyond.height:
        return
    share = max(
        100 * beyond.filter(kinds).height / max(spans.filter(kinds).height, 1)
        for kinds in (on_host, ~on_host)
    )
    furthest = beyond.select(pl.max_horizontal(pl.col("end") - last, first - pl.col("start_ns")).max()).item()
    yield Note(
        "events-outside", "no" if share > MOST_PCT else "care",
        f"{some(beyond.height, 'event')} lie outside of the recording, by up to {format_value('_ns', int(furthest))} where the "
        f"profiler ran for {format_value('_ns', last - first)}: their times or durations are wrong, or the clock jumped.",
        {"affected_count": beyond.height, "share_pct": share},
    )  # fmt: skip


def _window(evidence: Evidence) -> tuple[int, int]:
    """When the profiler ran, as it says itself; nothing where it does not."""
    windows = evidence.trace.meta.get("windows") or ()
    ran = [(int(start), int(start) + int(dur)) for _, start, dur in windows if dur]
    return (min(start for start, _ in ran), max(end for _, end in ran)) if ran else (0, 0)


def overlapping(evidence: Evidence) -> Iterator[Note]:
    """Calls of one thread that overlap without one being inside the other, and launches outside of their operators."""
    trace = evidence.trace
    hosts, calls = (
        trace.spans.select("track_id", "start_ns", "dur_ns")[
            np.flatnonzero(of_kind(trace, kinds))
        ].drop_nulls()
        for kinds in (_ON_HOST, _CALLS)
    )
    if not hosts.height:
        return
    # The return of a Python call may be lost, so operators and calls of the runtime are looked at without them too.
    beside = [_crossing(hosts, hosts["track_id"].to_numpy()), _crossing(calls, _siblings(calls))]
    crossing = max(count for count, _ in beside)
    # One call that lasts too long spoils as much as the time that it covers.
    spoilt_ns = max(spoilt for _, spoilt in beside)
    astray = int(np.count_nonzero(_astray(evidence)))
    if not crossing and not astray:
        return
    share = max(
        100 * crossing / hosts.height,
        100 * astray / max(evidence.linked.height, 1),
        min(100 * spoilt_ns / evidence.window_ns, MOST_PCT),
    )
    yield Note(
        "calls-overlap", weigh(share),
        f"{some(crossing, 'call')} overlap the call before on their thread without being inside it, and "
        f"{some(astray, 'launch')} lie outside of the operator they belong to: durations of host events are wrong.",
        {"affected_count": crossing + astray, "share_pct": share},
    )  # fmt: skip


def _crossing(calls: pl.DataFrame, group: NDArray[np.int64]) -> tuple[int, int]:
    """How many calls begin in the one before of their group and end after it, and the longest time that one goes on alone."""
    order = np.argsort(group, kind="stable")  # they are in order of start already
    group, start, dur = group[order], *(calls[name].to_numpy()[order] for name in ("start_ns", "dur_ns"))
    end = start + dur
    crosses = (
        (group[1:] == group[:-1])
        & (start[1:] < end[:-1] - _ROUNDING_NS)
        & (end[1:] > end[:-1] + _ROUNDING_NS)
    )
    alone = np.maximum(end[1:] - start[1:], end[:-1] - start[:-1])
    return int(np.count_nonzero(crosses)), int(alone[crosses].max(initial=0))


def _siblings(calls: pl.DataFrame) -> NDArray[np.int64]:
    """For each call the number of the group that its thread and the innermost call around it make: none of them may overlap."""
    if not calls.height:
        return np.empty(0, np.int64)
    track, start, dur = (calls[name].to_numpy() for name in ("track_id", "start_ns", "dur_ns"))
    everything = (slice(0, len(track)),)
    roles = np.full(len(track), TAKES_PART, np.uint8)
    ((_, _, around, _),) = nested(track, start, dur, role=roles, blocks=everything)
    siblings: NDArray[np.int64] = track.astype(np.int64) << 32 | around
    return siblings


def _astray(evidence: Evidence) -> NDArray[np.bool_]:
    """For GPU work with a launch and an operator, whether the launch lies outside the operator on the same thread."""
    spans, linked = evidence.trace.spans, evidence.linked.filter(pl.col("op_id").is_not_null())
    launch_ns, track = linked["launch_ns"].to_numpy(), spans["track_id"]
    start = spans["start_ns"].gather(linked["op_id"]).to_numpy()
    end = start + spans["dur_ns"].gather(linked["op_id"]).fill_null(0).to_numpy()
    same = (track.gather(linked["launch_id"]) == track.gather(linked["op_id"])).to_numpy()
    away: NDArray[np.bool_] = same & ((launch_ns < start - _ROUNDING_NS) | (launch_ns > end + _ROUNDING_NS))
    return away


def returned_early(evidence: Evidence) -> Iterator[Note]:
    """Waits for the whole device that end while work launched before them still runs."""
    calls = evidence.runtime.filter(~pl.col("captured"))
    calls = calls.filter(pl.Series(calls_that(calls["name"], Effect.WHOLE_DEVICE), dtype=pl.Boolean))
    if not calls.height or not evidence.linked.height or evidence.linked["track_id"].n_unique() > 64:
        return
    work = evidence.linked.sort("launch_ns")
    done = np.maximum.accumulate(work["end_ns"].to_numpy())
    place = np.searchsorted(work["launch_ns"].to_numpy(), calls["start_ns"].to_numpy()) - 1
    end = (
        calls["start_ns"].to_numpy()
        + evidence.trace.spans["dur_ns"].gather(calls["id"]).fill_null(0).to_numpy()
    )
    early = np.where(place >= 0, done[np.maximum(place, 0)], 0) - end
    count = int(np.count_nonzero(early > _EARLY_NS))
    if count:
        yield Note(
            "waits-too-short", weigh(100 * count / calls.height),
            f"{some(count, 'wait')} for the GPU ended up to {format_value('_ns', int(early.max()))} before its work did: durations "
            "of GPU work or of host calls are wrong, or their clocks disagree.",
            {"affected_count": count, "share_pct": 100 * count / calls.height},
        )  # fmt: skip


def idle_while_queued(evidence: Evidence) -> Iterator[Note]:
    """How long GPUs were idle although their next work had been launched."""
    if not evidence.linked.height:
        return
    device = evidence.trace.tracks["device"].gather(evidence.device["track_id"])
    idle_ns = total_ns = 0
    for work in evidence.device.with_columns(device=device).partition_by("device"):
        done = np.maximum.accumulate(work["end_ns"].to_numpy())  # in order of start
        start, launch = (
            work["start_ns"].to_numpy(),
            work["launch_ns"].fill_null(0).to_numpy(),
        )  # launched before the recording
        idle = start[1:] - np.maximum(done[:-1], launch[1:] + _LATENCY_NS)
        idle_ns += int(idle[idle > _LONG_IDLE_NS].sum())
        total_ns += int(done[-1] - start[0])
    share = 100 * idle_ns / max(total_ns, 1)
    if share >= _IDLE_QUEUED_PCT and evidence.device.height >= _MANY:
        yield Note(
            "idle-while-queued", "care",
            f"GPUs were idle for {format_value('_ns', idle_ns)} ({share:.0f} % of the time) although their next work had been "
            "launched: durations or times of GPU work are wrong, or another process used the GPU.",
            {"affected_ns": idle_ns, "share_pct": share},
        )  # fmt: skip


def out_of_order(evidence: Evidence) -> Iterator[Note]:
    """Work that began before other work, launched earlier, of its stream. Calls of several threads may overlap."""
    linked = evidence.serial.filter(pl.col("launch_id").is_not_null())
    spans = evidence.trace.spans
    returned_ns = pl.col("launch_ns") + spans["dur_ns"].gather(linked["launch_id"]).fill_null(0)
    count = furthest_ns = 0
    for work in linked.with_columns(returned_ns=returned_ns).partition_by("track_id"):
        start, launch, returned = (work[name].to_numpy() for name in ("start_ns", "launch_ns", "returned_ns"))
        order = np.argsort(returned, kind="stable")
        begun = np.maximum.accumulate(start[order])
        place = np.searchsorted(returned[order], launch, "right") - 1
        early = np.where(place >= 0, begun[np.maximum(place, 0)] - start, 0)
        count += int(np.count_nonzero(early > _ROUNDING_NS))
        furthest_ns = max(furthest_ns, int(early.max()))
    if count:
        share = 100 * count / linked.height
        yield Note(
            "work-out-of-order", "no" if share > MOST_PCT else "care",
            f"{some(count, 'GPU task')} began before work that was launched earlier on the same stream, by up to "
            f"{format_value('_ns', furthest_ns)}, although a stream runs in the order of launches: times of GPU work are wrong.",
            {"affected_count": count, "share_pct": share},
        )  # fmt: skip


def apart(evidence: Evidence) -> Iterator[Note]:
    """Steps of torch.profiler that do not follow one another: its step() ends one and begins the next."""
    steps, marks = evidence.trace.steps, evidence.trace.meta.get("step_marks") or {}
    if not steps or marks.get("source") != "profiler":
        return
    length = float(np.median([step.end_ns - step.start_ns for step in steps]))
    least = max(_BETWEEN_STEPS * length, _BETWEEN_STEPS_NS)
    between = [after.start_ns - step.end_ns for step, after in pairwise(steps)]
    far = [time for time in between if time > least]
    far += [-time for time in between if -time > _OVERLAP_OF_STEPS * length]
    first, last = _window(evidence)
    slack = _OUTSIDE_OF_RECORDING * (last - first)
    far += [
        max(first - step.start_ns, step.end_ns - last)
        for step in steps
        if step.number not in evidence.cut  # which is said of it already
        and last > first
        and (step.start_ns < first - slack or step.end_ns > last + slack)
    ]
    # Two profilers may mark the same steps: then each lies in another one.
    nested = int(marks.get("nested_count") or 0)
    merged = nested if nested != len(steps) else 0
    if far or merged:
        yield Note(
            "steps-apart", "care",
            f"The marks of {some(len(far) + merged, 'step')} leave gaps or overlaps of up to {format_value('_ns', max(far, default=0))}, "
            "although profiler.step() ends one step and begins the next: the marks are wrong, or the clock jumped.",
            {"affected_count": len(far) + merged, "steps_count": len(steps), "share_pct": 100 * len(far) / len(steps)},
        )  # fmt: skip


def lengths(evidence: Evidence) -> Iterator[Note]:
    """Missing and impossible durations."""
    spans = evidence.trace.spans.select("kind", "dur_ns")
    unknown = pl.col("dur_ns").is_null()
    counts = spans.group_by("kind").agg(
        count=pl.len(),
        unknown=unknown.sum(),
        short=(pl.col("dur_ns") < _SHORTEST_KERNEL_NS).sum(),
        instant=(pl.col("dur_ns") < _SHORTEST_CALL_NS).sum(),
    )
    rounded = evidence.resolution_ns > 1
    lost = {str(kind): _lost(str(kind), *row, rounded=rounded) for kind, *row in counts.iter_rows()}
    if fast := _too_fast(evidence):
        lost["copy"] = max(lost["copy"], fast)
    affected = sum(lost.values())
    if not affected:
        return
    on_gpu = sum(count for kind, count in lost.items() if kind in DEVICE_KINDS)
    # A whole category counts by itself: copies may be few beside kernels, and take most of the time.
    share = max(
        100 * affected / spans.height,
        *(
            100 * lost[str(kind)] / count
            for kind, count, *_ in counts.iter_rows()
            if kind in DEVICE_KINDS or 2 * lost[str(kind)] > count
        ),
        0.0,
    )
    yield Note(
        "impossible-durations", weigh(share),
        f"{some(affected, 'span')}, {on_gpu:,} of them on the GPU, have a missing, negative or impossible duration: "
        "they are counted, but their time is not known.",
        {"affected_count": affected, "gpu_count": on_gpu, "share_pct": share},
    )  # fmt: skip


def _too_fast(evidence: Evidence) -> int:
    """How many copies are faster than any link or memory."""
    copies = evidence.trace.copies.select("span_id", "size_bytes", "direction")
    dur_ns = evidence.trace.spans["dur_ns"].gather(copies["span_id"])
    most = copies["direction"].replace_strict(_MOST_BYTES_PER_NS, default=None, return_dtype=pl.Int64)
    return int((copies["size_bytes"] > most * dur_ns).sum())


def _lost(kind: str, count: int, unknown: int, short: int, instant: int, *, rounded: bool) -> int:
    """How many spans of a kind have no duration that can be."""
    if kind in ("kernel", "copy"):
        # In whole microseconds short kernels are rounded to nothing, though never most of them.
        return unknown + (0 if rounded and 2 * short < count else short)
    # Some calls are as short, and more in whole microseconds; where most are, durations are wrong. Operators that a graph
    # captures may take no time at all, so of them all must.
    mostly = kind == "runtime" and 2 * instant > count and not rounded
    most = kind in _CALLS and count >= _MANY and (instant == count or mostly)
    return unknown + (instant if most else 0)
