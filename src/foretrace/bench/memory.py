"""Memory of a device while something runs; a CPU's is not counted, since torch keeps no account of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MIB = 2**20


def peak_of(function: Callable[[], object], device: Any) -> dict[str, float | None]:
    """The most that torch's allocator held during a call, as fields of a row; null on a CPU.

    It is the second call's: the first makes what stays, such as an optimizer's state, and may compile. Nothing is timed here, so
    that a buffer of the clock is not counted.
    """
    if device.type != "cuda":
        return {"peak_alloc_MiB": None, "peak_reserved_MiB": None}
    import torch

    function()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    function()
    torch.cuda.synchronize(device)
    return {
        "peak_alloc_MiB": torch.cuda.max_memory_allocated(device) / MIB,
        "peak_reserved_MiB": torch.cuda.max_memory_reserved(device) / MIB,
    }


def allocated_bytes(device: Any) -> int | None:
    """What tensors hold now; None on a CPU."""
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.memory_allocated(device))
