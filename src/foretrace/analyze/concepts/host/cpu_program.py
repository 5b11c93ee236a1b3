"""Whether a recording is of a program that computes on the processor alone: then its operators are its work."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.trace import Trace

# Operators that only a program with a GPU calls: where they ran, the GPU was there and was not recorded.
_OF_A_GPU = (
    r"cudnn|miopen|cuda|_efficient_attention|_cudnn_attention|_flash_attention(_backward|_forward)?$|^nccl:"
    r"|pin_memory"
)


def computes_on_cpu(trace: Trace) -> bool:
    """Whether operators were recorded and nothing says that there was a GPU: no device work, launch, device or operator of one."""
    if trace.has_device or trace.meta.get("devices") or trace.ops.is_empty():
        return False
    spans = trace.spans.select("kind", "name").filter(pl.col("kind").is_in(("runtime", "op")))
    if (spans["kind"] == "runtime").any():
        return False
    return not spans["name"].is_in(names_like(spans, _OF_A_GPU)).any()
