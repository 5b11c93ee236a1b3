"""`snapshot`: who holds GPU memory at the peak, over time, what leaks, what is wasted and why a request did not fit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array
from foretrace.analyze.snapshots import composition, curve
from foretrace.analyze.snapshots.findings import DeviceFindings, SnapshotFindings
from foretrace.analyze.snapshots.lifetimes import DeviceMemory
from foretrace.analyze.snapshots.shortage import OutOfMemory
from foretrace.errors import ForetraceError, MissingDataError, UsageError
from foretrace.present.text import memory_page, memory_words
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources import table
from foretrace.present.web.snapshot_view import SnapshotView, of_recording
from foretrace.units import counted, format_value, visible

_POINTS = 8_000  # of the whole curve: a few for each pixel of a wide screen, so that a zoom finds more
_WINDOW_POINTS = 4_000
_BLOCKS = 500
_SAYS = {
    "held_bytes": "bytes in blocks that the program held at the peak",
    "share_pct": "of all that was allocated at the peak",
    "blocks_count": "how many blocks",
    "line": "the innermost line of the program's own code",
    "where": "the line that allocates what stays",
    "module": "the forwards that were running, the outermost first",
    "phase": "the part of a step in which it was allocated",
    "category": "what it held, told from where it was allocated and when it was freed",
    "size_bytes": "of the whole block, as rounded up by the allocator",
    "lived_ns": "until it was freed; empty if it was not, or began before the history",
    "allocated_ns": "when it was allocated; empty if before the history",
    "freed_ns": "when it was freed; empty if it was not",
    "pool": "0,0 is the common one; others belong to CUDA graphs, for example",
    "start_ns": "when the step began",
    "end_ns": "when the step ended",
    "peak_bytes": "the most that was allocated in the step",
    "end_bytes": "allocated when the step ended",
    "growth_bytes": "more than at the end of the step before",
    "saved_bytes": "held for the backward pass",
    "per_step_bytes": "growth in each step, the median",
    "kept_bytes": "allocated there in these steps and never freed",
    "steps_count": "in how many steps, one after the other",
    "events": "rows of the device's history that the step covers",
    "held_then_by": "the line whose blocks were held when the request did not fit",
}


def snapshot(view: SnapshotView) -> dict[str, Any]:
    """The whole page of a snapshot."""
    found = view.findings
    return {"name": view.name, "facts": _facts(found), **_told(found)}


def of_run(view: RecordingView) -> dict[str, Any]:
    """The same of the snapshot that lies in the recording's Run; where there is none, why."""
    unrecorded = _unrecorded(view)
    try:
        found = of_recording(view)
    except MissingDataError as reason:
        return {"missing": str(reason), "unrecorded": unrecorded, "snapshot": None}
    except ForetraceError as error:  # a damaged snapshot must not take the recording's own curve away
        says = f"the memory snapshot could not be read: {error}"
        return {"missing": says, "unrecorded": unrecorded, "snapshot": None}
    return {
        "missing": None,
        "unrecorded": unrecorded,
        "snapshot": {"name": visible(found.snapshot.path.name), "facts": _facts(found), **_told(found)},
    }


def _unrecorded(view: RecordingView) -> str | None:
    """Why the recording itself has no memory to show."""
    try:
        view.result("memory")
    except MissingDataError as reason:
        return str(reason)
    return None


def window(found: SnapshotFindings, query: Mapping[str, str]) -> dict[str, Any]:
    """The curve of one device within a time, in as much detail as is to be seen."""
    device = next((each for each in found.devices if each.name == query.get("device")), None)
    if device is None:
        raise UsageError(f"no device {query.get('device', '')[:50]!r} in this snapshot")
    low, high = (_nanoseconds(query, name) for name in ("from", "to"))
    return _curve(device, _WINDOW_POINTS, (low, high))


def _nanoseconds(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    if not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise UsageError(f"{name}={text[:50]}: whole nanoseconds since the first event")
    return int(text)


def _told(found: SnapshotFindings) -> dict[str, Any]:
    return {
        "says": visible(found.says),
        "devices": [_device(device) for device in found.devices],
        "notes": [visible(note) for note in found.notes],
        "markdown": memory_page.markdown(found, "line", memory_page.TOP),
    }


def _facts(found: SnapshotFindings) -> list[str]:
    events = sum(device.origins.memory.events.height for device in found.devices)
    return [counted(len(found.devices), "device"), counted(events, "event")]


def _device(found: DeviceFindings) -> dict[str, Any]:
    memory = found.origins.memory
    return {
        "name": found.name,
        "says": visible(found.says),
        "history": None
        if memory.events.height
        else "the snapshot has no history, so it shows one moment only",
        "peak": {
            "at_ns": _since_start(memory, memory.peak),
            "bytes": memory.peak_bytes,
            "step": found.peak_step,
            "reserved_bytes": memory.peak_reserved_bytes,
            "reserved_at_ns": _reserved_at(memory),
            "parts": _parts(found),
        },
        "timed": memory.timed,
        "curve": _curve(found, _POINTS, None),
        "tables": {by: _table(found, by) for by in ("line", "category", "phase", "module", "block", "step")},
        "layers": _layers(found),
        "optimizer": _optimizer(found),
        "stacks": _stacks(found),
        "leaks": _leaks(found),
        "unused": _unused(found),
        "out_of_memory": _short(found),
    }


def _since_start(memory: DeviceMemory, event: int) -> int:
    """When an event was, since the first: times of the clock have more digits than a browser's numbers.

    No event is before an earlier one, whatever the clock did.
    """
    if event <= 0:
        return 0
    return int(memory.time_ns[: event + 1].max()) - int(memory.time_ns[0])


def _reserved_at(memory: DeviceMemory) -> int:
    if not len(memory.reserved) or int(memory.reserved.max()) < memory.peak_reserved_bytes:
        return 0
    return _since_start(memory, int(np.argmax(memory.reserved)))


def _parts(found: DeviceFindings) -> list[dict[str, Any]]:
    origins = found.origins
    rows = composition.composition(origins, origins.memory.peak, "category")
    return [
        {"label": label, "bytes": size, "pct": share}
        for label, size, share in rows.select("category", "held_bytes", "share_pct").iter_rows()
    ]


def _curve(found: DeviceFindings, most: int, within: tuple[int, int] | None) -> dict[str, Any]:
    memory = found.origins.memory
    first = int(memory.time_ns[0]) if memory.events.height else 0
    low, high = (None, None) if within is None else (within[0] + first, within[1] + first)
    events = curve.chosen_events(memory, most, from_ns=low, to_ns=high)
    times = np.maximum.accumulate(memory.time_ns) if memory.events.height else np.zeros(1, np.int64)
    at = times[np.maximum(events, 0)] - times[0]
    reserved = curve.levels(memory, events)[1]
    return {
        "at_ns": _plain(at),
        "series": [
            {"label": label, "kind": label.replace(" ", "-"), "bytes": _plain(held)}
            for label, held in curve.by_category(found.origins, events).items()
        ],
        "reserved": _plain(reserved),
        "whole": len(events) == int(events[-1] - events[0]) + 1,  # no event between is left out
    }


def _plain(values: Array) -> list[int]:
    numbers: list[int] = values.tolist()
    return numbers


def _table(found: DeviceFindings, by: str) -> dict[str, Any]:
    frame = memory_page.frame(found, by, _BLOCKS if by == "block" else 0)
    memory = found.origins.memory
    if by == "block":
        frame = frame.drop("stack")
    says = {
        "block": f"the largest of {counted(int(memory.lives.allocated_after(memory.peak).sum()), 'block')} at the peak",
        "step": f"steps detected by {found.steps.told_by}"
        if found.steps
        else "no step is known in this history",
    }.get(by, f"{counted(frame.height, 'row')}, together all that was held at the peak")
    return _shown(by, frame, says)


def _shown(name: str, frame: pl.DataFrame, says: str) -> dict[str, Any]:
    return {"name": name, "says": visible(says), **table.of_frame(frame, _SAYS), "values": [], "notes": []}


def _stacks(found: DeviceFindings) -> dict[str, Any]:
    """For each row of the table of blocks the number of its stack, and those stacks, innermost frame first."""
    origins = found.origins
    lives = origins.memory.lives
    held = np.flatnonzero(lives.allocated_after(origins.memory.peak))
    chosen = held[np.argsort(-lives.size[held], kind="stable")][:_BLOCKS]
    numbers, place = np.unique(lives.stack[chosen], return_inverse=True)
    return {
        "of_block": place.tolist(),
        "frames": [[visible(frame) for frame in origins.places.stack(int(number))] for number in numbers],
    }


def _layers(found: DeviceFindings) -> dict[str, Any] | None:
    says = memory_words.layers_says(found)
    return None if says is None else {"says": visible(says)}


def _optimizer(found: DeviceFindings) -> dict[str, Any] | None:
    says = memory_words.optimizer_says(found)
    return None if says is None else {"says": visible(says)}


def _leaks(found: DeviceFindings) -> dict[str, Any]:
    says = memory_words.leaks_says(found)
    mark = "unknown" if memory_words.leaks_unchecked(found) else "bad" if found.leaks else "good"
    return {
        "mark": mark,
        "says": visible(says),
        "table": _shown("leaks", memory_page.leaks_frame(found), says) if found.leaks else None,
        "repetitions": _shown("repetitions", memory_page.repetitions_frame(found), says)
        if found.leaks
        else None,
        "hint": memory_words.KEEPS if found.leaks else None,
        "stacks": [
            [visible(frame) for frame in found.origins.places.stack(leak.stack)] for leak in found.leaks
        ],
    }


def _unused(found: DeviceFindings) -> dict[str, Any]:
    told = found.fragmentation
    return {
        "mark": "note" if told.advice else "good",
        "says": memory_words.unused_says(found),
        "flushes": memory_words.flushes_says(found),
        "beside": memory_words.beside_says(found),
        "advice": [
            {"setting": f"PYTORCH_CUDA_ALLOC_CONF={advice.setting}", "reason": advice.reason}
            for advice in told.advice
        ],
        "figures": [
            {"label": label, "at_peak": format_value("_bytes", peak), "at_end": format_value("_bytes", end)}
            for label, peak, end in _figures(found)
        ],
    }


def _figures(found: DeviceFindings) -> list[tuple[str, int, int]]:
    peak, end = found.fragmentation.at_peak, found.fragmentation.at_end
    return [
        ("held from the device", peak.reserved_bytes, end.reserved_bytes),
        ("in blocks", peak.active_bytes, end.active_bytes),
        ("in no block", peak.unused_bytes, end.unused_bytes),
        ("in no block, in empty segments", peak.whole_bytes, end.whole_bytes),
        ("in no block, beside blocks in use", peak.split_bytes, end.split_bytes),
        ("largest piece of that", peak.largest_bytes, end.largest_bytes),
    ]


def _short(found: DeviceFindings) -> dict[str, Any] | None:
    if not found.out_of_memory:
        return None
    first = found.out_of_memory[0]
    memory = found.origins.memory
    more = len(found.out_of_memory) - 1
    return {
        "at_ns": _since_start(memory, first.event),
        "where": visible(first.where),
        "why": visible(first.why),
        "would_fit": visible(first.would_fit),
        "holders": _shown("holders", memory_page.holders_frame(first), "who held most then"),
        "figures": _request(first),
        "more": f"{counted(more, 'more request')} did not fit after that" if more else None,
    }


def _request(request: OutOfMemory) -> list[dict[str, str]]:
    figures = {
        "asked for": request.asked_bytes, "left on the device": request.device_free_bytes,
        "allocated": request.allocated_bytes, "held by torch": request.reserved_bytes,
        "held and in no block": request.unused_bytes, "largest piece of it": request.largest_hole_bytes,
    }  # fmt: skip
    return [{"label": label, "value": format_value("_bytes", size)} for label, size in figures.items()]
