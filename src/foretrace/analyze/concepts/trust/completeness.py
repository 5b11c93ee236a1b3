"""What a recording lost, cut off or never contained, as notes of the trust report."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
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
from foretrace.analyze.concepts.trust.marks import unmarked
from foretrace.analyze.concepts.trust.size import EVENT_BYTES
from foretrace.analyze.result import Value
from foretrace.units import format_value

# Repairs that change texts, never times.
_COSMETIC = ("bare-word", "bad-escape", "raw-quote", "control-character", "not-utf8")
# Reported by `impossible-durations`, with what they affect.
_OF_DURATIONS = ("no-duration", "negative-duration", "absurd-duration")
# Reported by `several-processes`.
_OF_PROCESSES = ("other-processes",)


def content(evidence: Evidence) -> Iterator[Note]:
    """Whether there is anything to draw conclusions from."""
    trace = evidence.trace
    if not trace.spans.height and trace.profile is not None:
        yield Note(
            "counters-only", "care",
            "Counters of single kernels, each run alone and many times over: there is no timeline, so nothing is known of steps, "
            "of idle time, or of kernels that were not profiled.",
        )  # fmt: skip
    elif not trace.spans.height:
        yield Note("empty", "no", "The recording is empty: it contains no spans.")
    elif not trace.has_device and evidence.launches.height:
        count = evidence.launches.height
        yield Note(
            "gpu-missing", "no",
            f"{some(count, 'launch')} but no GPU work: GPU activity was not collected (another profiler was using "
            "CUPTI, permission was missing, or the recording was interrupted), so GPU time is not known.",
            {"affected_count": count, "share_pct": 100.0},
        )  # fmt: skip
    elif not trace.has_device:
        yield _host_alone(evidence)


def _host_alone(evidence: Evidence) -> Note:
    """A program without a GPU lacks nothing; one with a GPU was not recorded there."""
    devices = len(evidence.trace.meta.get("devices") or ())
    if computes_on_cpu(evidence.trace):
        says = "The program computes on the CPU: its operators are its work."
    elif devices:
        says = (
            f"Only the host was recorded, although the machine has {some(devices, 'GPU')}: record ProfilerActivity.CUDA "
            "too; nothing is known about the GPU."
        )
    else:
        says = "Only the host was recorded; nothing is known about the GPU."
    return Note("cpu-only", "care" if devices else "info", says, {"devices_count": devices})


def whole_graphs(evidence: Evidence) -> Iterator[Note]:
    """CUDA graphs of which only the whole was recorded."""
    count = int(evidence.trace.meta.get("whole_graphs") or 0)
    if count:
        yield Note(
            "graphs-whole", "care",
            f"{some(count, 'CUDA graph launch')} recorded as a whole, as nsys does by default: they count as busy, but which "
            "kernels ran in them is not known; record with `nsys profile --cuda-graph-trace=node`.",
            {"affected_count": count},
        )  # fmt: skip


def repairs(evidence: Evidence) -> Iterator[Note]:
    """What the reader had to repair or skip."""
    meta = evidence.trace.meta
    events = max(int(meta.get("events") or 0), 1)
    lost_bytes = int(meta.get("lost_bytes") or 0)
    for repair in evidence.trace.repairs:
        if repair.code in (*_OF_DURATIONS, *_OF_PROCESSES):
            continue
        values: dict[str, Value] = {"affected_count": repair.count, "offset_bytes": repair.offset}
        severity: Severity = "care"
        says = f"{repair.says[:1].upper()}{repair.says[1:]} ({repair.count:,}"
        says += ")." if repair.offset is None else f", the first at byte {repair.offset:,})."
        if repair.code == "damaged":
            share = 100 * lost_bytes / (lost_bytes + events * EVENT_BYTES)
            values |= {"lost_bytes": lost_bytes, "share_pct": share}
            severity = "no" if share > MOST_PCT else "care"
            says += (
                f" {lost_bytes:,} bytes are lost, about {share:.2g} % of the text: totals may be too small."
            )
        elif repair.code in ("truncated", "broken-stream"):
            says += " Kineto writes host events first, so GPU work may be missing."
        elif repair.code in _COSMETIC:
            severity = "info"
            says += " Only texts are affected, no times."
        else:
            share = 100 * repair.count / (repair.count + events)
            values["share_pct"] = share
            severity = "info" if share < SMALL_PCT else "care"
        yield Note(repair.code, severity, says, values)


def launches(evidence: Evidence) -> Iterator[Note]:
    """Launches without GPU work."""
    if not evidence.trace.has_device:
        return
    last = evidence.launches.filter("has_work")["start_ns"].max()
    after = pl.col("start_ns") > last if last is not None else pl.lit(value=False)
    tail, lost = evidence.missing.filter(after), evidence.missing.filter(~after)
    every = max(evidence.launches.height, 1)
    if lost.height:
        share = 100 * lost.height / every
        yield Note(
            "launches-lost", weigh(share),
            f"{lost.height:,} of {some(every, 'launch')} ({share:.2g} %) have no GPU work although later ones do: the "
            "profiler dropped GPU activity, so GPU time is too short.",
            {"affected_count": lost.height, "launches_count": every, "share_pct": share},
        )  # fmt: skip
    if tail.height:
        share = 100 * tail.height / every
        yield Note(
            "launches-cut", weigh(share),
            f"The last {some(tail.height, 'launch')} ({share:.2g} % of all) have no GPU work: the recording ended "
            "before the GPU ran it, so the last step's GPU time is too short.",
            {"affected_count": tail.height, "launches_count": every, "share_pct": share},
        )  # fmt: skip
    copies = evidence.runtime.filter(pl.col("copy") & ~pl.col("has_work") & ~pl.col("captured")).height
    if copies:
        yield Note(
            "copies-without-work", "info",
            f"{some(copies, 'copy or memset call')} without GPU work: either of zero bytes, or their time is missing.",
            {"affected_count": copies},
        )  # fmt: skip
    captured = evidence.runtime.filter(pl.col("kernel") & pl.col("captured")).height
    if captured:
        yield Note(
            "launches-captured", "info",
            f"{some(captured, 'launch')} were captured into a CUDA graph: as expected, they started no GPU work.",
            {"affected_count": captured},
        )  # fmt: skip


def orphans(evidence: Evidence) -> Iterator[Note]:
    """GPU work whose launch is not in the recording."""
    work = evidence.orphans
    if not work.height:
        return
    if not evidence.runtime.height:
        yield Note(
            "no-launch-calls", "care",
            f"No runtime calls were recorded, so none of the {some(work.height, 'GPU task')} can be attributed to an "
            "operator or a step: only kernel durations can be used.",
            amount(work, evidence.gpu_ns),
        )  # fmt: skip
        return
    # Work queued earlier comes before anything that the recording launched on its stream, or if nothing, on any stream.
    first = evidence.linked.group_by("track_id").agg(first_ns=pl.col("start_ns").min())
    on_any = pl.lit(evidence.linked["start_ns"].min(), pl.Int64)
    launching = evidence.runtime.filter(pl.col("kernel") | pl.col("copy")).height > 0
    is_early = (pl.col("start_ns") < pl.coalesce("first_ns", on_any)).fill_null(value=not launching)
    known = work.join(first, on="track_id", how="left").with_columns(early=is_early)
    early, late = known.filter("early"), known.filter(~pl.col("early"))
    if early.height:
        values = amount(early, evidence.gpu_ns)
        yield Note(
            "launched-before", "info" if evidence.windows else "care",
            f"{_gpu_tasks(values)} queued before the recording began: "
            + ("excluded from step times." if evidence.windows else "without steps, included in all totals."),
            values,
        )  # fmt: skip
    if late.height:
        values = amount(late, evidence.gpu_ns)
        yield Note(
            "launch-unknown", weigh(float(values["share_pct"] or 0)),
            f"{_gpu_tasks(values)} without a launch, after the recording had begun: in no operator's or step's time.",
            values,
        )  # fmt: skip


def _gpu_tasks(values: dict[str, Value]) -> str:
    """3 GPU tasks (1.20 ms, 4.0 % of GPU time)."""
    count, spent, share = (values[name] for name in ("affected_count", "affected_ns", "share_pct"))
    tasks = some(int(count or 0), "GPU task")
    return f"{tasks} ({format_value('_ns', spent)}, {format_value('_pct', share)} of GPU time)"


def damaged_files(evidence: Evidence) -> Iterator[Note]:
    """What the Run holds beside the recording and cannot be used."""
    problems = evidence.trace.meta.get("damaged") or ()
    if problems:
        listed = "; ".join(problems[:3]) + (f"; and {len(problems) - 3:,} more" if len(problems) > 3 else "")
        yield Note(
            "damaged-files", "info",
            f"Damaged beside the recording, and therefore not used: {listed}.",
            {"affected_count": len(problems)},
        )  # fmt: skip


def steps(evidence: Evidence) -> Iterator[Note]:
    """Whether steps were marked and recorded completely."""
    windows = evidence.windows
    if not windows:
        yield Note(
            "no-steps", "care",
            "No steps are marked (call profiler.step() in the loop), so there is no step time, no spread and no way "
            f"to separate warm-up; all numbers are totals over the recording.{unmarked(evidence)}",
        )  # fmt: skip
        return
    whole = [step for step in windows if step.number not in evidence.cut]
    if evidence.cut:
        listed = [f"step {number} ({why})" for number, why in evidence.cut.items()]
        more = f" and {len(listed) - 3:,} more" if len(listed) > 3 else ""
        yield Note(
            "steps-cut", "care" if whole else "no",
            f"{len(listed):,} of {some(len(windows), 'step')} not recorded completely: {', '.join(listed[:3])}{more}; "
            + ("exclude them from averages." if whole else "there is no step time."),
            {"affected_count": len(listed), "steps_count": len(windows), "share_pct": 100 * len(listed) / len(windows)},
        )  # fmt: skip
    if len(whole) == 1:
        yield Note(
            "one-step", "care",
            f"Only one complete step (number {whole[0].number}) was recorded: the spread of step times is not known, and "
            "a disturbed step cannot be told from a normal one; record three or more.",
            {"steps_count": 1},
        )  # fmt: skip
    elif not evidence.cut:
        yield Note(
            "steps-whole", "info",
            f"All {len(windows)} steps were recorded completely"
            + (", launches with their GPU work." if evidence.trace.has_device else ", on the host."),
            {"steps_count": len(windows)},
        )  # fmt: skip


def recorded(evidence: Evidence) -> Iterator[Note]:
    """What was not recorded, and what is therefore not available."""
    trace, ops = evidence.trace, evidence.trace.ops
    if not ops.height:
        yield Note(
            "no-operators",
            "info",
            "No operators were recorded, so GPU work cannot be traced back to the code that launched it.",
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
        how = f"were requested ({flag}=True) but not recorded" if asked else f"need {flag}=True"
        # The host's time holds the cost of recording Python calls, which is then unknown.
        severity: Severity = "care" if asked and code == "no-stacks" else "info"
        yield Note(code, severity, f"{what} {how}: {cost}.", {"asked": asked})
    if "with_flops" in flags and ops.height and not ops["flops"].is_not_null().any():
        says = "FLOP counts were requested (with_flops=True), but torch does not write them: they are computed from shapes."
        yield Note("no-flops", "info", says, {"asked": True})
