"""What two recordings were made on and with, and whether a difference in that leaves nothing to conclude.

Another device, another number of ranks and, for a program without a GPU, another processor decide how long a step takes: a change
of the program is not to be told from them. Another version of a library may be the very change that is measured: it is only said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretrace.trace import Trace

if TYPE_CHECKING:
    from foretrace.compare.sides import Side

_HOST = ("processor", "processor_cores", "torch_threads")
_TITLES = {
    "processor_cores": "processor cores",
    "torch_threads": "torch threads",
    "python": "Python",
    "cuda": "CUDA",
    "hip": "HIP",
    "cuda_driver": "CUDA of the driver",
}
_HEADER = {"cuda_driver_version": "cuda_driver", "cuda_runtime_version": "cuda"}


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same on both sides."""

    what: str
    before: str
    after: str
    decisive: bool  # whether it alone may explain another step time

    @property
    def says(self) -> str:
        """`torch 2.12.0 → 2.13.0`."""
        return f"{self.what} {self.before} → {self.after}"


def environment_of(trace: Trace) -> dict[str, str]:
    """What is known of where a recording was made; names of machines are left out."""
    header = trace.meta.get("header")
    header = header if isinstance(header, Mapping) else {}
    found = {ours: _version(header[name]) for name, ours in _HEADER.items() if header.get(name)}
    found |= dict(trace.meta.get("environment") or {})
    if ranks := trace.meta.get("world_size"):
        found["ranks"] = str(ranks)
    return {name: value for name, value in sorted(found.items()) if value}


def _version(number: Any) -> str:
    """13.0 of 13000, as CUDA counts."""
    return f"{number // 1000}.{number % 1000 // 10}" if isinstance(number, int) else ""


def differences(before: Side, after: Side) -> tuple[Difference, ...]:
    """What differs of all that is known of both sides; what decides comes first."""
    found = []
    if before.device != after.device:
        found.append(Difference("device", before.device or "no GPU", after.device or "no GPU", True))
    on_host = before.clock == after.clock == "host"
    for name in sorted(before.environment.keys() & after.environment.keys()):
        first, second = before.environment[name], after.environment[name]
        if first != second:
            decisive = name == "ranks" or (name in _HOST and on_host)
            found.append(Difference(_TITLES.get(name, name), first, second, decisive))
    return tuple(sorted(found, key=lambda each: not each.decisive))
