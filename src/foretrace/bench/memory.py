"""Memory of a device while something runs; a CPU's is not counted, since torch keeps no account of it."""

from __future__ import annotations

from typing import Any, Self

MIB = 2**20


class Peak:
    """The most that torch's allocator held inside a `with` block."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._counted = device.type == "cuda"

    def __enter__(self) -> Self:
        self.reset()
        return self

    def __exit__(self, *raised: object) -> None:
        return

    def reset(self) -> None:
        """Counts anew from here."""
        if self._counted:
            import torch

            torch.cuda.reset_peak_memory_stats(self._device)

    def columns(self) -> dict[str, float | None]:
        """The fields of a row; absent on a CPU."""
        if not self._counted:
            return {"peak_alloc_MiB": None, "peak_reserved_MiB": None}
        import torch

        return {
            "peak_alloc_MiB": torch.cuda.max_memory_allocated(self._device) / MIB,
            "peak_reserved_MiB": torch.cuda.max_memory_reserved(self._device) / MIB,
        }


def allocated_bytes(device: Any) -> int | None:
    """What tensors hold now; None on a CPU."""
    if device.type != "cuda":
        return None
    import torch

    return int(torch.cuda.memory_allocated(device))
