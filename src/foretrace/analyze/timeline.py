"""The timeline of each device: what its time was spent on, in parts that sum exactly to the whole."""

from __future__ import annotations

from itertools import accumulate
from typing import Literal, NamedTuple

import numpy as np
import polars as pl

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import step_windows
from foretrace.errors import MissingDataError, UsageError
from foretrace.intervals import Intervals
from foretrace.trace import Trace
from foretrace.units import counted, format_value

Over = Literal["steps", "launched"]
_PARTS = ("computation", "exposed_communication", "exposed_copy", "earlier", "idle")
_OF_SPAN = "of span_ns of the same row; as a value, of span_ns summed over the rows"


class DeviceWindow(NamedTuple):
    """One device over one stretch of time; `step` is null for the whole."""

    device: int | None
    step: int | None
    period: MeasuredPeriod


@analysis(
    Subject.STEP,
    keep=(
        "device",
        "span_ns",
        "computation_pct",
        "idle_pct",
        "exposed_communication_pct",
        "exposed_copy_pct",
        "idle_ns",
        "gaps_count",
    ),
    denominators={
        **{f"{name}_pct": _OF_SPAN for name in _PARTS},
        "hidden_communication_pct": "of communication_ns: the part that overlaps with computation",
        "hidden_copy_pct": "of copy_ns: the part that overlaps with computation or communication",
    },
)
def timeline(
    trace: Trace, *, by: Literal["device", "step"] = "device", over: Over = "steps", macro_ns: int = 10_000
) -> Result:
    """What each device's time was spent on: computation, exposed communication, exposed copies, idle.

    The parts, each a union over all streams of the device, sum exactly to `span_ns`:

    computation_ns             a computing kernel or a memset was running
    exposed_communication_ns   a collective was running and nothing computed
    exposed_copy_ns            a copy was running, and nothing computed or communicated
    earlier_ns                 only work queued before the recording began was running
    idle_ns                    nothing was running

    communication_ns and copy_ns are the totals, including what overlaps with computation; total minus exposed is what
    overlapped. idle_ns is split further: macro_idle_ns in gaps of at least `macro_ns`, micro_idle_ns in shorter ones.
    A gap that the end of a step cuts in two counts by its length within each step.

    Span: with `over="steps"`, from the start of the first step on the GPU (its start on the host, or the end of the work
    that earlier steps had queued, if later) to the end of the last work launched by a complete step. With
    `over="launched"`, also used where no steps were recorded, from the first start to the last end of the work launched
    in the recording: TraceLens's definition.

    `by="step"` gives one row per device and step. A step lasts from the completion of the steps before it to its own
    completion (as gpu_ns of `steps`), so the rows sum to the device's.

    Every share is of span_ns of its row. Communication is recognised by its metadata or by name (NCCL, RCCL,
    cross_device_reduce); a collective with another name counts as computation. Work without a recorded launch counts in
    earlier_ns, unless no launches were recorded at all.
    """
    if macro_ns < 0:
        raise UsageError(f"timeline: macro_ns cannot be negative: {macro_ns}")
    work = device_time.device_work(trace)
    windows = device_windows(trace, work, by=by, over=over)
    devices = dict(device_time.by_device(work))
    frames = [
        _device_rows([window for window in windows if window.device == device], devices[device], macro_ns)
        for device in dict.fromkeys(window.device for window in windows)
    ]
    table = pl.concat(frames) if by == "step" else pl.concat(frames).drop("step")
    totals = {name: int(table[name].sum()) for name in table.columns if name.endswith("_ns")}
    shares = _shares({name: totals[f"{name}_ns"] for name in _PARTS}, totals["span_ns"])
    values: dict[str, Value] = {**totals, **shares}
    return Result(
        says=_says(values, table["device"].n_unique()),
        table=table,
        values=values,
        notes=_notes(work, windows, totals),
    )


def device_windows(
    trace: Trace, work: pl.DataFrame, *, by: Literal["device", "step"] = "device", over: Over = "steps"
) -> list[DeviceWindow]:
    """The periods that the timeline divides, for each device with launched work."""
    launched = work.filter(~pl.col("orphan"))
    if launched.is_empty():
        what = "no GPU work recorded; record with ProfilerActivity.CUDA"
        if work.height:
            what = "all GPU work was queued before the recording began; record more steps"
        raise MissingDataError(f"{trace.path.name}: {what}")
    devices = [device for device, _ in device_time.by_device(launched)]
    steps = _step_edges(trace) if over == "steps" or by == "step" else []
    if by == "step":
        if not steps:
            raise MissingDataError(
                f"{trace.path.name}: no step with GPU work recorded; call profiler.step() at the end of each iteration"
            )
        return [DeviceWindow(device, number, window) for device in devices for number, window in steps]
    if steps:
        whole = MeasuredPeriod(steps[0][1].start_ns, steps[-1][1].end_ns, "the steps")
        return [DeviceWindow(device, None, whole) for device in devices]
    spans = {device: _extent(rows) for device, rows in device_time.by_device(launched)}
    return [DeviceWindow(device, None, spans[device]) for device in devices]


def _extent(rows: pl.DataFrame) -> MeasuredPeriod:
    start_ns, end_ns = rows.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return MeasuredPeriod(int(start_ns), int(end_ns), "the launched work")


def _step_edges(trace: Trace) -> list[tuple[int, MeasuredPeriod]]:
    """The complete steps that launched GPU work, each from the completion of those before it to its own."""
    windows = step_windows(trace)
    whole = [window for window in windows if window.whole and window.launched_count]
    if not whole:
        return []
    ends = dict(
        trace.device_spans.drop_nulls("step").group_by("step").agg(pl.col("end_ns").max()).iter_rows()
    )
    edges = list(accumulate((ends[window.number] for window in whole), max, initial=windows[0].start_ns))
    return [
        (window.number, MeasuredPeriod(edges[place], edges[place + 1], "the step"))
        for place, window in enumerate(whole)
    ]


def free_time(work: pl.DataFrame, window: MeasuredPeriod) -> Intervals:
    """When nothing ran on a device within a window, including work queued before the recording."""
    return intervals.gaps(device_time.covered(work), window.start_ns, window.end_ns)


def _device_rows(windows: list[DeviceWindow], work: pl.DataFrame, macro_ns: int) -> pl.DataFrame:
    """The rows of one device."""
    starts = np.array([period.start_ns for _, _, period in windows], np.int64)
    ends = np.array([period.end_ns for _, _, period in windows], np.int64)
    lengths = {name: intervals.covered_ns(busy, starts, ends) for name, busy in _busy_sets(work).items()}
    free = free_time(work, MeasuredPeriod(int(starts[0]), int(ends[-1]), ""))
    inside = intervals.intersect(free, Intervals(starts, ends))
    long = inside.end - inside.start
    place = np.searchsorted(starts, inside.start, side="right") - 1
    for name, amount in (("idle", long), ("macro_idle", np.where(long >= macro_ns, long, 0))):
        lengths[name] = np.zeros(len(starts), np.int64)
        np.add.at(lengths[name], place, amount)
    lengths |= {"span": ends - starts, "micro_idle": lengths["idle"] - lengths["macro_idle"]}
    columns = {f"{name}_ns": pl.Series(length, dtype=pl.Int64) for name, length in lengths.items()}
    parts = ((f"{name}_ns", _share(f"{name}_ns", "span_ns").alias(f"{name}_pct")) for name in _PARTS)
    return pl.DataFrame(columns).select(
        pl.lit(windows[0].device, pl.Int32).alias("device"),
        pl.Series("step", [window.step for window in windows], dtype=pl.Int32),
        "span_ns",
        *(column for pair in parts for column in pair),
        *("communication_ns", _HIDDEN_COMMUNICATION, "copy_ns", _HIDDEN_COPY),
        pl.Series("gaps_count", np.bincount(place, minlength=len(starts)), dtype=pl.Int64),
        *("macro_idle_ns", "micro_idle_ns"),
    )


def _busy_sets(work: pl.DataFrame) -> dict[str, Intervals]:
    """When each part of the timeline was active, by the definitions of `device_time.timeline`; all but idle."""
    copies, talks, orphan = pl.col("kind") == "copy", pl.col("communication"), pl.col("orphan")
    computation, communication, copying, earlier, launched = (
        device_time.covered(work.filter(chosen))
        for chosen in (~orphan & ~copies & ~talks, ~orphan & talks, ~orphan & copies, orphan, ~orphan)
    )
    return {
        "computation": computation,
        "exposed_communication": intervals.subtract(communication, computation),
        "exposed_copy": intervals.subtract(intervals.subtract(copying, computation), communication),
        "earlier": intervals.subtract(earlier, launched),
        "communication": communication,
        "copy": copying,
    }


def _share(part: str | pl.Expr, whole: str) -> pl.Expr:
    amount = pl.col(part) if isinstance(part, str) else part
    return pl.when(pl.col(whole) > 0).then(100 * amount / pl.col(whole))


_HIDDEN_COMMUNICATION = _share(
    pl.col("communication_ns") - pl.col("exposed_communication_ns"), "communication_ns"
).alias("hidden_communication_pct")
_HIDDEN_COPY = _share(pl.col("copy_ns") - pl.col("exposed_copy_ns"), "copy_ns").alias("hidden_copy_pct")


def _shares(measured: dict[str, int], span_ns: int) -> dict[str, Value]:
    return {f"{name}_pct": 100 * length / span_ns if span_ns else None for name, length in measured.items()}


def _says(values: dict[str, Value], devices: int) -> str:
    shown = [name for name in _PARTS if values[f"{name}_ns"] or name in ("computation", "idle")]
    shares = ", ".join(
        f"{format_value('_pct', values[f'{name}_pct'])} {name.replace('_', ' ')}" for name in shown
    )
    where = "" if devices == 1 else f" over {counted(devices, 'device')}"
    return f"{format_value('_ns', values['span_ns'])}{where}: {shares}"


def _notes(work: pl.DataFrame, windows: list[DeviceWindow], totals: dict[str, int]) -> tuple[str, ...]:
    notes = []
    if windows[0].period.says == "the launched work":
        notes.append("the span covers launched work only: host time before its first start is not included")
    orphans = int(work["orphan"].sum())
    if orphans:
        alone = f"; {format_value('_ns', totals['earlier_ns'])} in which only they ran is earlier_ns"
        excluded = f"excluded from all other parts{alone}" if totals["earlier_ns"] else "excluded"
        notes.append(f"{device_time.queued_before(orphans)}: {excluded}")
    return tuple(notes)
