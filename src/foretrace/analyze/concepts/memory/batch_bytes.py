"""Which blocks grow with the batch: what the forward pass makes of its items, and the gradients of that.

Parameters, their gradients and the optimizer's state do not grow. Nor does what the backward pass makes in the size of a
parameter: gradients on their way to where they are added up. A block that is allocated in the forward pass and never freed
is a cache or a workspace, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.memory import memory_categories, memory_replay, trained_parameters
from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange, Times, factors
from foretrace.analyze.concepts.names.per_name import by_name
from foretrace.trace import Trace, once_per_trace

_GROWS = ("activation", "intermediate", "temporary", "autograd")
_CASTS = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::empty_strided", "aten::clone")
ROUNDED_BYTES = (
    512  # to which CUDA's allocator rounds what it is asked for: kMinBlockSize of CUDACachingAllocator
)


@once_per_trace
def category(trace: Trace) -> pl.Series:
    """The category of each block of `memory_replay.find`."""
    return memory_categories.categories(trace, memory_replay.find(trace).blocks)


@once_per_trace
def growing(trace: Trace) -> Times:
    """The rows of the blocks that grow with the batch."""
    memory = memory_replay.find(trace)
    kinds = category(trace)
    known = kinds.is_in(_GROWS).to_numpy() & ~memory.within(optimizer_steps(trace))
    sized = _of_parameters(trace, memory)
    names = trace.spans["name"].gather(memory.blocks["op_id"])
    casts = by_name(names, lambda distinct: distinct.is_in(_CASTS).to_numpy())
    in_backward = (kinds == "autograd").to_numpy() | _backward_temporaries(trace, kinds)
    return np.flatnonzero(known & ~(sized & (casts | in_backward)))


def grown(trace: Trace, times: float) -> MemoryChange:
    """The curve with this many times the items in every step."""
    return MemoryChange(f"{times:.3g} times the batch", factors=factors(growing(trace), times))


def optimizer_steps(trace: Trace) -> Sequence[tuple[int, int]]:
    """When optimizers step."""
    steps = memory_categories.host_annotations(trace, memory_categories.OPTIMIZER_STEP)
    return list(zip(steps["start_ns"], steps["start_ns"] + steps["dur_ns"], strict=True))


def _of_parameters(trace: Trace, memory: Memory) -> NDArray[np.bool_]:
    """Whether a block has the size of a parameter, or of one in half precision."""
    sizes = trained_parameters.gradients(trace)["size_bytes"].unique().to_numpy()
    sizes = np.concatenate((sizes, sizes // 2))
    if memory.curve.device != "cpu":
        sizes = -(-sizes // ROUNDED_BYTES) * ROUNDED_BYTES
    return np.isin(memory.size_bytes, sizes)


def _backward_temporaries(trace: Trace, kinds: pl.Series) -> NDArray[np.bool_]:
    """Whether a temporary block was allocated while a backward pass was at work."""
    memory = memory_replay.find(trace)
    work = memory_categories.backward_work(trace)
    place = np.searchsorted(work.start, memory.start_ns, side="right") - 1
    inside = (place >= 0) & (memory.start_ns <= np.append(work.end, 0)[place])
    found: NDArray[np.bool_] = inside & (kinds == "temporary").to_numpy()
    return found
