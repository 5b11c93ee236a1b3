"""Loops over experts: each pass multiplies other rows with the next slice of the weights.

Where all passes take the same number of rows, one batched product does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import repeated_passes
from foretrace.diagnose.patterns.independent_passes import LINEAR, shapes
from foretrace.diagnose.patterns.repeated_passes import Repeat

_TAKES_ONE = r"^aten::(?:select|unbind)$"
# Rows that a pass takes for itself, and rows that it puts where they belong.
_PICKS_ROWS = ("aten::index", "aten::index_select", "aten::gather", "aten::masked_select")
_PUTS_BACK = (
    "aten::index_add_",
    "aten::index_add",
    "aten::index_copy_",
    "aten::index_put_",
    "aten::scatter_add_",
)


@dataclass(frozen=True)
class Experts:
    """Loops that pick rows in each pass, multiply them with the next slice of one tensor, and put them into one result."""

    loops: tuple[Repeat, ...]
    alike: bool  # all passes have the same shapes: a batched product does what they do


def find(case: Case, *, least: int, chosen: Callable[[Repeat], bool]) -> Experts:
    """All loops of at least so many experts, of those loops that are `chosen`; the innermost, for the loop around it may be over layers."""
    kept: list[Repeat] = []
    experts: list[Experts] = []
    for loop in reversed(repeated_passes.find(case, least=least, shapes=False)):
        if not chosen(loop) or repeated_passes.of_backward(case, loop):
            continue
        of_loop = _experts(case, loop, least)
        if of_loop is not None and len(repeated_passes.apart((*kept, loop))) > len(kept):
            experts.append(of_loop)
            kept.append(loop)
    return Experts(
        tuple(loop for found in experts for loop in found.loops), all(found.alike for found in experts)
    )


def _experts(case: Case, loop: Repeat, least: int) -> Experts | None:
    """The loop, once for each time that it goes through all slices of its weights; None where it is none of experts."""
    names = case.names
    given = shapes(case, loop.ops())
    usual = {names[int(op)] for op in loop.ops(0, 1)}
    weights = [
        tensor_shapes(given.get(int(op)) or "")[1:2] for op in loop.ops(0, 1) if names[int(op)] in LINEAR
    ]
    if not weights or not all(weights) or usual.isdisjoint(_PICKS_ROWS) or usual.isdisjoint(_PUTS_BACK):
        return None
    end = case.host.end_ns[loop.ops()[-1]]
    ops = np.flatnonzero(case.host.named(_TAKES_ONE, "op") & (case.host.start_ns < end))
    slices = {shape for text in set(shapes(case, ops).values()) for shape in tensor_shapes(text or "")[:1]}
    for count in sorted({shape[0] for shape in slices if len(shape) == 3}):
        whole = all({(count, *shape), (count, *shape[::-1])} & slices for (shape,) in weights)
        if count >= least and loop.passes % count == 0 and whole:
            turns = range(0, loop.passes, count)
            loops = tuple(Repeat(loop.starts[at : at + count + 1], loop.line) for at in turns)
            return Experts(loops, _same_shapes(loop, given))
    return None


def _same_shapes(loop: Repeat, given: dict[int, str | None]) -> bool:
    """Whether all passes call their operators with the same shapes."""
    edges = pairwise(loop.starts)
    return len({tuple(given.get(int(op)) for op in loop.line.ops[at:to]) for at, to in edges}) == 1
