"""What a kernel of compiled code takes the device."""

from __future__ import annotations

from foretrace.hardware import Device
from foretrace.predict.compiler.kernels import Kernel
from foretrace.predict.compiler.nodes import COLUMNS, FREE, PLANES, POINTWISE, ROWS, SCATTERS, Node
from foretrace.predict.costs import compiled, streaming


def launches(kernel: Kernel) -> int:
    """How many kernels it is launched as; none where it only makes constants."""
    kinds = [node.shape.kind for node in kernel.nodes]
    if all(kind == FREE for kind in kinds):
        return 0
    if PLANES in kinds:
        return 2 * kinds.count(PLANES)  # statistics, and what they are applied to
    return 2 if COLUMNS in kinds or SCATTERS in kinds else 1  # the second: partial sums, or zeros to add to


def price_ns(device: Device, kernel: Kernel) -> int:
    """How long it takes; never longer than what it replaces."""
    started = launches(kernel)
    if not started:
        return 0
    kinds = {node.shape.kind for node in kernel.nodes}
    work_ns = _planes_ns(device, kernel) if PLANES in kinds else _one_pass_ns(device, kernel, kinds)
    return min(round(work_ns) + started * compiled.START_NS, kernel.recorded_ns)


def _one_pass_ns(device: Device, kernel: Kernel, kinds: set[str]) -> float:
    share, moved = compiled.POINTWISE_SHARE, kernel.moved_bytes
    if COLUMNS in kinds:
        share = compiled.COLUMNS_SHARE
    elif ROWS in kinds:
        share = compiled.ROWS_SHARE
        if kernel.longest_row > compiled.LONG_ROW:
            moved += kernel.read_bytes
    moving = streaming.moving_s(device, moved, share) * 1e9
    return max(moving, compiled.computing_ns(device, _instructions(device, kernel)))


def _instructions(device: Device, kernel: Kernel) -> float:
    """What it computes; the parts of a concatenation are computed for all its elements, and chosen from."""
    joins = any(node.op == "aten::cat" for node in kernel.nodes)
    own = sum(
        (kernel.count if joins and node.shape.kind == POINTWISE else node.shape.count)
        * compiled.instructions(node.op)
        * (compiled.CACHED if _adds_in_cache(device, node) else 1.0)
        for node in kernel.nodes
    )
    return own + compiled.HALF * kernel.half_elements


def _adds_in_cache(device: Device, node: Node) -> bool:
    """Whether atomic additions go to a tensor that stays in the cache."""
    return node.shape.kind == SCATTERS and 2 * node.shape.makes.bytes <= device.l2_bytes


def _planes_ns(device: Device, kernel: Kernel) -> float:
    """A pass for the statistics of each norm, and one that applies them."""
    norms = [node for node in kernel.nodes if node.shape.kind == PLANES]
    reading = streaming.moving_s(device, kernel.read_bytes / len(norms), compiled.PLANES_SHARE) * 1e9
    total = streaming.moving_s(device, kernel.moved_bytes, compiled.POINTWISE_SHARE) * 1e9
    for node in norms:
        per_element = compiled.STATISTICS * (1.0 if "batch_norm" in node.op else compiled.GROUPED)
        total += max(reading, compiled.computing_ns(device, node.shape.count * per_element))
    return total
