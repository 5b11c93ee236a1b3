"""What each recorded device can do at best: FLOPs a second by type, and bytes a second from its memory.

Numbers come from `hardware`, by the recorded name, memory size and number of SMs, or from the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrace import hardware
from foretrace.analyze.concepts.device import device_time
from foretrace.errors import UsageError
from foretrace.hardware import Device
from foretrace.trace import Trace

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8")
MEMORY = "memory"


@dataclass(frozen=True)
class Peaks:
    """The peaks of one device; null where they are not known or it has no such unit."""

    name: str
    flops: Mapping[str, float | None]  # by dtype, a second
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    known: bool  # whether `hardware` has this device


def device_peaks(
    trace: Trace, overrides: Mapping[str, float | None] | None = None
) -> dict[int | None, Peaks]:
    """The peaks of each device that worked; `overrides` by dtype, or "memory", go before the table's."""
    given = {name: value for name, value in (overrides or {}).items() if value is not None}
    for name, value in given.items():
        if not value > 0:
            raise UsageError(f"the peak of {name} must be above zero, not {value}")
    properties = device_time.device_properties(trace)
    peaks = {}
    for device, name in (device_time.device_names(trace) or _profiled_names(trace)).items():
        recorded = properties.get(device, {}) if device is not None else {}
        known = find_device(recorded or {"name": name})
        flops = {dtype: hardware.peak_flops(known, dtype) if known else None for dtype in DTYPES}
        bandwidth = profiled_bandwidth(trace) or (known.memory_bandwidth_bytes if known else None)
        peaks[device] = Peaks(
            name=name,
            flops={dtype: given.get(dtype, flops[dtype]) for dtype in DTYPES},
            memory_bytes_per_s=given.get(MEMORY, bandwidth),
            l2_bytes=known.l2_bytes if known else None,
            known=known is not None,
        )
    return peaks


def profiled_bandwidth(trace: Trace) -> float | None:
    """What the device's memory could move at its clock, bytes a second, where Nsight Compute measured it."""
    if trace.profile is None:
        return None
    rate = trace.profile.launches["peak_dram_bytes_per_s"].median()
    return float(rate) if isinstance(rate, float) and rate > 0 else None


def _profiled_names(trace: Trace) -> dict[int | None, str]:
    """Of counters alone: the device that they are of."""
    if trace.profile is None:
        return {}
    names = trace.profile.launches["device_name"].drop_nulls()
    return {None: str(names[0]) if len(names) else "the profiled GPU"}


def find_device(recorded: Mapping[str, Any]) -> Device | None:
    """The device behind recorded properties, if `hardware` has it."""
    name = recorded.get("name")
    if not isinstance(name, str):
        return None
    memory, count = (
        recorded.get("totalGlobalMem"),
        recorded.get("numSms", recorded.get("multiProcessorCount")),
    )
    # A virtual function (SR-IOV) names itself so; memory size and compute units tell a whole GPU from a part.
    return hardware.match(
        name.removesuffix(" VF"),
        memory_bytes=memory if isinstance(memory, int) and memory > 0 else None,
        sm_count=count if isinstance(count, int) and count > 0 else None,
    )
