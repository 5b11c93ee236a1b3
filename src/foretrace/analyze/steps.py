"""Steps: how long each took, on the host's and on the GPU's clock, and what its time was spent on.

`host_ns` is the duration of the program's own step annotation. Where the host runs ahead of the GPU, that is the time to
*enqueue* a step, not to compute it.

`gpu_ns` is the time between completions: from the end of all GPU work launched by earlier steps to the end of this
step's. A GPU span belongs to the step that launched it. If the GPU is the limit, that is the time the GPU needs for a
step; if the host is, it is the host's period. The first step is measured from the end of what earlier, unrecorded steps
had left in the queue, or from its own start on the host if the queue was empty by then: never from its first kernel,
which would hide the time that the GPU waited for it. Over a recording the median is given: unlike a mean over three
steps, it is not moved by one step that was slowed down when the profiler started or flushed.

Roles are those of the TensorBoard plugin. Each takes the time that earlier roles left, so they sum to `wall_ns`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod
from foretrace.analyze.concepts.host import cut_steps, settled_steps
from foretrace.analyze.concepts.names import named_spans
from foretrace.analyze.concepts.names.named_spans import Ids
from foretrace.analyze.concepts.work import throughput
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.errors import MissingDataError
from foretrace.intervals import Intervals
from foretrace.trace import Step, Trace, once_per_trace
from foretrace.units import counted, format_value

ROLES = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu_exec", "other")
_DEVICE_ROLES = ROLES[:3]
_LOADING = r"^enumerate\(DataLoader\)#.*\.__next__$|^enumerate\(DataPipe\)#"
_COLLECTIVE_CALL = r"^(?:nccl|rccl|gloo|mpi|ucc|xccl):"
_STEP_MARK = r"^ProfilerStep#\d+$"
# The plugin's: a last step with less device work than this share of the one before was cut off.
_CUT_OFF_BELOW = 0.8
_WAITING = 0.05  # of the step: shorter waits for input are part of its normal spread
_UNSETTLED = "warmed the program up, or waited for the profiler to allocate its buffers"
_AT_ONCE = 1 << 17  # spans whose times are copied at once


@dataclass(frozen=True)
class StepWindow:
    """A step: on the host, on the GPU, and as the interval that its roles divide."""

    number: int
    host_ns: int
    gpu_ns: int | None  # null where the step launched no GPU work
    start_ns: int  # the host's start, or the previous step's end if that is later
    end_ns: int  # the host's end, or the end of the last GPU work that it launched
    launched_count: int  # GPU spans
    whole: bool  # False for a last step whose GPU work was cut off
    kind: str | None = None  # of a server's step: prefill, decode, ...
    averaged: bool = False  # whether it is settled: see settled_steps.py
    done_ns: int | None = None  # when all GPU work up to this step's was done: `gpu_ns` ends there

    @property
    def wall_ns(self) -> int:
        """Length of the interval that is divided."""
        return self.end_ns - self.start_ns


@analysis(
    Subject.STEP,
    keep=("step", "kind", "wall_ns", "gpu_ns", "host_ns", *(f"{role}_ns" for role in ROLES)),
    denominators={
        **{f"{role}_pct": "of wall_ns, summed over complete steps" for role in ROLES},
        "items_per_s": "as recorded, of the time between completions",
        "tokens_per_s": "as recorded, of the time between completions",
    },
)
def steps(trace: Trace) -> Result:
    """Each step on the host's and the GPU's clock, and what its time was spent on.

    Three clocks:
        host_ns: duration of the program's own step annotation. Where the host runs ahead, that is the time to enqueue
            a step, not to compute it.
        gpu_ns: time between completions: from the end of all GPU work launched by earlier steps to the end of this
            step's. If the GPU is the limit, that is what the GPU needs; if the host is, it is the host's period.
        wall_ns: from the start on the host (or the end of the previous step, if later) to the end of the last work
            that the step launched (or its end on the host, if later). The roles divide this time.

    Roles, which sum to wall_ns; time with several roles counts for the first of them in this order:
        kernel_ns, memcpy_ns, memset_ns: on the GPU, except communication kernels.
        communication_ns: NCCL, RCCL and gloo, kernels and calls.
        runtime_ns: CUDA or HIP calls.
        dataloader_ns: waiting for the next batch.
        cpu_exec_ns: operators and annotations.
        other_ns: none of these, for example Python code outside operators.

    Where the recorded shapes tell the batch beyond doubt (`batch_source` says what tells it):
        items_count, tokens_count: what the step took in, on this rank.
        items_per_s, tokens_per_s: the same per second of gpu_ns, or of host_ns without a GPU: as recorded, which
            recording makes slower. The values beside the table are medians: of the items, over the median step.

    A GPU span belongs to the step that launched it. A last step with less than 80 % of the GPU work of the step before
    was cut off by the end of the recording: `whole` is no, and averages exclude it.

    Where step() was not called, steps are what else marks them: ranges named with --step, optimizer steps, an inference
    server's ranges, batches of a DataLoader, or the program's own ranges. `show trust` says which were taken. An inference
    server's steps have a `kind`: prefill, decode or mixed. Averages are of the kind that takes most time; of the others,
    number and medians are given beside.

    What it cannot tell: steps that nothing marks.
    """
    windows = step_windows(trace)
    if not windows:
        raise MissingDataError(
            f"{trace.path.name}: no steps recorded; call profiler.step() at the end of each iteration, or name the "
            "range that is one with --step"
        )
    table = throughput.columns(trace, _table(trace, windows))
    averaged = table.filter(pl.Series([window.averaged for window in windows], dtype=pl.Boolean))
    values = {**summary(windows), **throughput.values(trace, windows), **_of_kinds(windows)}
    total = int(averaged["wall_ns"].sum())
    for role in ROLES:
        part = averaged[f"{role}_ns"].drop_nulls()
        values[f"{role}_pct"] = 100 * int(part.sum()) / total if total and len(part) else None
    return Result(says=_says(values, windows), table=table, values=values, notes=_notes(trace, windows))


def summary(windows: tuple[StepWindow, ...]) -> dict[str, Value]:
    """Number and time of the complete steps: the median on each clock, the mean of `wall_ns`."""
    whole = [window for window in windows if window.averaged]
    on_gpu = [window.gpu_ns for window in whole if window.gpu_ns is not None]
    kind = whole[0].kind if whole else None
    return {
        **({} if kind is None else {"step_kind": kind}),
        "step_count": len(whole),
        "step_gpu_ns": round(float(np.median(on_gpu))) if on_gpu else None,
        "step_host_ns": round(float(np.median([window.host_ns for window in whole]))) if whole else None,
        "step_wall_ns": round(sum(window.wall_ns for window in whole) / len(whole)) if whole else None,
    }


@once_per_trace
def recorded_step_ns(trace: Trace) -> float | None:
    """The recorded step: the median of the settled ones.

    Waits for input that come in bursts are averaged: the median step may hold none of them, or the longest.
    """
    windows = step_windows(trace)
    whole = [window for window in windows if window.averaged]
    if not whole:
        return None
    on_gpu = [window.gpu_ns for window in whole if window.gpu_ns is not None]
    times = np.array(on_gpu if len(on_gpu) == len(whole) else [window.host_ns for window in whole])
    waits = settled_steps.input_wait_ns(trace, whole)
    waiting = waits > _WAITING * times
    if waits.mean() < _WAITING * times.mean() or waiting.all():
        median = summary(windows)["step_gpu_ns" if len(on_gpu) == len(whole) else "step_host_ns"]
        return float(median) if isinstance(median, int) else None
    return max(float(np.median(np.maximum(times - waits, 0)) + waits.mean()), 1.0)


@once_per_trace
def step_windows(trace: Trace) -> tuple[StepWindow, ...]:
    """All recorded steps, in order of start on the host."""
    hosts = _host_steps(trace)
    if not hosts:
        return ()
    launched = _launched(trace)
    counts = [launched.get(host.number, (0, 0))[0] for host in hosts]
    last_ends = [launched.get(host.number, (0, host.start_ns))[1] for host in hosts]
    keep = _whole_count(counts, [host.kind for host in hosts])
    before = max(hosts[0].start_ns, _left_over_end(trace, until_ns=max(last_ends)))
    completions = list(accumulate(last_ends, max, initial=before))
    windows = []
    end_ns = before if any(counts) else hosts[0].start_ns
    for index, (host, count, last_end) in enumerate(zip(hosts, counts, last_ends, strict=True)):
        start_ns = max(end_ns, host.start_ns)
        end_ns = max(start_ns, host.end_ns, last_end)
        windows.append(
            StepWindow(
                number=host.number,
                host_ns=host.end_ns - host.start_ns,
                gpu_ns=completions[index + 1] - completions[index] if count else None,
                start_ns=start_ns,
                end_ns=end_ns,
                launched_count=count,
                whole=index < keep,
                kind=host.kind,
                done_ns=completions[index + 1] if count else None,
            )
        )
    most = _main_kind(windows)
    cut = cut_steps.cut_steps(trace, windows)
    candidates = [
        window for window in windows if window.whole and window.kind == most and window.number not in cut
    ]
    settled = settled_steps.settled(trace, candidates)
    return tuple(replace(window, averaged=window.number in settled) for window in windows)


def _main_kind(windows: list[StepWindow]) -> str | None:
    """The kind of step that most time went to; null where steps have none."""
    spent: dict[str | None, int] = {}
    for window in windows:
        if window.whole:
            spent[window.kind] = spent.get(window.kind, 0) + window.wall_ns
    return max(spent, key=lambda kind: spent[kind], default=None)


def _of_kinds(windows: tuple[StepWindow, ...]) -> dict[str, Value]:
    """Number and medians of the complete steps of each kind, where there are several."""
    values: dict[str, Value] = {}
    kinds = list(dict.fromkeys(window.kind or "other" for window in windows if window.whole))
    for kind in kinds if len(kinds) > 1 else ():
        own = [window for window in windows if window.whole and (window.kind or "other") == kind]
        on_gpu = [window.gpu_ns for window in own if window.gpu_ns is not None]
        name = kind.replace(" ", "_")
        values[f"{name}_step_count"] = len(own)
        values[f"{name}_step_gpu_ns"] = round(float(np.median(on_gpu))) if on_gpu else None
        values[f"{name}_step_host_ns"] = round(float(np.median([window.host_ns for window in own])))
    return values


def measured_window(trace: Trace, windows: tuple[StepWindow, ...]) -> MeasuredPeriod:
    """What utilisation is a share of: the complete steps, warm-up included, or without steps, the recording."""
    whole = [window for window in windows if window.whole]
    if whole:
        says = "the steps: from the start of the first to the end of the last complete one"
        return MeasuredPeriod(whole[0].start_ns, whole[-1].end_ns, says)
    work = device_time.device_work(trace).filter(~pl.col("orphan"))
    host = trace.spans.filter(pl.col("kind") == "op").select(
        "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    )
    both = pl.concat((host, work.select("start_ns", "end_ns")))
    start_ns, end_ns = both.select(
        pl.col("start_ns").min().fill_null(0), pl.col("end_ns").max().fill_null(0)
    ).row(0)
    return MeasuredPeriod(
        int(start_ns),
        int(end_ns),
        "the recording: from the first start to the last end of operators and launched work",
    )


def _host_steps(trace: Trace) -> list[Step]:
    """The host's steps; annotations with the same number (of several threads) are one step."""
    merged: dict[int, Step] = {}
    for step in trace.steps:
        known = merged.get(step.number, step)
        merged[step.number] = Step(
            step.number, min(known.start_ns, step.start_ns), max(known.end_ns, step.end_ns), known.kind
        )
    return sorted(merged.values(), key=lambda step: step.start_ns)


def _launched(trace: Trace) -> dict[int, tuple[int, int]]:
    """For each step that launched GPU work: how many spans, and when the last of them ended."""
    work = trace.device_spans.select("step", "end_ns").drop_nulls("step")
    rows = work.group_by("step").agg(pl.len(), pl.col("end_ns").max())
    return {step: (count, end_ns) for step, count, end_ns in rows.iter_rows()}


def _whole_count(counts: list[int], kinds: list[str | None]) -> int:
    """How many steps there are without a last one whose GPU work was cut off: less than the one of its kind before it."""
    if len(counts) < 2 or not any(counts):
        return len(counts)
    last = max(index for index, count in enumerate(counts) if count)
    before = [counts[index] for index in range(last) if kinds[index] == kinds[last]]
    cut = bool(before) and counts[last] < _CUT_OFF_BELOW * before[-1]
    return last if cut else last + 1


def _left_over_end(trace: Trace, *, until_ns: int) -> int:
    """When the work queued by earlier, unrecorded steps was done; 0 where there is none.

    Streams run in order: such work starts before the first work on its stream that a step launched. On streams where no
    step launched anything, it counts only up to the first work of any step.
    """
    spans = trace.device_spans.select("track_id", "start_ns", "end_ns", "step")
    of_steps = spans.drop_nulls("step")
    first = of_steps.group_by("track_id").agg(first_ns=pl.col("start_ns").min())
    earliest = of_steps["start_ns"].min()
    if earliest is None:
        return 0
    others = spans.filter(pl.col("step").is_null()).join(first, on="track_id", how="left")
    earlier = others.filter(pl.col("start_ns") < pl.col("first_ns").fill_null(earliest))
    return int(earlier.filter(pl.col("end_ns") <= until_ns)["end_ns"].max() or 0)  # type: ignore[arg-type]


def _table(trace: Trace, windows: tuple[StepWindow, ...]) -> pl.DataFrame:
    starts = np.array([window.start_ns for window in windows], np.int64)
    ends = np.array([window.end_ns for window in windows], np.int64)
    columns = {}
    claimed, taken = intervals.EMPTY, np.zeros(len(windows), np.int64)
    for role, busy in _role_intervals(trace).items():
        # What is claimed is kept as a set: the plugin restarts with the full step once nothing is left (200 %).
        claimed, before = intervals.either(claimed, busy), taken
        taken = intervals.covered_ns(claimed, starts, ends) if len(busy.start) else before
        part = taken - before
        recorded = trace.has_device or role not in _DEVICE_ROLES
        columns[f"{role}_ns"] = (
            pl.Series(part) if recorded else pl.Series([None] * len(windows), dtype=pl.Int64)
        )
    columns["other_ns"] = pl.Series(ends - starts - taken)
    schema = {"step": pl.Int32, "whole": pl.Boolean, "launched_count": pl.Int64}
    times = dict.fromkeys(("start_ns", "wall_ns", "gpu_ns", "host_ns"), pl.Int64)
    rows = [
        (step.number, step.whole, step.launched_count, step.start_ns, step.wall_ns, step.gpu_ns, step.host_ns)
        for step in windows
    ]
    table = pl.DataFrame(rows, schema={**schema, **times}, orient="row").with_columns(**columns)
    kinds = pl.Series("kind", [step.kind for step in windows], dtype=pl.String)
    return table if kinds.null_count() == len(kinds) else table.insert_column(1, kinds)


def _role_intervals(trace: Trace) -> dict[str, Intervals]:
    """When each role was active, on any device or thread; all but `other`."""
    work = device_time.device_work(trace)
    work = work.select("kind", "communication", "start_ns", "end_ns")
    talks, kind = pl.col("communication"), pl.col("kind")
    begin = trace.spans["start_ns"].to_numpy()
    lasting = trace.spans["dur_ns"].fill_null(0).to_numpy()  # without a sound duration, nothing

    def covered(ids: Ids) -> Intervals:
        parts = [intervals.EMPTY]
        for first in range(0, len(ids), _AT_ONCE):
            some = ids[first : first + _AT_ONCE]
            start = begin[some]
            parts.append(intervals.union(start, start + lasting[some]))
        starts, ends = zip(*parts, strict=True)
        return intervals.union(np.concatenate(starts), np.concatenate(ends))

    # Python frames cover a thread's whole time, including waits: they would leave nothing for `other`.
    host = named_spans.on_host(trace)
    calls = host & named_spans.of_kind(trace, ("op", "annotation"))
    calls[_step_ranges(trace)] = False
    collective, loading, mark = (
        named_spans.ids_like(trace, ("op", "annotation"), pattern)
        for pattern in (_COLLECTIVE_CALL, _LOADING, _STEP_MARK)
    )
    at_work = calls.copy()
    for ids in (collective, loading, mark):
        at_work[ids] = False
    talking = device_time.covered(work.filter(talks))
    calling = covered(collective[calls[collective]])
    return {
        "kernel": device_time.covered(work.filter((kind == "kernel") & ~talks)),
        "memcpy": device_time.covered(work.filter(kind == "copy")),
        "memset": device_time.covered(work.filter(kind == "set")),
        "communication": intervals.either(talking, calling),
        "runtime": covered(np.flatnonzero(host & named_spans.of_kind(trace, "runtime"))),
        "dataloader": covered(loading[calls[loading]]),
        "cpu_exec": covered(np.flatnonzero(at_work)),
    }


def _step_ranges(trace: Trace) -> Ids:
    """Ids of the annotations that are the steps themselves: they cover all of them."""
    ids = np.flatnonzero(named_spans.of_kind(trace, "annotation"))
    ranges = trace.spans.select("start_ns", "dur_ns")[ids].drop_nulls()
    known = trace.spans["dur_ns"].is_not_null().to_numpy()[ids]
    steps = {(step.start_ns, step.end_ns) for step in trace.steps}
    both = zip(ranges["start_ns"].to_list(), ranges["dur_ns"].to_list(), strict=True)
    same = [(start, start + dur) in steps for start, dur in both]
    found: Ids = ids[known][np.array(same, bool)]
    return found


def _says(values: dict[str, Value], windows: tuple[StepWindow, ...]) -> str:
    gpu, host, count = values["step_gpu_ns"], values["step_host_ns"], values["step_count"]
    if not isinstance(host, int) or not isinstance(count, int):
        return "no step was recorded completely"
    parts = {role: float(values[f"{role}_pct"] or 0) for role in ROLES}
    largest = sorted(parts, key=lambda role: -parts[role])[:2]
    shares = " and ".join(f"{parts[role]:.1f} % {role.replace('_', ' ')}" for role in largest)
    clock = f"{format_value('_ns', gpu)} on the GPU's clock, " if isinstance(gpu, int) else ""
    kind = values.get("step_kind")
    noun = f"{kind} step" if kind else "step"
    beside_them = [window for window in windows if window.whole and not window.averaged]
    others = Counter(window.kind or "other" for window in beside_them if window.kind != kind)
    beside = "".join(f"; beside {counted(number, f'{other} step')}" for other, number in others.items())
    unsettled = sum(window.kind == kind for window in beside_them)
    beside += f"; without {counted(unsettled, 'unsettled step')}" if unsettled else ""
    rate = f"; {taken}" if (taken := throughput.says(values)) else ""
    return (
        f"{counted(count, noun)} of {clock}{format_value('_ns', host)} on the host's; {shares}{beside}{rate}"
    )


def _notes(trace: Trace, windows: tuple[StepWindow, ...]) -> tuple[str, ...]:
    notes = []
    cut = [window for window in windows if not window.whole]
    kinds = {window.kind for window in windows if window.averaged}
    unsettled = [
        window.number for window in windows if window.whole and not window.averaged and window.kind in kinds
    ]
    if unsettled:
        notes.append(f"excluded from the averages: step {', '.join(map(str, unsettled))}, which {_UNSETTLED}")
    if cut:
        notes.append(
            f"excluded from the averages: step {', '.join(str(step.number) for step in cut)}, "
            f"with less than {_CUT_OFF_BELOW:.0%} of the GPU work of the step before"
        )
    if not trace.has_device:
        notes.append("no GPU work recorded: host time only")
    elif not any(window.launched_count for window in windows):
        notes.append("no GPU work is linked to a step: gpu_ns is not known")
    elif idle := [window.number for window in windows if window.whole and not window.launched_count]:
        notes.append(
            f"{counted(len(idle), 'step')} launched no GPU work: their time is in the next step's gpu_ns"
        )
    return tuple(notes)
