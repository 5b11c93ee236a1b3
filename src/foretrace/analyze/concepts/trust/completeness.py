"""What a recording lost, cut off or never held, as notes of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.trust.evidence import (
    MOST_PCT,
    SMALL_PCT,
    Evidence,
    Note,
    Severity,
    amount,
    some,
    weigh,
)
from foretrace.analyze.result import Value
from foretrace.units import format_value

# 224 to 535 bytes an event in four recordings of the corpus; serves an estimate only.
_EVENT_BYTES = 300
# Repairs that change how a text reads, never a time.
_COSMETIC = ("bare-word", "bad-escape", "raw-quote", "control-character", "not-utf8")
# Told by `impossible-durations`, with what they hit.
_OF_DURATIONS = ("no-duration", "negative-duration", "absurd-duration")


def content(found: Evidence) -> Iterator[Note]:
    """Whether there is anything to draw conclusions from."""
    trace = found.trace
    if not trace.spans.height:
        yield Note("empty", "no", "The recording holds no span of time, so nothing can be said about it.")
    elif not trace.has_device and found.launches.height:
        count = found.launches.height
        yield Note(
            "gpu-missing", "no",
            f"{some(count, 'launch')} and not one piece of GPU work: the GPU's side was not collected (another "
            "profiler held CUPTI, no permission for it, or the recording broke off), so nothing is known of GPU time.",
            {"affected_count": count, "share_pct": 100.0},
        )  # fmt: skip
    elif not trace.has_device:
        devices = len(trace.meta.get("devices") or ())
        tail = (
            f", though the machine has {some(devices, 'GPU')}: record ProfilerActivity.CUDA too"
            if devices
            else ""
        )
        yield Note(
            "cpu-only", "care" if devices else "info",
            f"Only the host was recorded{tail}; questions about the GPU cannot be answered.",
            {"devices_count": devices},
        )  # fmt: skip


def repairs(found: Evidence) -> Iterator[Note]:
    """What reading had to put right or leave out."""
    meta = found.trace.meta
    events = max(int(meta.get("events") or 0), 1)
    lost_bytes = int(meta.get("lost_bytes") or 0)
    for repair in found.trace.repairs:
        if repair.code in _OF_DURATIONS:
            continue
        values: dict[str, Value] = {"affected_count": repair.count, "offset_bytes": repair.offset}
        severity: Severity = "care"
        says = f"{repair.says[:1].upper()}{repair.says[1:]} ({repair.count:,}"
        says += ")." if repair.offset is None else f", the first at byte {repair.offset:,})."
        if repair.code == "damaged":
            share = 100 * lost_bytes / (lost_bytes + events * _EVENT_BYTES)
            values |= {"lost_bytes": lost_bytes, "share_pct": share}
            severity = "no" if share > MOST_PCT else "care"
            says += f" {lost_bytes:,} bytes are lost, about {share:.2g} % of the text: sums may be too small."
        elif repair.code in ("truncated", "broken-stream"):
            says += " Kineto writes the host's side first, so GPU work may be missing."
        elif repair.code in _COSMETIC:
            severity = "info"
            says += " Only texts are touched, no time."
        else:
            share = 100 * repair.count / (repair.count + events)
            values["share_pct"] = share
            severity = "info" if share < SMALL_PCT else "care"
        yield Note(repair.code, severity, says, values)


def launches(found: Evidence) -> Iterator[Note]:
    """Launches that no GPU work belongs to."""
    if not found.trace.has_device:
        return
    last = found.launches.filter("has_work")["start_ns"].max()
    after = pl.col("start_ns") > last if last is not None else pl.lit(value=False)
    tail, lost = found.missing.filter(after), found.missing.filter(~after)
    every = max(found.launches.height, 1)
    if lost.height:
        share = 100 * lost.height / every
        yield Note(
            "launches-lost", weigh(share),
            f"{lost.height:,} of {some(every, 'launch')} ({share:.2g} %) have no GPU work though later ones do: the "
            "profiler dropped GPU activity, so GPU time is too short by what these did.",
            {"affected_count": lost.height, "launches_count": every, "share_pct": share},
        )  # fmt: skip
    if tail.height:
        share = 100 * tail.height / every
        yield Note(
            "launches-cut", weigh(share),
            f"The last {some(tail.height, 'launch')} ({share:.2g} % of all) have no GPU work: the recording ended "
            "before the GPU came to it, so the last step's GPU time is too short.",
            {"affected_count": tail.height, "launches_count": every, "share_pct": share},
        )  # fmt: skip
    copies = found.runtime.filter(pl.col("copy") & ~pl.col("has_work") & ~pl.col("captured")).height
    if copies:
        yield Note(
            "copies-without-work", "info",
            f"{some(copies, 'copy or memset call')} led to no GPU work: of zero bytes, or their time is missing.",
            {"affected_count": copies},
        )  # fmt: skip
    captured = found.runtime.filter(pl.col("kernel") & pl.col("captured")).height
    if captured:
        yield Note(
            "launches-captured", "info",
            f"{some(captured, 'launch')} went into a CUDA graph being captured: they started no GPU work, rightly.",
            {"affected_count": captured},
        )  # fmt: skip


def orphans(found: Evidence) -> Iterator[Note]:
    """GPU work whose launch is not in the recording."""
    work = found.orphans
    if not work.height:
        return
    if not found.runtime.height:
        yield Note(
            "no-launch-calls", "care",
            f"No runtime call was recorded, so none of the {some(work.height, 'piece')} of GPU work can be given to an "
            "operator or a step: kernel times hold, all else about the GPU does not.",
            amount(work, found.gpu_ns),
        )  # fmt: skip
        return
    # Earlier work comes before whatever the recording launched on the same stream, or on any if none there.
    first = found.linked.group_by("track_id").agg(first_ns=pl.col("start_ns").min())
    on_any = pl.lit(found.linked["start_ns"].min(), pl.Int64)
    launching = found.runtime.filter(pl.col("kernel") | pl.col("copy")).height > 0
    is_early = (pl.col("start_ns") < pl.coalesce("first_ns", on_any)).fill_null(value=not launching)
    known = work.join(first, on="track_id", how="left").with_columns(early=is_early)
    early, late = known.filter("early"), known.filter(~pl.col("early"))
    if early.height:
        values = amount(early, found.gpu_ns)
        yield Note(
            "launched-before", "info" if found.windows else "care",
            f"{_gpu_work(values)} came from launches before the recording: in no step, and "
            + ("left out of step times." if found.windows else "in every total over the recording."),
            values,
        )  # fmt: skip
    if late.height:
        values = amount(late, found.gpu_ns)
        yield Note(
            "launch-unknown", weigh(float(values["share_pct"] or 0)),
            f"{_gpu_work(values)} came without a launch after the recording had begun: it is in no operator's and no "
            "step's time.",
            values,
        )  # fmt: skip


def _gpu_work(values: dict[str, Value]) -> str:
    """3 pieces of GPU work (1.20 ms, 4.0 % of GPU time)."""
    count, spent, share = (values[name] for name in ("affected_count", "affected_ns", "share_pct"))
    pieces = some(int(count or 0), "piece")
    return f"{pieces} of GPU work ({format_value('_ns', spent)}, {format_value('_pct', share)} of GPU time)"


def steps(found: Evidence) -> Iterator[Note]:
    """Whether steps were marked and recorded whole."""
    windows = found.windows
    if not windows:
        yield Note(
            "no-steps", "care",
            "No steps are marked (call profiler.step() in the loop), so there is no step time, no spread and no way "
            "to set warm-up apart; everything is a total over the recording.",
        )  # fmt: skip
        return
    whole = [step for step in windows if step.number not in found.cut]
    if found.cut:
        listed = [f"step {number} ({why})" for number, why in found.cut.items()]
        more = f" and {len(listed) - 3:,} more" if len(listed) > 3 else ""
        yield Note(
            "steps-cut", "care" if whole else "no",
            f"{len(listed):,} of {some(len(windows), 'step')} not recorded whole: {', '.join(listed[:3])}{more}; "
            + ("leave them out of averages." if whole else "no step time can be given."),
            {"affected_count": len(listed), "steps_count": len(windows), "share_pct": 100 * len(listed) / len(windows)},
        )  # fmt: skip
    if len(whole) == 1:
        yield Note(
            "one-step", "care",
            f"Only one whole step (number {whole[0].number}) was recorded: how much steps differ is not known, and a "
            "disturbed step cannot be told from a usual one; record three or more.",
            {"steps_count": 1},
        )  # fmt: skip
    elif not found.cut:
        yield Note(
            "steps-whole", "info",
            f"All {len(windows)} steps were recorded whole"
            + (", launches with their GPU work." if found.trace.has_device else ", on the host."),
            {"steps_count": len(windows)},
        )  # fmt: skip


def recorded(found: Evidence) -> Iterator[Note]:
    """What was not recorded, and what that rules out."""
    trace, ops = found.trace, found.trace.ops
    if not ops.height:
        yield Note(
            "no-operators",
            "info",
            "No operator was recorded, so GPU work cannot be traced to the code behind it.",
        )
    has_stacks = trace.python.height > 0 or bool(ops["stack_id"].is_not_null().any())
    # torch's Python tracer is what writes nn.Module calls; with_modules concerns TorchScript alone.
    parts = (
        ("no-shapes", "record_shapes", bool(ops["shapes"].is_not_null().any()) or not ops.height, "Input shapes",
         "no FLOPs, no efficiency against the hardware's peak, no grouping by shape"),
        ("no-stacks", "with_stack", has_stacks, "Python stacks", "no source lines"),
        ("no-modules", "with_stack", trace.modules.height > 0, "nn.Module calls", "no times by module"),
        ("no-memory", "profile_memory", trace.allocations.height > 0, "Allocations", "no peak, no memory by operator"),
    )  # fmt: skip
    flags = trace.meta.get("recorded") or ()
    for code, flag, present, what, cost in parts:
        if present:
            continue
        asked = flag in flags
        how = f"were asked for ({flag}=True) but the recording holds none" if asked else f"need {flag}=True"
        yield Note(code, "info", f"{what} {how}: {cost}.", {"asked": asked})
    if "with_flops" in flags and ops.height and not ops["flops"].is_not_null().any():
        says = (
            "FLOP counts were asked for (with_flops=True), but torch leaves them out: they come from shapes."
        )
        yield Note("no-flops", "info", says, {"asked": True})
