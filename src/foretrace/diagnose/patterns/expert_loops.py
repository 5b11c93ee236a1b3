"""Experts: loops that multiply other rows with the next slice of the weights in each pass.

Not a rule itself; `host-sync` and `launch-bound` look for them. Where all take as many rows, one batched product does it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import repeated_passes

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

    loops: tuple[repeated_passes.Repeat, ...]
    alike: bool  # all passes have the same shapes: a batched product does what they do


def find(case: Case, *, least: int, chosen: Callable[[repeated_passes.Repeat], bool]) -> Experts:
    """All loops of at least so many experts, of those loops that are `chosen`; the innermost, for around may be layers."""
    kept: list[repeated_passes.Repeat] = []
    found: list[Experts] = []
    for each in reversed(repeated_passes.find(case, least=least, shapes=False)):
        made = (
            _experts(case, each, least)
            if chosen(each) and not repeated_passes.of_backward(case, each)
            else None
        )
        if made is not None and len(repeated_passes.apart((*kept, each))) > len(kept):
            found.append(made)
            kept.append(each)
    return Experts(tuple(loop for each in found for loop in each.loops), all(each.alike for each in found))


def _experts(case: Case, found: repeated_passes.Repeat, least: int) -> Experts | None:
    """The loop, once for each time that it goes through all slices of its weights; None where it is none of experts."""
    names = case.names
    given = repeated_passes.shapes(case, found.ops())
    usual = {names[int(op)] for op in found.ops(0, 1)}
    weights = [
        tensor_shapes(given.get(int(op)) or "")[1:2]
        for op in found.ops(0, 1)
        if names[int(op)] in repeated_passes.LINEAR
    ]
    if not weights or not all(weights) or usual.isdisjoint(_PICKS_ROWS) or usual.isdisjoint(_PUTS_BACK):
        return None
    end = case.host.end_ns[found.ops()[-1]]
    ops = np.flatnonzero(case.host.named(_TAKES_ONE, "op") & (case.host.start_ns < end))
    slices = {
        shape
        for text in set(repeated_passes.shapes(case, ops).values())
        for shape in tensor_shapes(text or "")[:1]
    }
    for count in sorted({each[0] for each in slices if len(each) == 3}):
        whole = all({(count, *shape), (count, *shape[::-1])} & slices for (shape,) in weights)
        if count >= least and found.passes % count == 0 and whole:
            turns = range(0, found.passes, count)
            loops = tuple(
                repeated_passes.Repeat(found.starts[at : at + count + 1], found.line) for at in turns
            )
            return Experts(loops, _same_shapes(found, given))
    return None


def _same_shapes(found: repeated_passes.Repeat, given: dict[int, str | None]) -> bool:
    """Whether all passes call their operators with the same shapes."""
    edges = pairwise(found.starts)
    return len({tuple(given.get(int(op)) for op in found.line.ops[at:to]) for at, to in edges}) == 1
