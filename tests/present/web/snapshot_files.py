"""Snapshots with known trouble, as files: what their pages must say is known."""

from __future__ import annotations

import pickle
from pathlib import Path

from tests.analyze.snapshots.allocator import Allocator, OutOfMemoryError
from tests.analyze.snapshots.histories import ADAM, MAIN, MIB, TO_DEVICE, at_line
from tests.analyze.snapshots.trainings import layer

CAPACITY, KEPT, LEAK_LINE = 400 * MIB, 6 * MIB, 57
TOO_LARGE, FULL_LINE = 300 * MIB, 93


def leaking(path: Path, *, kept: int = KEPT, steps: int = 8) -> Path:
    """Steps that each keep something at LEAK_LINE, then a request at FULL_LINE that does not fit."""
    made = Allocator(CAPACITY)
    for _ in range(3):
        made.malloc(20 * MIB, (TO_DEVICE, MAIN))
    for _ in range(steps):
        saved = [made.malloc(16 * MIB, layer(10 + number)) for number in range(4)]
        made.malloc(kept, at_line(LEAK_LINE))
        for block in reversed(saved):
            passing = made.malloc(8 * MIB)
            made.release(block)
            made.release(passing)
        working = made.malloc(12 * MIB, (ADAM, MAIN))
        made.release(working, (ADAM, MAIN))
    try:
        made.malloc(TOO_LARGE, at_line(FULL_LINE))
    except OutOfMemoryError:
        return made.write(path)
    raise AssertionError("the request fits")


def flushing(path: Path) -> Path:
    """A request at FULL_LINE that fits once torch has given back what it kept."""
    made = Allocator(100 * MIB)
    made.release(made.malloc(60 * MIB, at_line(LEAK_LINE)))
    made.malloc(80 * MIB, at_line(FULL_LINE))
    return made.write(path)


def on_two_devices(path: Path) -> Path:
    """The same on devices 0 and 1; the second keeps twice as much."""
    first, second = (pickle.loads(leaking(path, kept=size).read_bytes()) for size in (KEPT, 2 * KEPT))
    for segment in second["segments"]:
        segment["device"] = 1
    first["segments"] += second["segments"]
    first["device_traces"] += second["device_traces"]
    path.write_bytes(pickle.dumps(first, protocol=4))
    return path


def without_history(path: Path) -> Path:
    """As torch writes it where the history was never recorded."""
    document = pickle.loads(leaking(path).read_bytes())
    document["device_traces"] = []
    path.write_bytes(pickle.dumps(document, protocol=4))
    return path
