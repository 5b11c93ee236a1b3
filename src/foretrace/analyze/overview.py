"""The overview: how long a step takes, how busy the GPU is, and what its time is spent on."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.device_time import MeasuredPeriod, Timeline
from foretrace.analyze.concepts.work import throughput
from foretrace.analyze.result import Result, Subject, Value, analysis
from foretrace.analyze.steps import StepWindow, measured_window, step_windows, summary
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_LAUNCHED = "of the device's span: from the first start to the last end of launched work"
_KERNEL_TIME = "a mean over kernels, weighted by duration: of kernel time, not of the window"


@dataclass(frozen=True)
class DeviceOverview:
    """One device, or all of them together where `device` is null and `name` says so."""

    device: int | None
    name: str
    kernel_count: int
    copy_count: int
    timeline: Timeline
    utilisation_pct: float | None
    sm_efficiency_pct: float | None
    occupancy_pct: float | None
    gpu_idle_pct: float | None
    gpu_exposed_communication_pct: float | None
    gpu_exposed_copy_pct: float | None


_OF_WINDOW = ("gpu_idle_pct", "gpu_exposed_communication_pct", "gpu_exposed_copy_pct")


@analysis(
    Subject.STEP,
    keep=(
        "device",
        "name",
        "busy_pct",
        "idle_pct",
        "computation_pct",
        "exposed_communication_pct",
        "exposed_copy_pct",
        "sm_efficiency_pct",
        "span_ns",
    ),
)
def overview(trace: Trace) -> Result:
    """How long a step takes, how busy the GPU is, and what its time is spent on.

    One row per device; with several devices, a last row for all of them together.

    Steps (medians over complete steps; a last step whose GPU work was cut off does not count):
        step_gpu_ns: time between completions: from the end of the GPU work of earlier steps to the end of this
            step's.
        step_host_ns: duration of the program's own step annotation.
        launches_per_step_count, kernels_per_step_count: by the step that launched them.
        items_per_step_count, tokens_per_step_count, items_per_s, tokens_per_s: what a step takes in, as recorded and
            where shapes tell it beyond doubt; batch_source says what tells it. See `steps`.

    Utilisation, as shares of the measured window (from the start of the first to the end of the last complete
    step; without steps, of the recording):
        utilisation_pct, gpu_busy_pct: time with at least one kernel running. Copies do not count; overlapping
            kernels count once.
        sm_efficiency_pct: integral of min(sum of concurrent kernels' blocks per SM, 1) over the window, where
            blocks per SM = grid size / number of SMs. An estimate from launch geometry, not a counter.
        gpu_idle_pct: nothing at all running, neither kernels nor copies.
        gpu_exposed_communication_pct, gpu_exposed_copy_pct: communication with no computation beside it; copies with
            neither.
        occupancy_pct: sum of occupancy x duration / sum of duration over kernels: a share of kernel time, not of
            the window.

    Timeline: five parts that sum exactly to span_ns, from the first start to the last end of the work launched in
    the recording:
        span_ns: the whole timeline.
        computation_ns: union of memsets and of kernels that do not communicate.
        exposed_communication_ns: union of communication kernels, without computation.
        exposed_copy_ns: union of copies, without either.
        earlier_ns: only work queued before the recording began was running.
        idle_ns: nothing was running. busy_ns is the first three together.
        communication_ns, copy_ns: the same unions, including what overlaps with computation.

    Work queued before the recording began belongs to no step and counts only in earlier_ns; orphan_count and
    orphan_ns say how much there is.

    What it cannot tell: why the GPU was idle. See `idle`.
    """
    windows = step_windows(trace)
    window = measured_window(trace, windows)
    values: dict[str, Value] = {
        **summary(windows),
        **throughput.values(trace, windows),
        **_per_step(trace, windows),
    }
    if not trace.has_device:
        return _without_device(trace, values)
    work = device_time.device_work(trace)
    in_window = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    fill = device_time.kernel_fill(trace).filter(in_window)
    names = device_time.device_names(trace)
    devices = _devices(names, work, fill, window)
    values["devices"] = ", ".join(dict.fromkeys(names.values()))
    values |= _headline(devices, work, window)
    return Result(
        says=_says(values),
        table=_table(devices),
        values=values,
        denominators=_denominators(window),
        notes=_notes(work, fill, devices),
    )


def _devices(
    names: dict[int | None, str], work: pl.DataFrame, fill: pl.DataFrame, window: MeasuredPeriod
) -> list[DeviceOverview]:
    """Each device that did work; with several, then all of them together."""
    filled = dict(device_time.by_device(fill))
    rows = [
        _device(device, names[device], spans, filled.get(device, fill.clear()), window)
        for device, spans in device_time.by_device(work)
        if not spans["orphan"].all()
    ]
    if len(rows) < 2:
        return rows
    together = DeviceOverview(
        device=None,
        name=f"all {len(rows)} devices",
        kernel_count=sum(row.kernel_count for row in rows),
        copy_count=sum(row.copy_count for row in rows),
        timeline=device_time.timeline(work),
        utilisation_pct=_mean([row.utilisation_pct for row in rows]),
        sm_efficiency_pct=_mean([row.sm_efficiency_pct for row in rows]),
        occupancy_pct=_mean([row.occupancy_pct for row in rows]),
        **{name: _mean([getattr(row, name) for row in rows]) for name in _OF_WINDOW},
    )
    return [*rows, together]


def _device(
    device: int | None, name: str, work: pl.DataFrame, fill: pl.DataFrame, window: MeasuredPeriod
) -> DeviceOverview:
    launched = work.filter(~pl.col("orphan"))
    return DeviceOverview(
        device=device,
        name=name,
        kernel_count=int((launched["kind"] == "kernel").sum()),
        copy_count=int((launched["kind"] == "copy").sum()),
        timeline=device_time.timeline(work),
        utilisation_pct=device_time.utilisation_pct(fill, window),
        sm_efficiency_pct=device_time.sm_efficiency_pct(fill, window),
        occupancy_pct=device_time.occupancy_pct(fill, window),
        **_of_window(work, window),
    )


def _of_window(work: pl.DataFrame, window: MeasuredPeriod) -> dict[str, float | None]:
    """What of the window nothing runs in, and what moves data with nothing beside it."""
    if window.length_ns <= 0:
        return dict.fromkeys(_OF_WINDOW)
    inside = work.select(
        "kind",
        "communication",
        "orphan",
        start_ns=pl.col("start_ns").clip(lower_bound=window.start_ns),
        end_ns=pl.col("end_ns").clip(upper_bound=window.end_ns),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))
    parts = device_time.timeline(inside)
    idle_ns = window.length_ns - device_time.covered(inside).total_ns
    lengths = (idle_ns, parts.exposed_communication_ns, parts.exposed_copy_ns)
    return {name: 100 * length / window.length_ns for name, length in zip(_OF_WINDOW, lengths, strict=True)}


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _per_step(trace: Trace, windows: tuple[StepWindow, ...]) -> dict[str, Value]:
    """Launches and kernels per complete step, where steps launched any."""
    numbers = [window.number for window in windows if window.averaged]
    work = trace.device_spans.filter(pl.col("step").is_in(numbers))
    if not numbers or work.is_empty():
        return {"launches_per_step_count": None, "kernels_per_step_count": None}
    launches = work["launch_id"].drop_nulls().n_unique()
    return {
        "launches_per_step_count": launches / len(numbers) if launches else None,
        "kernels_per_step_count": int((work["kind"] == "kernel").sum()) / len(numbers),
    }


def _headline(devices: list[DeviceOverview], work: pl.DataFrame, window: MeasuredPeriod) -> dict[str, Value]:
    orphans = work.filter(pl.col("orphan"))
    values: dict[str, Value] = {
        "measured_ns": window.length_ns,
        "orphan_count": orphans.height,
        "orphan_ns": device_time.covered(orphans).total_ns,
    }
    if not devices:
        return values
    whole = devices[-1]
    parts = _parts(whole.timeline)
    return values | {
        "gpu_busy_pct": whole.utilisation_pct,
        "sm_efficiency_pct": whole.sm_efficiency_pct,
        "occupancy_pct": whole.occupancy_pct,
        **{name: getattr(whole, name) for name in _OF_WINDOW},
        **parts,
    }


def _parts(timeline: Timeline) -> dict[str, int | float | None]:
    """The timeline as columns: each part, and its share of the span."""
    names = ("computation", "exposed_communication", "exposed_copy", "earlier", "idle", "busy")
    lengths: dict[str, int] = {name: getattr(timeline, f"{name}_ns") for name in names}
    span = timeline.span_ns
    shares = {f"{name}_pct": 100 * length / span if span else None for name, length in lengths.items()}
    totals = {"communication_ns": timeline.communication_ns, "copy_ns": timeline.copy_ns}
    return {"span_ns": span, **{f"{name}_ns": length for name, length in lengths.items()}, **totals, **shares}


def _table(devices: list[DeviceOverview]) -> pl.DataFrame:
    empty = {name: pl.Float64 if name.endswith("_pct") else pl.Int64 for name in _parts(_NOTHING)}
    measures = ("utilisation_pct", "sm_efficiency_pct", "occupancy_pct", *_OF_WINDOW)
    schema = {"device": pl.Int32, "name": pl.String, "kernel_count": pl.Int64, "copy_count": pl.Int64}
    rows = [
        {
            **{name: getattr(row, name) for name in (*schema, *measures)},
            **_parts(row.timeline),
        }
        for row in devices
    ]
    return pl.DataFrame(rows, schema={**schema, **dict.fromkeys(measures, pl.Float64), **empty})


_NOTHING = Timeline(0, 0, 0, 0, 0, 0)


def _denominators(window: MeasuredPeriod) -> dict[str, str]:
    of_window = f"of {window.says}"
    shares = {name: _LAUNCHED for name in _parts(_NOTHING) if name.endswith("_pct")}
    return {
        "gpu_busy_pct": f"time with at least one kernel running (copies do not count), {of_window}",
        "utilisation_pct": f"time with at least one kernel running (copies do not count), {of_window}",
        "sm_efficiency_pct": f"estimated share of SMs with a block, over {window.says}",
        "occupancy_pct": _KERNEL_TIME,
        "gpu_idle_pct": f"time with nothing running, {of_window}",
        "gpu_exposed_communication_pct": f"communication without computation, {of_window}",
        "gpu_exposed_copy_pct": f"copies with nothing beside them, {of_window}",
        "launches_per_step_count": "calls that started GPU work, per complete step",
        "kernels_per_step_count": "kernels by the step that launched them, per complete step",
        **shares,
    }


def _says(values: dict[str, Value]) -> str:
    names = ("step_gpu_ns", "step_host_ns", "step_count", "gpu_busy_pct", "gpu_idle_pct")
    gpu, host, count, busy, idle = map(values.get, names)
    device = values["devices"]
    state = (
        f"{device} runs kernels {busy:.1f} % of the time, and is idle {idle:.1f} %"
        if isinstance(busy, float) and isinstance(idle, float)
        else f"{device}: no work launched"
    )
    if not isinstance(host, int) or not isinstance(count, int):
        return f"no steps recorded; {state}"
    on_host = f"{format_value('_ns', host)} on the host's"
    noun = f"{values['step_kind']} step" if values.get("step_kind") else "step"
    if not isinstance(gpu, int):
        return f"{counted(count, noun)} of {on_host} clock; {state}"
    return f"{counted(count, noun)} of {format_value('_ns', gpu)} on the GPU's clock ({on_host}); {state}"


def _notes(work: pl.DataFrame, fill: pl.DataFrame, devices: list[DeviceOverview]) -> tuple[str, ...]:
    notes = []
    orphans = work.filter(pl.col("orphan"))
    if orphans.height:
        queued = device_time.queued_before(orphans.height, device_time.covered(orphans).total_ns)
        notes.append(f"{queued}: excluded from all totals; earlier_ns is the time in which only they ran")
    if work["launch_id"].null_count() == work.height:
        notes.append("no GPU work is linked to its launch: all GPU work is counted")
    if len(devices) > 1:
        notes.append(
            "all devices together: the timeline is that of their union, the three estimates are means over devices"
        )
    # A block on every SM is at least 1.6 % occupancy: 0 says that the profiler could not estimate it.
    unknown = fill.filter((pl.col("occupancy_pct") == 0) & (pl.col("blocks_per_sm") >= 1))
    if unknown.height:
        share = 100 * int(unknown["dur_ns"].sum()) / max(int(fill["dur_ns"].sum()), 1)
        notes.append(
            f"{counted(unknown.height, 'kernel')} with a block on every SM, {share:.1f} % of kernel time, "
            "report 0 % occupancy: the profiler could not estimate it, so occupancy_pct is too low"
        )
    if note := device_time.without_occupancy(fill):
        notes.append(note)
    if missing := fill["blocks_per_sm"].null_count():
        given = device_time.mostly_recorded(fill, "blocks_per_sm")
        effect = "too low" if given else "not given"
        notes.append(f"{counted(missing, 'kernel')} without a recorded grid: sm_efficiency_pct is {effect}")
    return tuple(notes)


def _without_device(trace: Trace, values: dict[str, Value]) -> Result:
    ops = trace.spans.filter(pl.col("kind") == "op")
    host: dict[str, Value] = {
        "recording_ns": trace.duration_ns,
        "op_count": ops.height,
        "thread_count": ops["track_id"].n_unique(),
    }
    count, length = values["step_count"], values["step_host_ns"]
    steps = "no steps"
    if isinstance(length, int) and isinstance(count, int):
        steps = f"{counted(count, 'step')} of {format_value('_ns', length)}"
    says = (
        f"no GPU work recorded; on the host: {steps}, {counted(ops.height, 'operator')} "
        f"on {counted(ops['track_id'].n_unique(), 'thread')} in {format_value('_ns', trace.duration_ns)}"
    )
    table = _table([])
    known = _denominators(MeasuredPeriod(0, trace.duration_ns, "the recording"))
    known = {name: of for name, of in known.items() if name in table.columns or name in values}
    return Result(
        says=says,
        table=table,
        values={**values, **host},
        denominators=known,
        notes=("no GPU work recorded",),
    )
