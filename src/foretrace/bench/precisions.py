"""Precisions by the names that people use: fp32, tf32, bf16, fp16; and what a device can do in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from foretrace import hardware
from foretrace.bench.sweep import torch_device
from foretrace.errors import unknown

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
_DTYPES = {"fp32": "float32", "tf32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ELEMENT_BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def check(names: tuple[str, ...]) -> None:
    """Raises UsageError for a name that is none."""
    for name in names:
        if name not in PRECISIONS:
            raise unknown(f"no precision {name!r}", name, PRECISIONS)


def chosen(names: Sequence[str] | None, device: str) -> tuple[str, ...]:
    """Those asked for, or all that the device has."""
    if names is not None:
        check(tuple(names))
        return tuple(names)
    found = torch_device(device)
    return tuple(name for name in PRECISIONS if name != "tf32" or has_tf32(found))


def has_tf32(device: Any) -> bool:
    """Whether products of float32 matrices can run in TF32 there."""
    if device.type != "cuda":
        return False
    import torch

    return bool(torch.version.cuda and torch.cuda.get_device_capability(device)[0] >= 8)


def require(device: Any, precision: str) -> None:
    """Raises RuntimeError where a row would be named after a precision that the device does not have."""
    if precision == "tf32" and not has_tf32(device):
        raise RuntimeError("tf32 needs an NVIDIA GPU of compute capability 8.0 or newer")


def dtype_of(precision: str) -> Any:
    """The torch.dtype of tensors; tf32 is float32 whose products are rounded."""
    import torch

    return getattr(torch, _DTYPES[precision])


@contextmanager
def products_in(precision: str) -> Iterator[None]:
    """Inside, products of float32 matrices run in TF32, or not; afterwards as before."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def peak_flops(device: Any, precision: str) -> float | None:
    """The device's peak in this precision; None for a CPU, or a GPU that is not in the table."""
    if device.type != "cuda":
        return None
    import torch

    properties = torch.cuda.get_device_properties(device)
    known = hardware.match(properties.name, memory_bytes=properties.total_memory)
    return None if known is None else hardware.peak_flops(known, precision)
