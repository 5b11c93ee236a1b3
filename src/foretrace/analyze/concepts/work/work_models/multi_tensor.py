"""Work of multi-tensor optimizers and of Inductor's Triton kernels, as far as their recorded shapes tell.

torch records the shapes of a list of up to 30 tensors; a longer one leaves no shapes, and so no model. The
type of a list's elements is read from the kernel's name.
"""

from __future__ import annotations

import re
from math import prod

from foretrace.analyze.concepts.work.work_models.call import Call, Model, Work

# FLOPs, reads and writes per parameter. Adam reads parameter, gradient and both moments and writes all but the
# gradient; amsgrad is told by its list of maxima, one more of each.
_OPTIMIZERS = {
    "aten::_fused_adam_": (12, 4, 3),
    "aten::_fused_adamw_": (12, 4, 3),
    "aten::_fused_sgd_": (4, 3, 2),
    "aten::_fused_adagrad_": (6, 3, 2),
}
_TRITON = re.compile(r"triton_(poi|red|per|for)_")


def _elements(shapes: tuple[tuple[int, ...], ...]) -> int:
    return sum(prod(shape) for shape in shapes)


def _optimizer(call: Call) -> Work:
    flops, reads, writes = _OPTIMIZERS[call.name]
    dtype, item_bytes = call.kernel_dtype()
    count = _elements(call.lists[0])
    if not count:
        raise ValueError("the shapes of the list were not recorded")
    if call.name == "aten::_fused_sgd_" and not call.lists[2]:
        reads, writes = 2, 1  # without momentum
    maxima = 1 if "adam" in call.name and len(call.lists) > 4 and call.lists[4] else 0
    return Work(flops * count, (reads + writes + 2 * maxima) * count * item_bytes, dtype)


def foreach(call: Call) -> Work:
    """Work of a `_foreach_` operator: every list read; one list's worth written, but for a norm."""
    dtype, item_bytes = call.kernel_dtype()
    count = _elements(call.lists[0])
    if not count:
        raise ValueError("the shapes of the list were not recorded")
    read = sum(_elements(shapes) for shapes in call.lists)
    if "copy" in call.name:
        read -= count
    written = 0 if "norm" in call.name else count
    return Work(count, (read + written) * item_bytes, dtype)


def triton(call: Call) -> Work:
    """Bytes of an Inductor kernel: every argument once, and none more often than the kernel has points.

    The last two scalars are the numbers of points along x and along the reduction (or y). What is updated in
    place is counted once, not twice; what an argument's unused part holds is not known to be unused.
    """
    arguments = call.all_tensors
    if not arguments:
        raise ValueError("no tensors")
    numbers = [int(text) for text in call.inputs if text.isdigit() and int(text) > 0]
    points = prod(numbers[-2:]) if numbers else None
    moved = sum(
        (tensor.stored_count if points is None else min(tensor.stored_count, points)) * tensor.item_bytes
        for tensor in arguments
    )
    return Work(None, moved, max(arguments, key=lambda tensor: tensor.bytes).dtype)


def is_triton(name: str) -> bool:
    """Whether it is a pointwise, reduction or foreach kernel of Inductor; its matrix products are not."""
    return _TRITON.match(name) is not None


OPTIMIZERS: dict[str, Model] = dict.fromkeys(_OPTIMIZERS, _optimizer)
