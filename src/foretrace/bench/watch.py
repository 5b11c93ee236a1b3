"""Watches a GPU's clock while something is timed, and what holds it back: power, heat.

With pynvml it looks between samples; without, nvidia-smi is asked once before and once after; a CPU's clock is not watched.
"""

from __future__ import annotations

import importlib
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from foretrace.sourced import JUDGEMENT, Nanoseconds

# Of NVML's nvmlClocksThrottleReasons; being idle (1) or set to a clock (2, 16) does not hold a running program back.
REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
_LOOK_NS = Nanoseconds(50_000_000, "time between two looks at the clock", JUDGEMENT)
_QUERY = "clocks.sm,clocks.max.sm,clocks_throttle_reasons.active"
_SMI_TIMEOUT_S = 10.0


@dataclass
class Seen:
    """What was seen of the clock, in MHz, and what held it back."""

    by: str | None = None  # "pynvml", "nvidia-smi"; None: nothing watched
    low_mhz: int | None = None
    high_mhz: int | None = None
    most_mhz: int | None = None  # that the device can
    slowed_by: set[str] = field(default_factory=set)

    def add(self, mhz: int, most_mhz: int | None, reasons: int) -> None:
        """One look."""
        self.low_mhz = mhz if self.low_mhz is None else min(self.low_mhz, mhz)
        self.high_mhz = mhz if self.high_mhz is None else max(self.high_mhz, mhz)
        self.most_mhz = most_mhz
        self.slowed_by |= {text for bit, text in REASONS.items() if reasons & bit}

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
        self._nvml: Any = None
        self._looked_ns = 0
        if uuid is None:
            return
        try:
            nvml = importlib.import_module("pynvml")
        except ImportError:
            return
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            self._most_mhz = int(nvml.nvmlDeviceGetMaxClockInfo(self._handle, nvml.NVML_CLOCK_SM))
        except nvml.NVMLError:  # no driver for it here, as in some containers: then the clock is not watched
            return
        self._nvml = nvml
        self.seen.by = "pynvml"

    def look(self) -> None:
        """Reads the clock, unless that was done a moment ago."""
        if self._nvml is None or time.monotonic_ns() - self._looked_ns < _LOOK_NS:
            return
        nvml = self._nvml
        try:
            mhz = int(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM))
            reasons = int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle))
        except nvml.NVMLError:  # not supported by this device
            self._nvml, self.seen.by = None, None
            return
        self.seen.add(mhz, self._most_mhz, reasons)
        self._looked_ns = time.monotonic_ns()


def ask_nvidia_smi(uuid: str, seen: Seen) -> None:
    """Adds one look by nvidia-smi, where there is one that answers."""
    command = ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", "-i", uuid]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_TIMEOUT_S, check=True)
        mhz, most_mhz, reasons = (part.strip() for part in done.stdout.strip().split(","))
        seen.add(int(mhz), int(most_mhz), int(reasons, 16))
    except (OSError, subprocess.SubprocessError, ValueError):  # none here, or it does not tell: not watched
        return
    seen.by = "nvidia-smi"


def uuid_of(device: Any) -> str | None:
    """The name by which NVML knows a GPU of torch; None for a CPU, or where torch does not tell."""
    if device.type != "cuda":
        return None
    import torch

    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"
