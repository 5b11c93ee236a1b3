"""Which GPU the costs were measured on, and how much further a modelled duration may be off on another one.

Costs are shares of a device's own peaks (hardware.py), and times of kernels on an H200. The shares hold where kernels are
the same, so on the same architecture; where the peaks are not known either, less holds still.
"""

from __future__ import annotations

from dataclasses import dataclass

from foretrace.hardware import Device
from foretrace.sourced import JUDGEMENT, Share

ARCHITECTURE = "9.0"  # compute capability of the H200, and of its sisters: H100, H800, H20
HERE = Share(0.2, "a modelled duration, by which it may be off", JUDGEMENT, devices="H200, H100, H800, H20")
ELSEWHERE = Share(
    0.35,
    "a modelled duration, by which it may be off on another architecture: its kernels are others",
    JUDGEMENT,
    devices="any in hardware.py",
)
UNKNOWN = Share(
    0.5, "a modelled duration, by which it may be off where not even the GPU's peaks are known", JUDGEMENT
)


@dataclass(frozen=True)
class Model:
    """By how much modelled durations may be off, and why by more than usual."""

    off: Share = HERE
    why: str = ""


def model_for(device: Device | None) -> Model:
    """How well costs hold on a device; None is one that hardware.py has no entry for."""
    if device is None:
        return Model(UNKNOWN, "the peaks of this GPU are not known, and costs were measured on an H200")
    if device.compute_capability == ARCHITECTURE:
        return Model()
    return Model(
        ELSEWHERE, f"costs were measured on an H200, and the {device.name} is of another architecture"
    )
