"""Whether a recording is of a program that computes on the processor alone: then its operators are its work."""

from __future__ import annotations

import polars as pl

from foretrace.analyze.concepts.device.device_time import names_like
from foretrace.trace import Trace

# Operators without a kernel for the CPU: where they ran, a GPU was there and was not recorded. Those that only ask whether a
# GPU's library could be used (aten::cudnn_is_acceptable) run everywhere: RNNs call them on every processor.
RUN_ON_A_GPU = (
    r"^aten::_?(cudnn|miopen)_(convolution|depthwise|batch_norm|affine_grid|grid|ctc|rnn|init)"
    r"|^aten::_(efficient|flash|cudnn)_attention_(forward|backward)"
    r"|^aten::_scaled_dot_product_(cudnn|efficient|flash)_attention(_backward)?$|^aten::_pin_memory$|^nccl:"
)


def computes_on_cpu(trace: Trace) -> bool:
    """Whether operators were recorded and nothing says that there was a GPU: no device work, launch, device or operator of one."""
    if trace.has_device or trace.meta.get("devices") or trace.ops.is_empty():
        return False
    spans = trace.spans.select("kind", "name").filter(pl.col("kind").is_in(("runtime", "op")))
    if (spans["kind"] == "runtime").any():
        return False
    return not spans["name"].is_in(names_like(spans, RUN_ON_A_GPU)).any()
