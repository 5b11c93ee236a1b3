"""A cut: a timeline with detail left out, for a report that must stay small.

It works on the finished payload, so a report shows the same spans as the server, only fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrace.present.web import binary
from foretrace.present.web.binary import Column
from foretrace.units import counted

Columns = dict[str, NDArray[Any]]
_HALVINGS = 6


@dataclass(frozen=True)
class Cut:
    """What is left out."""

    without_python: bool = False
    window: tuple[int, int] | None = None  # spans outside it are dropped, in ns
    says: str = ""  # what the window is


def cuts(whole: bytes, steps: tuple[int, int] | None) -> Iterator[Cut]:
    """Cuts from nothing left out to the least that is worth showing; chosen steps are always cut to."""
    header, _ = binary.unpack(whole)
    windows = list(_windows(header, steps))
    if steps is not None:
        yield from (Cut(False, *windows[0]), Cut(True, *windows[0]))
        return
    yield from (Cut(), Cut(True))
    yield from (Cut(True, *window) for window in windows)


def _windows(header: dict[str, Any], steps: tuple[int, int] | None) -> Iterator[tuple[tuple[int, int], str]]:
    recorded = header["steps"]
    if steps is not None:
        chosen = [each for each in recorded if steps[0] <= each["step"] <= steps[1]]
        yield _of_steps(chosen, header)
        return
    for count in (2, 1):
        if len(recorded) > count:
            yield _of_steps(recorded[-count:], header)
    first, last = header["from_ns"], header["to_ns"]
    for halving in range(1, _HALVINGS if not recorded else 1):
        length = (last - first) >> halving
        yield (last - length, last), f"the last {length / 1e6:,.1f} ms"


def _of_steps(steps: list[dict[str, Any]], header: dict[str, Any]) -> tuple[tuple[int, int], str]:
    keys = ("host_from_ns", "gpu_from_ns", "host_to_ns", "gpu_to_ns")
    times = [step[key] for step in steps for key in keys if step[key] is not None]
    numbers = [step["step"] for step in steps]
    window = (min(times), max(times)) if times else (header["from_ns"], header["from_ns"])
    named = (
        f"step {numbers[0]}"
        if len(numbers) == 1
        else f"steps {numbers[0]} to {numbers[-1]}"
        if numbers
        else "no step"
    )
    return window, named


def cut(whole: bytes, chosen: Cut) -> tuple[bytes, tuple[str, ...]]:
    """The smaller payload, and what it lacks, in words."""
    header, columns = binary.unpack(whole)
    start, dur = starts(header, columns), durations(columns)
    python = np.zeros(len(start), bool)
    for track in header["tracks"]:
        if track["group"] == "python":
            for row in track["rows"]:
                python[row["offset"] : row["offset"] + row["count"]] = True
    dropped = python if chosen.without_python else np.zeros(len(start), bool)
    says = []
    if chosen.without_python and python.any():
        says.append(f"{counted(int(python.sum()), 'Python frame')} of the timeline")
    if chosen.window is not None:
        outside = ((start + dur < chosen.window[0]) | (start > chosen.window[1])) & ~dropped
        dropped = dropped | outside
        if outside.any():
            says.append(f"{counted(int(outside.sum()), 'span')} outside {chosen.says} on the timeline")
    return _packed(header, columns, start, dur, ~dropped), tuple(says)


def _packed(
    header: dict[str, Any],
    columns: Columns,
    start: NDArray[np.int64],
    dur: NDArray[np.int64],
    kept: NDArray[np.bool_],
) -> bytes:
    before = np.concatenate(([0], np.cumsum(kept)))
    tracks = [{**track, "rows": _rows(track["rows"], before)} for track in header["tracks"]]
    tracks = [
        {**track, "rows": rows}
        for track in tracks
        if (rows := [row for row in track["rows"] if row["count"]])
    ]
    used, name = np.unique(columns["name"][kept], return_inverse=True)
    start, gaps = start[kept], np.empty(int(kept.sum()), np.int64)
    for track in tracks:
        for row in track["rows"]:
            part = slice(row["offset"], row["offset"] + row["count"])
            gaps[part] = np.diff(start[part], prepend=header["from_ns"])
    names = [header["names"][each] for each in used.tolist()]
    written = {
        **binary.times("start", gaps, "gaps"),
        **binary.times("dur", dur[kept], "shuffled"),
        "name": Column(name.astype("<u2" if len(names) < 1 << 16 else "<u4"), "shuffled"),
        **{each: Column(columns[each][kept]) for each in ("kind", "finding")},
        **binary.steps("id", columns["id"][kept]),
        **{name: Column(column) for name, column in columns.items() if name.startswith("counter:")},
    }
    head = {**header, "tracks": tracks, "names": names, "spans_count": int(kept.sum())}
    return binary.pack(head, written)


def _rows(rows: list[dict[str, int]], before: NDArray[np.int64]) -> list[dict[str, int]]:
    ends = [(int(before[row["offset"]]), int(before[row["offset"] + row["count"]])) for row in rows]
    return [{"offset": first, "count": last - first} for first, last in ends]


def starts(header: dict[str, Any], columns: Columns) -> NDArray[np.int64]:
    """When each span begins, from the gaps within its row."""
    gaps = _unescaped(columns, "start")
    found = np.empty(len(gaps), np.int64)
    for track in header["tracks"]:
        for row in track["rows"]:
            part = slice(row["offset"], row["offset"] + row["count"])
            found[part] = header["from_ns"] + np.cumsum(gaps[part])
    return found


def durations(columns: Columns) -> NDArray[np.int64]:
    """How long each span is."""
    return _unescaped(columns, "dur")


def _unescaped(columns: Columns, name: str) -> NDArray[np.int64]:
    values: NDArray[np.int64] = columns[name].astype(np.int64)
    if f"{name}:escapes" in columns:
        values[columns[name] == binary.ESCAPE] = columns[f"{name}:escapes"].astype(np.int64)
    return values
