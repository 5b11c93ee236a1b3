"""Odd steps: those whose time lies far from that of the others, and the part of it that makes the difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.analyze.concepts.host.idle_causes import CAUSES
from foretrace.analyze.steps import StepWindow
from foretrace.present.web.idle_gaps import IdleGaps, idle_gaps
from foretrace.present.web.kinds import LABELS
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.short_names import short
from foretrace.sourced import JUDGEMENT, Count, Factor, Share
from foretrace.units import format_value

LEAST = Share(0.1, "the median step", JUDGEMENT)
SPREADS = Factor(4, "the median distance from the median step", JUDGEMENT)
FEWEST = Count(3, "steps, or there is no telling which is the odd one", JUDGEMENT)
_MOST = 3
_PARTS = 2  # that are named
_NAMED = Share(0.1, "the difference, for a part to be named", JUDGEMENT)


def odd_steps(
    view: RecordingView,
    windows: Sequence[StepWindow],
    parts: Mapping[str, NDArray[np.int64]],
) -> list[dict[str, Any]]:
    """The steps farthest from the median of their kind, each with what it has more or less of, in words.

    `parts` are the nanoseconds of each kind of work in each step.
    """
    found = []
    for kind in dict.fromkeys(window.kind for window in windows):
        rows = np.array([row for row, window in enumerate(windows) if window.kind == kind and window.whole])
        if len(rows) < FEWEST:
            continue
        length = np.array([windows[row].wall_ns for row in rows])
        away = length - np.median(length)
        limit = max(LEAST * float(np.median(length)), SPREADS * float(np.median(np.abs(away))))
        found += [
            (abs(float(away[place])), rows[place], rows) for place in np.flatnonzero(np.abs(away) > limit)
        ]
    found.sort(key=lambda each: -each[0])
    return [_odd(view, windows, parts, int(row), rows) for _, row, rows in found[:_MOST]]


def _odd(
    view: RecordingView,
    windows: Sequence[StepWindow],
    parts: Mapping[str, NDArray[np.int64]],
    row: int,
    rows: NDArray[np.int64],
) -> dict[str, Any]:
    window = windows[row]
    median = float(np.median([windows[other].wall_ns for other in rows]))
    away = window.wall_ns - median
    more = {kind: float(times[row] - np.median(times[rows])) for kind, times in parts.items()}
    named = [
        kind
        for kind in sorted(more, key=lambda kind: -abs(more[kind]))
        if abs(more[kind]) > _NAMED * abs(away)
    ][:_PARTS]
    words = [
        f"{_amount(more[kind])} {_words(view, kind)}{_why(view, windows, kind, row, rows)}" for kind in named
    ]
    return {
        "step": window.number,
        "says": f"{_amount(away)[:-5]} {'longer' if away > 0 else 'shorter'} than the median step of "
        f"{format_value('_ns', median)}" + (f": {'; '.join(words)}" if words else ""),
        "from_ns": window.start_ns,
        "to_ns": window.end_ns,
    }


def _words(view: RecordingView, kind: str) -> str:
    if kind == "idle":
        return "GPU idle time" if view.trace.has_device else "time on the host"
    return LABELS[kind][:1].lower() + LABELS[kind][1:]


def _amount(ns: float) -> str:
    return f"{format_value('_ns', abs(ns))} {'more' if ns > 0 else 'less'}"


def _why(
    view: RecordingView, windows: Sequence[StepWindow], kind: str, row: int, rows: NDArray[np.int64]
) -> str:
    """Of time that no GPU work fills, the cause that the step has more of, and the host's span that takes that time."""
    gaps = idle_gaps(view) if kind == "idle" else None
    if gaps is None:
        return ""
    step, code, length, span = _in_steps(gaps, windows)
    sums = np.zeros((len(windows), len(CAUSES)))
    np.add.at(sums, (step, code), length)
    more = sums[row] - np.median(sums[rows], axis=0)
    cause = int(np.argmax(more))
    if more[cause] <= 0:
        return ""
    own = np.flatnonzero((step == row) & (code == cause) & (span >= 0))
    if not len(own):
        return f" ({CAUSES[cause]})"
    longest = view.trace.spans.row(int(span[own[np.argmax(length[own])]]), named=True)
    return f" ({CAUSES[cause]}: {short(longest['name'], longest['kind'])})"


def _in_steps(gaps: IdleGaps, windows: Sequence[StepWindow]) -> tuple[NDArray[Any], ...]:
    """The parts of the gaps that begin in a step: the step's row, the number of the cause, nanoseconds, host span or -1."""
    start = np.array([window.start_ns for window in windows], np.int64)
    end = np.array([window.end_ns for window in windows], np.int64)
    at = gaps.parts["part_at_ns"].to_numpy()
    step = np.searchsorted(start, at, side="right") - 1
    inside = (step >= 0) & (at < end[np.maximum(step, 0)])
    code = gaps.parts["cause"].to_physical().to_numpy()
    span = gaps.parts["span_id"].fill_null(-1).to_numpy()
    return step[inside], code[inside], gaps.parts["part_ns"].to_numpy()[inside], span[inside]
