"""Watches a GPU's clock while something is timed, and what holds it back: power, heat.

With pynvml (foretrace[nvml]) it looks between samples; without, nvidia-smi is asked once before and once after; a CPU's clock is not watched.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from foretrace.nvidia import Clock, clock_reader, gpus
from foretrace.sourced import JUDGEMENT, Nanoseconds

_LOOK_NS = Nanoseconds(50_000_000, "time between two looks at the clock", JUDGEMENT)


@dataclass
class Seen:
    """What was seen of the clock, in MHz, and what held it back."""

    by: str | None = None  # "pynvml", "nvidia-smi"; None: nothing watched
    low_mhz: int | None = None
    high_mhz: int | None = None
    most_mhz: int | None = None  # that the device can
    slowed_by: set[str] = field(default_factory=set)

    def add(self, clock: Clock) -> None:
        """One look."""
        self.low_mhz = clock.mhz if self.low_mhz is None else min(self.low_mhz, clock.mhz)
        self.high_mhz = clock.mhz if self.high_mhz is None else max(self.high_mhz, clock.mhz)
        self.most_mhz = clock.max_mhz
        self.slowed_by |= clock.slowed_by

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "by": self.by,
            "low_mhz": self.low_mhz,
            "high_mhz": self.high_mhz,
            "most_mhz": self.most_mhz,
            "slowed_by": sorted(self.slowed_by),
        }


class Watch:
    """Looks at one device's clock, at most twenty times a second; does nothing where pynvml or a GPU is absent."""

    def __init__(self, uuid: str | None) -> None:
        self.seen = Seen()
        self._looked_ns = 0
        self._read = None if uuid is None else clock_reader(uuid)
        if self._read is not None:
            self.seen.by = "pynvml"

    def look(self) -> None:
        """Reads the clock, unless that was done a moment ago."""
        if self._read is None or time.monotonic_ns() - self._looked_ns < _LOOK_NS:
            return
        clock = self._read()
        if clock is None:  # not supported by this device
            self._read, self.seen.by = None, None
            return
        self.seen.add(clock)
        self._looked_ns = time.monotonic_ns()


def look_once(uuid: str, seen: Seen) -> None:
    """Adds one look by nvidia-smi, where it answers."""
    for gpu in gpus(uuid, reasons=True):
        if gpu.sm_mhz is not None:
            seen.add(Clock(gpu.sm_mhz, gpu.max_sm_mhz, gpu.slowed_by or frozenset()))
            seen.by = gpu.by


def uuid_of(device: Any) -> str | None:
    """The name by which NVML knows a GPU of torch; None for a CPU, or where torch does not tell."""
    if device.type != "cuda":
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
