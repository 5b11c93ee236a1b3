"""Where the time of the steps goes by kind of work, step by step, and one step column by column."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import intervals
from foretrace.analyze.concepts.device import device_time
from foretrace.analyze.concepts.device.phases import PHASES
from foretrace.analyze.concepts.host import runtime_calls
from foretrace.analyze.concepts.work import throughput
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.intervals import Intervals
from foretrace.present.web import kinds
from foretrace.present.web.kinds import LABELS, WORK
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.odd_steps import odd_steps
from foretrace.trace import Trace
from foretrace.units import format_value

_STEPS = 12
_COLUMNS = 96
_LEAST_PHASE = 0.01


def step_time(view: RecordingView) -> dict[str, Any]:
    """The steps, each divided into the same parts, which sum to it; and the mean of the whole steps."""
    trace = view.trace
    windows = step_windows(trace)
    if not windows:
        return {"caption": "no steps recorded: call profiler.step() in the loop", "steps": [], "steps_count": 0,
                "odd": [], "parts": []}  # fmt: skip
    starts, ends = _bounds(windows)
    parts = _parts(view, starts, ends)
    whole = np.array([window.averaged for window in windows])
    chosen = whole if whole.any() else np.ones(len(windows), bool)
    mean = {kind: float(times[chosen].mean()) for kind, times in parts.items()}
    total = float((ends - starts)[chosen].mean())
    order = sorted((kind for kind in mean if kind not in ("idle",)), key=lambda kind: -mean[kind])
    order = [kind for kind in order if parts[kind].any()] + ["idle"]
    odd = odd_steps(view, windows, parts)
    shown = _shown(windows, [each["step"] for each in odd])
    return {
        "caption": _caption(trace) + _of_kind(windows) + _taken_in(trace, windows),
        "steps": [
            {"step": window.number, **({} if window.kind is None else {"kind": window.kind}),
             "total_ns": int(ends[row] - starts[row]), "parts_ns": [int(parts[kind][row]) for kind in order]}
            for row, window in enumerate(windows) if row in shown
        ],
        "steps_count": len(windows),
        "odd": odd,
        "parts": [
            {"kind": kind, "label": _label(trace, kind), "ns": mean[kind],
             "pct": 100 * mean[kind] / total if total else 0.0}
            for kind in order
        ],
    }  # fmt: skip


def _shown(windows: tuple[StepWindow, ...], odd: list[int]) -> set[int]:
    """The rows that are drawn: the first ones, and those that are odd."""
    strange = {row for row, window in enumerate(windows) if window.number in odd}
    return strange | {
        row for row in range(len(windows)) if row not in strange and row < _STEPS - len(strange)
    }


def _caption(trace: Trace) -> str:
    if not trace.has_device:
        return "Host clock, from step start to step end; no GPU work recorded"
    return "From a step's start, or the end of the one before, to the end of its GPU work"


def _of_kind(windows: tuple[StepWindow, ...]) -> str:
    """Which steps the parts are means of, where steps are of several kinds."""
    several = len({window.kind for window in windows}) > 1
    kind = next((window.kind for window in windows if window.averaged), None)
    return f"; the parts are of the {kind} steps" if several and kind else ""


def _taken_in(trace: Trace, windows: tuple[StepWindow, ...]) -> str:
    """Items and tokens of a step and per second, where the batch is known."""
    found = throughput.values(trace, windows)
    return f"; {throughput.says(found)}, as recorded ({found['batch_source']})" if found else ""


def _label(trace: Trace, kind: str) -> str:
    return "On the host" if kind == "idle" and not trace.has_device else LABELS[kind]


def _bounds(windows: tuple[StepWindow, ...]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.array([window.start_ns for window in windows], np.int64)
    return starts, np.array([window.end_ns for window in windows], np.int64)


def _parts(
    view: RecordingView, starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> dict[str, NDArray[np.int64]]:
    """For each kind, its time in each window; with what is left as idle they sum to the windows."""
    left = ends - starts
    found = {}
    busy = _busy(view)
    for kind in WORK:
        if kind in busy:
            found[kind] = intervals.covered_ns(busy[kind], starts, ends)
            left = left - found[kind]
    waiting = intervals.subtract(loading(view.trace), _together(list(busy.values())))
    found["wait"] = intervals.covered_ns(waiting, starts, ends)
    found["idle"] = left - found["wait"]
    return found


def _busy(view: RecordingView) -> dict[str, Intervals]:
    """When the device did work of each kind, each moment given to one."""
    return view.keep("busy", lambda: kinds.exclusive(view.trace, view.kinds) if view.trace.has_device else {})


def _together(sets: list[Intervals]) -> Intervals:
    if not sets:
        return intervals.EMPTY
    return intervals.union(
        np.concatenate([each.start for each in sets]), np.concatenate([each.end for each in sets])
    )


def loading(trace: Trace) -> Intervals:
    """When the program waited for its data loader."""
    host = trace.spans.filter(pl.col("kind").is_in(("op", "annotation")) & pl.col("dur_ns").is_not_null())
    on_device = trace.tracks.filter(pl.col("device").is_not_null())["id"]
    waits = host.filter(
        pl.col("name").is_in(device_time.names_like(host, runtime_calls.DATA_LOADING))
        & ~pl.col("track_id").is_in(on_device.implode())
    )
    start = waits["start_ns"].to_numpy()
    return intervals.union(start, start + waits["dur_ns"].to_numpy())


def one_step(view: RecordingView) -> dict[str, Any] | None:
    """The whole step of median length, in columns of equal length; None without GPU work or steps."""
    trace = view.trace
    windows = [
        step_window for step_window in step_windows(trace) if step_window.averaged and step_window.wall_ns > 0
    ]
    if not windows or not trace.has_device:
        return None
    window = sorted(windows, key=lambda each: each.wall_ns)[len(windows) // 2]
    edges = np.linspace(window.start_ns, window.end_ns, _COLUMNS + 1).astype(np.int64)
    names, busy = kinds.shares(_busy(view), edges)
    width = np.maximum(np.diff(edges), 1)[:, None]
    shares = np.clip(busy / width, 0, 1)
    length = format_value("_ns", window.wall_ns)
    return {
        "caption": f"step {window.number}, {length}, same colours as step time",
        "kinds": names,
        "columns": [[round(value, 4) for value in row] for row in shares.tolist()],
        "phases": _phases(view, window),
    }


def _phases(view: RecordingView, window: StepWindow) -> list[dict[str, Any]]:
    """Stretches in which the step waits for data, or one phase of training ran, where they do not overlap."""
    found = []
    wait = intervals.clip(loading(view.trace), window.start_ns, window.end_ns)
    if len(wait.start):
        longest = int(np.argmax(wait.end - wait.start))
        found.append(("waiting for data", int(wait.start[longest]), int(wait.end[longest])))
    work = view.classified.filter(pl.col("step") == window.number)
    for number, phase in enumerate(PHASES[:-1]):
        of_phase = work.filter(pl.col("phase") == number)
        if of_phase.height:
            # A stray kernel, as of a gradient's first use, does not stretch a phase: the middle 98 % count.
            start = int(of_phase["start_ns"].quantile(0.01, "nearest") or 0)
            end = int(of_phase["end_ns"].quantile(0.99, "nearest") or 0)
            found.append((phase, max(start, window.start_ns), min(end, window.end_ns)))
    return _apart(found, window)


def _apart(found: list[tuple[str, int, int]], window: StepWindow) -> list[dict[str, Any]]:
    shown = []
    before = window.start_ns
    for label, start, end in sorted(found, key=lambda each: each[1]):
        begin = max(start, before)
        if end - begin < _LEAST_PHASE * window.wall_ns:
            continue
        before = end
        scale = window.wall_ns
        shown.append(
            {"label": label, "from": (begin - window.start_ns) / scale, "to": (end - window.start_ns) / scale}
        )
    return shown


def minimap(view: RecordingView, columns: int) -> dict[str, Any]:
    """The whole recording in columns: the share of each kind; without GPU work, of operators on the host."""
    trace = view.trace
    edges = np.linspace(0, max(trace.duration_ns, 1), columns + 1).astype(np.int64)
    if trace.has_device:
        names, busy = kinds.shares(_busy(view), edges)
    else:
        spans = trace.spans.filter((pl.col("kind") == "op") & (pl.col("dur_ns") > 0))
        start = spans["start_ns"].to_numpy()
        ran = intervals.union(start, start + spans["dur_ns"].to_numpy())
        names, busy = ["elem"], intervals.covered_ns(ran, edges[:-1], edges[1:]).astype(np.float64)[:, None]
    shares = np.clip(busy / np.maximum(np.diff(edges), 1)[:, None], 0, 1)
    return {"kinds": names, "columns": [[round(value, 3) for value in row] for row in shares.tolist()]}
