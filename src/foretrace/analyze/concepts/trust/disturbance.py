"""What makes recorded times differ from unprofiled ones, or from each other, as notes of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.analyze.concepts.host import settled_steps
from foretrace.analyze.concepts.names.named_spans import of_kind
from foretrace.analyze.concepts.trust.evidence import Evidence, Note, amount, some, weigh
from foretrace.analyze.result import Value
from foretrace.units import format_value

# Judgement, based on the corpus: wide enough for ordinary host jitter over three steps.
_SPREAD_PCT = 25.0
# Judgement: up to here the sentence says "steady"; the weight does not depend on it.
_STEADY_PCT = 10.0
# Judgement: a step that the profiler lengthened by more than this should not be averaged.
_OVERHEAD_PCT = 5.0
# Absolute times lie between 2001 and 2100; other values count from the machine's start.
_EPOCH_NS = range(10**18, 41 * 10**17)
# CUPTI's kinds of overhead, as Kineto names them. A full command buffer is not the profiler's doing.
_LOADING = ("Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
_QUEUE_FULL = "Command Buffer Full"


def first_step(evidence: Evidence) -> Iterator[Note]:
    """Whether the recording begins with warm-up."""
    whole = evidence.whole
    clocks = settled_steps.own_clocks_ns(evidence.trace, whole)
    if count := settled_steps.warm_up_count(clocks):
        yield _slow_start(evidence.clocks[0][0], clocks[0], count)
    elif len(clocks) > 1 and (count := settled_steps.slow_count(clocks[1])):
        yield _slow_start("host", clocks[1], count, hidden=True)


def _slow_start(clock: str, times: list[int], count: int, *, hidden: bool = False) -> Note:
    usual = int(np.median(times[count:]))
    longest = max(times[:count])
    ratio = longest / max(usual, 1)
    began = "The first recorded step" if count == 1 else f"The longest of the first {count} steps"
    return Note(
        "first-step-slow", "info" if hidden else "care",
        f"{began} took {format_value('_ns', longest)} on the {clock} clock, {ratio:.2g} times the others' "
        f"{format_value('_ns', usual)}: "
        + ("the GPU had work queued, so nothing was lost." if hidden
           else f"warm-up or profiler start-up; averages, findings and estimates leave {'it' if count == 1 else 'them'} out."),
        {"clock": clock, "steps_count": count, "first_ns": longest, "others_ns": usual, "share_pct": 100 * ratio},
    )  # fmt: skip


def spread(evidence: Evidence) -> Iterator[Note]:
    """How much settled steps differ, apart from their waits for input."""
    parts: list[str] = []
    values: dict[str, Value] = {}
    settled = [window for window in evidence.whole if window.averaged]
    waits = settled_steps.input_wait_ns(evidence.trace, settled)
    for clock, every in evidence.clocks_of(settled):
        if len(every) < 2:
            continue
        times = np.maximum(np.array(every, np.int64) - waits[len(settled) - len(every) :], 0)
        shortest, longest, median = int(times.min()), int(times.max()), float(np.median(times))
        share = 100 * (longest - shortest) / max(median, 1.0)
        parts.append(
            f"{format_value('_ns', shortest)} to {format_value('_ns', longest)} on the {clock} clock "
            f"({format_value('_pct', share)} of the median)"
        )
        name = clock.lower()
        values.setdefault("share_pct", share)
        values |= {f"{name}_min_ns": shortest, f"{name}_median_ns": int(median), f"{name}_max_ns": longest,
                   f"{name}_variation_pct": 100 * float(np.std(times)) / max(float(np.mean(times)), 1.0)}  # fmt: skip
    if not parts:
        return
    share = float(values["share_pct"] or 0)
    wide = share > _SPREAD_PCT
    decides = evidence.clocks[0][0]
    limited = "GPU-limited" if decides == "GPU" else "CPU-limited"
    means = "steps are steady" if share <= _STEADY_PCT else "smaller gains cannot be told from noise"
    took = "Without their waits for input, steps took" if waits.any() else "Steps took"
    says = f"{took} {', '.join(parts)}. {limited}; {means}."
    yield Note("step-spread", "care" if wide else "info", says, {"clock": decides, **values})


def overhead(evidence: Evidence) -> Iterator[Note]:
    """Time that the profiler, or the first use of a kernel, took from the program."""
    spans = evidence.trace.spans[np.flatnonzero(of_kind(evidence.trace, "overhead"))].drop_nulls("dur_ns")
    if not spans.height:
        return
    name = pl.col("name").cast(pl.String)
    loading, request, full = name.is_in(_LOADING), name == settled_steps.BUFFER_REQUEST, name == _QUEUE_FULL
    kinds = (
        ("activity-buffer-request", request, "was spent on allocating the profiler's buffers (Activity Buffer Request), "
         "which does not happen without a profiler"),
        ("profiler-overhead", ~(loading | request | full), "was profiler overhead"),
        ("module-loading", loading, "was spent on loading or compiling GPU code on first use: a cold start"),
    )  # fmt: skip
    for code, chosen, what in kinds:
        part = spans.filter(chosen)
        if part.height:
            yield _disturbance(evidence, code, part, what)
    waits = spans.filter(full)
    if waits.height:
        waited = amount(waits, evidence.window_ns)
        yield Note(
            "launch-queue-full", "info",
            f"Launches waited {_of_recording(waited)} for space in the GPU's queue: the host is ahead of the GPU, as it "
            "would be without a profiler.",
            waited,
        )  # fmt: skip


def _disturbance(evidence: Evidence, code: str, spans: pl.DataFrame, what: str) -> Note:
    """A note on overhead, weighted by the most affected step, or without steps by the recording."""
    values = amount(spans, evidence.window_ns)
    worst, where = float(values["share_pct"] or 0), ""
    length = {step.number: max(step.host_ns, 1) for step in evidence.windows}
    by_step = (
        spans.filter(pl.col("step").is_not_null()).group_by("step").agg(pl.col("dur_ns").sum()).sort("step")
    )
    hit = [(100 * spent / length[step], step) for step, spent in by_step.iter_rows() if step in length]
    if hit:
        worst, step = max(hit)
        values |= {"step": step, "step_share_pct": worst}
        where = f"; the most affected is step {step}, {format_value('_pct', worst)} of its time"
    hidden = ", but the GPU had work queued" if evidence.gpu_bound else ""
    says = f"{_of_recording(values)} {what}{where}{hidden}."
    return Note(code, "care" if worst >= _OVERHEAD_PCT and not hidden else "info", says, values)


def _of_recording(values: dict[str, Value]) -> str:
    """1.20 ms (4.0 % of the recording)."""
    spent, share = format_value("_ns", values["affected_ns"]), format_value("_pct", values["share_pct"])
    return f"{spent} ({share} of the recording)"


def durations(evidence: Evidence) -> Iterator[Note]:
    """Kernels that overlap others of their stream."""
    overlaps, engulfing = _overlaps(evidence)
    if engulfing.height:
        values = amount(engulfing, evidence.gpu_ns)
        share = float(values["share_pct"] or 0)
        lasting = f"{format_value('_ns', values['affected_ns'])}, {format_value('_pct', share)} of GPU time"
        yield Note(
            "engulfing-kernels", weigh(share),
            f"{some(engulfing.height, 'kernel')} ({lasting}) completely cover the next two of their stream, which is not "
            "possible: their durations are wrong.",
            values,
        )  # fmt: skip
    if overlaps.height:
        overlap_ns = int(overlaps["overlap_ns"].sum())
        yield Note(
            "stream-overlap", "info",
            f"{some(overlaps.height, 'kernel')} start before the previous one of their stream ends, by "
            f"{format_value('_ns', overlap_ns)} in total, as programmatic dependent launches can: summed kernel time "
            "exceeds busy time by that much.",
            {"affected_count": overlaps.height, "affected_ns": overlap_ns},
        )  # fmt: skip


def _overlaps(evidence: Evidence) -> tuple[pl.DataFrame, pl.DataFrame]:
    """GPU work that starts before the previous one of its stream ends, and work that covers the next two completely."""
    work = evidence.serial.select("id", "track_id", "start_ns", "end_ns", "dur_ns", "launch_id")
    # Sorted by stream, so the rows beside one are of its stream or at its end: much faster than a window for each stream.
    work = work[np.lexsort([work["id"], work["start_ns"], work["track_id"]])]
    track, launch = pl.col("track_id"), pl.col("launch_id")
    start, end = pl.col("start_ns"), pl.col("end_ns")
    two_follow = (track.shift(-2) == track).fill_null(value=False)
    same_launch = (launch == launch.shift(-1)).fill_null(value=False)
    work = work.with_columns(
        overlap_ns=pl.when(track.shift(1) == track)
        .then(end.shift(1) - start)
        .clip(upper_bound=pl.col("dur_ns")),
        covers=two_follow
        & (end.shift(-1) < end)
        & (end.shift(-2) < end)
        & (start.shift(-1) > start)
        & ~same_launch,
    )
    covering = work.filter(pl.col("covers"))
    beside = work.filter(pl.col("overlap_ns") >= evidence.resolution_ns + 1)
    return (beside if not covering.height else beside.clear()), covering


def clock(evidence: Evidence) -> Iterator[Note]:
    """How accurate the times are, and whether they can be compared."""
    early = evidence.linked.with_columns(lead_ns=pl.col("launch_ns") - pl.col("start_ns")).filter(
        pl.col("lead_ns") > evidence.resolution_ns
    )
    if early.height:
        worst = int(early["lead_ns"].max())  # type: ignore[arg-type]
        yield Note(
            "clocks-apart", "care",
            f"{some(early.height, 'GPU task')} start before their launch call, by up to {format_value('_ns', worst)}: the "
            "clocks of GPU and host disagree, so launch delays are wrong by that much.",
            {"affected_count": early.height, "worst_ns": worst, "share_pct": 100 * early.height / evidence.linked.height},
        )  # fmt: skip
    if evidence.resolution_ns > 1 and evidence.trace.spans.height > 1:
        short = evidence.device.filter(pl.col("dur_ns") < 10 * evidence.resolution_ns).height
        yield Note(
            "whole-microseconds", "info",
            "Times are whole microseconds"
            + (f": {some(short, 'GPU task')} shorter than 10 µs have an error of 10 % or more." if short
               else "."),
            {"affected_count": short, "resolution_ns": evidence.resolution_ns},
        )  # fmt: skip
    if int(evidence.trace.meta.get("epoch_ns") or 0) not in _EPOCH_NS:
        yield Note(
            "time-of-day-unknown", "info",
            "The recording has no absolute time, so it cannot be aligned with other ranks or logs.",
        )  # fmt: skip


def cost(evidence: Evidence) -> Iterator[Note]:
    """Whether recording slowed the program down."""
    calls = evidence.trace.python.height
    if not calls:
        return
    tail = (
        f"the GPU had work queued {format_value('_pct', evidence.fed_pct)} of the time, which hides that"
        if evidence.gpu_bound
        else "host times are too long; take step times and host shares from a recording without stacks"
    )
    yield Note(
        "costly-recording", "info" if evidence.gpu_bound else "care",
        f"{some(calls, 'Python call')} were recorded, which can double the host's time per step: {tail}.",
        {"affected_count": calls, "gpu_fed_pct": evidence.fed_pct},
    )  # fmt: skip


def ranks(evidence: Evidence) -> Iterator[Note]:
    """What one recording of several ranks cannot show."""
    meta = evidence.trace.meta
    rank, size, source = meta.get("rank"), meta.get("world_size"), meta.get("rank_source")
    if isinstance(size, int) and size > 1:
        who = f"rank {rank}" if rank is not None else "one rank"
        yield Note(
            "one-rank-of-many", "care",
            f"This is {who} of {size}: time spent waiting for other ranks appears here as communication; open the "
            "folder with the recordings of all ranks.",
            {"rank": rank, "ranks_count": size},
        )  # fmt: skip
    if rank is None and evidence.trace.collectives.height:
        yield Note(
            "rank-unknown", "info",
            "There are collectives, but neither the recording nor its file name says which rank it is.",
        )  # fmt: skip
    elif source == "file name":
        yield Note(
            "rank-from-name",
            "info",
            f"Rank {rank} is known only from the file name.",
            {"rank": rank},
        )
