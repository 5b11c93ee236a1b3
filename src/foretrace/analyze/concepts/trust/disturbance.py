"""What makes recorded times differ from the program's own, or from each other, as notes of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device.device_time import COMMUNICATION, names_like
from foretrace.analyze.concepts.trust.evidence import SMALL_PCT, Evidence, Note, amount, some, weigh
from foretrace.analyze.result import Value
from foretrace.schema import DEVICE_KINDS
from foretrace.units import format_value

# A judgement, set with the corpus in view: wide enough that ordinary host jitter over three steps passes.
_SPREAD_PCT = 25.0
# A judgement: up to here the sentence says steady; it changes no weight.
_STEADY_PCT = 10.0
# A judgement: a step that the profiler lengthened by more than this should not enter an average.
_OVERHEAD_PCT = 5.0
# Absolute times lie between 2001 and 2100; other values count from the machine's start.
_EPOCH_NS = range(10**18, 41 * 10**17)
# CUPTI's kinds of overhead, as Kineto names them. A full command buffer is not the profiler's doing.
_BUFFER_REQUEST = "Activity Buffer Request"
_LOADING = ("Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler")
_QUEUE_FULL = "Command Buffer Full"


def first_step(found: Evidence) -> Iterator[Note]:
    """Whether the first recorded step stands out."""
    for clock, times in found.clocks:
        decides = clock == found.clocks[0][0]
        # Where the host decides, the GPU's list begins with the second step.
        if not _slow_start(times) or found.windows[0].number in found.cut or (clock == "GPU" and not decides):
            continue
        usual = int(np.median(times[1:]))
        ratio = times[0] / max(usual, 1)
        first, others = format_value("_ns", times[0]), format_value("_ns", usual)
        yield Note(
            "first-step-slow", "care" if decides else "info",
            f"The first recorded step took {first} on the {clock} clock, {ratio:.2g} times the others' {others}: "
            + ("warm-up or the profiler's start is in it; leave it out of averages." if decides
               else "the GPU had work queued, so it cost nothing."),
            {"clock": clock, "first_ns": times[0], "others_ns": usual, "share_pct": 100 * ratio},
        )  # fmt: skip
        return


def spread(found: Evidence) -> Iterator[Note]:
    """How much the steps differ, without a slow first one."""
    parts: list[str] = []
    values: dict[str, Value] = {}
    for clock, every in found.clocks:
        times = every[1:] if _slow_start(every) else every
        if len(times) < 2:
            continue
        share = 100 * (max(times) - min(times)) / max(float(np.median(times)), 1.0)
        shortest, longest = format_value("_ns", min(times)), format_value("_ns", max(times))
        parts.append(
            f"{shortest} to {longest} on the {clock} clock ({format_value('_pct', share)} of the median)"
        )
        name = clock.lower()
        values.setdefault("share_pct", share)
        values |= {f"{name}_min_ns": min(times), f"{name}_median_ns": int(np.median(times)),
                   f"{name}_max_ns": max(times),
                   f"{name}_variation_pct": 100 * float(np.std(times)) / max(float(np.mean(times)), 1.0)}  # fmt: skip
    if not parts:
        return
    share = float(values["share_pct"] or 0)
    wide = share > _SPREAD_PCT
    means = "steady" if share <= _STEADY_PCT else "a change worth less than that cannot be told from noise"
    says = f"Steps took {', '.join(parts)}; the {found.clocks[0][0]} decides here: {means}."
    yield Note("step-spread", "care" if wide else "info", says, {"clock": found.clocks[0][0], **values})


def _slow_start(times: list[int]) -> bool:
    """Whether the first of several steps took clearly longer than the others."""
    return len(times) > 1 and times[0] > (1 + _SPREAD_PCT / 100) * float(np.median(times[1:]))


def overhead(found: Evidence) -> Iterator[Note]:
    """Time that the profiler, or the first use of a kernel, took from the program."""
    spans = found.trace.spans.filter((pl.col("kind") == "overhead") & pl.col("dur_ns").is_not_null())
    if not spans.height:
        return
    name = pl.col("name").cast(pl.String)
    loading, request, full = name.is_in(_LOADING), name == _BUFFER_REQUEST, name == _QUEUE_FULL
    kinds = (
        ("activity-buffer-request", request, "went to the profiler asking for its first buffers (Activity Buffer "
         "Request), which an unprofiled run does not do"),
        ("profiler-overhead", ~(loading | request | full), "was the profiler's own work"),
        ("module-loading", loading, "went to loading or compiling GPU code at its first use: a cold start"),
    )  # fmt: skip
    for code, chosen, what in kinds:
        part = spans.filter(chosen)
        if part.height:
            yield _disturbance(found, code, part, what)
    waits = spans.filter(full)
    if waits.height:
        waited = amount(waits, found.window_ns)
        yield Note(
            "launch-queue-full", "info",
            f"Launches waited {_of_recording(waited)} for room in the GPU's queue: the host is ahead of the GPU, which "
            "happens without a profiler too.",
            waited,
        )  # fmt: skip


def _disturbance(found: Evidence, code: str, spans: pl.DataFrame, what: str) -> Note:
    """A note on overhead, weighed by the step that it hit hardest, or by the recording where none is marked."""
    values = amount(spans, found.window_ns)
    worst, where = float(values["share_pct"] or 0), ""
    length = {step.number: max(step.host_ns, 1) for step in found.windows}
    by_step = (
        spans.filter(pl.col("step").is_not_null()).group_by("step").agg(pl.col("dur_ns").sum()).sort("step")
    )
    hit = [(100 * spent / length[step], step) for step, spent in by_step.iter_rows() if step in length]
    if hit:
        worst, step = max(hit)
        values |= {"step": step, "step_share_pct": worst}
        where = f"; most of it fell in step {step}, {format_value('_pct', worst)} of that step"
    hidden = ", but the GPU had work queued meanwhile" if found.gpu_bound else ""
    says = f"{_of_recording(values)} {what}{where}{hidden}."
    return Note(code, "care" if worst >= _OVERHEAD_PCT and not hidden else "info", says, values)


def _of_recording(values: dict[str, Value]) -> str:
    """1.20 ms (4.0 % of the recording)."""
    spent, share = format_value("_ns", values["affected_ns"]), format_value("_pct", values["share_pct"])
    return f"{spent} ({share} of the recording)"


def durations(found: Evidence) -> Iterator[Note]:
    """Durations that cannot be true."""
    spans = found.trace.spans.filter(pl.col("dur_ns").is_null())
    if spans.height:
        on_gpu = spans.filter(pl.col("kind").is_in(DEVICE_KINDS)).height
        share = 100 * spans.height / found.trace.spans.height
        yield Note(
            "impossible-durations", "care" if on_gpu or share >= SMALL_PCT else "info",
            f"{some(spans.height, 'span')}, {on_gpu:,} of them GPU work, with a missing, negative or absurd duration: "
            "counted, but with no time.",
            {"affected_count": spans.height, "gpu_count": on_gpu, "share_pct": share},
        )  # fmt: skip
    overlaps, engulfing = _overlaps(found)
    if engulfing.height:
        values = amount(engulfing, found.gpu_ns)
        share = float(values["share_pct"] or 0)
        lasting = f"{format_value('_ns', values['affected_ns'])}, {format_value('_pct', share)} of GPU time"
        yield Note(
            "engulfing-kernels", weigh(share),
            f"{some(engulfing.height, 'kernel')} ({lasting}) wholly cover the next two of their stream, which a GPU "
            "cannot do: their durations are wrong.",
            values,
        )  # fmt: skip
    if overlaps.height:
        overlap_ns = int(overlaps["overlap_ns"].sum())
        yield Note(
            "stream-overlap", "info",
            f"{some(overlaps.height, 'kernel')} begin before the previous one of their stream ends, by "
            f"{format_value('_ns', overlap_ns)} in all, as dependent launches may: sums of kernel times exceed busy time "
            "by that.",
            {"affected_count": overlaps.height, "affected_ns": overlap_ns},
        )  # fmt: skip


def _overlaps(found: Evidence) -> tuple[pl.DataFrame, pl.DataFrame]:
    """GPU work that begins before the previous of its stream ends, and work that covers the next two whole."""
    graphs = found.trace.kernels.filter(pl.col("graph_id").is_not_null()).select(
        pl.col("span_id").alias("id")
    )
    # Branches of a CUDA graph, and collectives of queues that ROCm shows as one, do run side by side.
    talks = pl.col("name").is_in(names_like(found.device, COMMUNICATION))
    work = found.device.filter(~talks).select("id", "track_id", "start_ns", "end_ns", "dur_ns", "launch_id")
    if graphs.height:
        work = work.join(graphs, on="id", how="anti", maintain_order="left")
    end, launch = pl.col("end_ns"), pl.col("launch_id")
    work = work.sort("track_id", "start_ns", "id").with_columns(
        overlap_ns=(end.shift(1).over("track_id") - pl.col("start_ns")).clip(upper_bound=pl.col("dur_ns")),
        covers=(
            (end.shift(-1) < end)
            & (end.shift(-2) < end)
            & (pl.col("start_ns").shift(-1) > pl.col("start_ns"))
        )
        .over("track_id")
        .fill_null(value=False)
        & ~(launch == launch.shift(-1).over("track_id")).fill_null(value=False),
    )
    covering = work.filter(pl.col("covers"))
    beside = work.filter(pl.col("overlap_ns") >= found.resolution_ns + 1)
    return (beside if not covering.height else beside.clear()), covering


def clock(found: Evidence) -> Iterator[Note]:
    """How far the times can be believed and compared."""
    early = found.linked.with_columns(lead_ns=pl.col("launch_ns") - pl.col("start_ns")).filter(
        pl.col("lead_ns") > found.resolution_ns
    )
    if early.height:
        worst = int(early["lead_ns"].max())  # type: ignore[arg-type]
        yield Note(
            "clocks-apart", "care",
            f"{some(early.height, 'piece')} of GPU work begin before their launch call does, by up to "
            f"{format_value('_ns', worst)}: the GPU's and the host's clocks disagree, so launch delays are off by that.",
            {"affected_count": early.height, "worst_ns": worst, "share_pct": 100 * early.height / found.linked.height},
        )  # fmt: skip
    if found.resolution_ns > 1 and found.trace.spans.height > 1:
        short = found.device.filter(pl.col("dur_ns") < 10 * found.resolution_ns).height
        yield Note(
            "whole-microseconds", "info",
            "Times are whole microseconds"
            + (f": the {some(short, 'piece')} of GPU work shorter than 10 µs are known to 10 % or worse." if short
               else "."),
            {"affected_count": short, "resolution_ns": found.resolution_ns},
        )  # fmt: skip
    if int(found.trace.meta.get("epoch_ns") or 0) not in _EPOCH_NS:
        yield Note(
            "time-of-day-unknown", "info",
            "The recording does not say at what time it was made, so it cannot be lined up with other ranks or logs.",
        )  # fmt: skip


def cost(found: Evidence) -> Iterator[Note]:
    """Whether what was recorded slowed the program."""
    calls = found.trace.python.height
    if not calls:
        return
    tail = (
        f"the GPU had work queued {format_value('_pct', found.fed_pct)} of the time, which hides it"
        if found.gpu_bound
        else "host times are too long; take step times and host shares from a recording without stacks"
    )
    yield Note(
        "costly-recording", "info" if found.gpu_bound else "care",
        f"{some(calls, 'Python call')} were recorded, which can double what the host needs for a step: {tail}.",
        {"affected_count": calls, "gpu_fed_pct": found.fed_pct},
    )  # fmt: skip


def ranks(found: Evidence) -> Iterator[Note]:
    """What one recording of many says of the whole."""
    meta = found.trace.meta
    rank, size, source = meta.get("rank"), meta.get("world_size"), meta.get("rank_source")
    if isinstance(size, int) and size > 1:
        who = f"rank {rank}" if rank is not None else "one rank"
        yield Note(
            "one-rank-of-many", "care",
            f"This is {who} of {size}, and no rank stands for all: time spent waiting for another one shows here as "
            "communication; open the folder with every rank's recording.",
            {"rank": rank, "ranks_count": size},
        )  # fmt: skip
    if rank is None and found.trace.collectives.height:
        yield Note(
            "rank-unknown", "info",
            "There are collectives but no rank in the recording or its file name, so ranks cannot be matched.",
        )  # fmt: skip
    elif source == "file name":
        yield Note(
            "rank-from-name",
            "info",
            f"That this is rank {rank} is known from the file name only.",
            {"rank": rank},
        )
