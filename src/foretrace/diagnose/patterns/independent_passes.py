"""Whether the passes of a loop do without each other: each takes a piece of its own, and none goes on with a result."""

from __future__ import annotations

import json
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.repeated_passes import ALIKE, Repeat
from foretrace.sourced import JUDGEMENT, Count

NOT_RECORDED = (-1,)
LINEAR = ("aten::linear", "aten::mm", "aten::matmul")
_ONLY_READ = ("aten::item", "aten::is_nonzero", "aten::to", "aten::equal", "aten::allclose")
_PICKS = (
    r"^aten::(?:select|slice|narrow|index|index_select|gather|masked_select|nonzero|where|eq|unbind|take)$"
)
_PUTS_TOGETHER = ("aten::stack", "aten::cat", "aten::concat", "aten::hstack", "aten::vstack")
_LISTED = Count(30, "tensors of a list whose shapes torch records", "torch's profiler")
_SOON = Count(3, "operators after a loop that may put its results together", JUDGEMENT)
_CELLS = re.compile(r"aten::(?:lstm|gru|rnn_\w+)(?:_cell)?$")


def collected(case: Case, loop: Repeat) -> tuple[int, ...] | None:
    """The shape of what each pass makes, where it is written to its place, or all are put together after the loop; else None.

    Torch records no shapes of longer lists than `_LISTED`: then what the last operator of a pass makes, or NOT_RECORDED.
    """
    names = case.names
    last = int(loop.ops()[-1])
    after = loop.line.ops[loop.starts[-2] : loop.starts[-1] + _SOON]
    given = shapes(case, after)
    result = _result(names[last], tensor_shapes(given.get(last) or ""))
    for op in after.tolist():
        if names[op] in _PUTS_TOGETHER:
            parts = _listed_shapes(given.get(op) or "")
            if not parts and loop.passes >= _LISTED:
                return result or NOT_RECORDED
            if loop.passes <= len(parts) <= loop.passes + 1 and len(set(parts)) == 1:
                return parts[0]
    return result if names[last] == "aten::copy_" else None


def goes_on(case: Case, loop: Repeat, made: tuple[int, ...], *, surely: bool = False) -> bool:
    """Whether a pass may need the one before: it takes something of a shape that it then makes, before it makes it.

    Where it is not known what operators make, it may. It does `surely` if what it takes so is multiplied, as a state is.
    """
    names = case.names
    ops = loop.ops(loop.passes // 2, loop.passes // 2 + 1)
    given = shapes(case, ops)
    multiplied: set[tuple[int, ...]] = set()
    makes: set[tuple[int, ...]] = set()
    known = True  # what operators have made so far
    for op in ops.tolist():
        name, tensors = names[op], tensor_shapes(given.get(op) or "")
        if name in _PUTS_TOGETHER:
            continue
        unknown = made == NOT_RECORDED or (made in tensors and made not in makes)
        if _CELLS.match(name) or (unknown and not surely):
            return True
        if known and name in LINEAR and tensors and tensors[0] not in makes:
            multiplied.add(tensors[0])
        result = _result(name, tensors)
        if result in multiplied:
            return True
        known &= result is not None
        makes |= {result} if result is not None else set()
    return False


def shapes(case: Case, ops: NDArray[np.int64]) -> dict[int, str | None]:
    """The recorded shapes of operators, as text."""
    table = case.trace.ops.filter(pl.col("span_id").is_in(ops.tolist()))
    return dict(table.select("span_id", pl.col("shapes").cast(pl.String)).iter_rows())


def _result(name: str, tensors: tuple[tuple[int, ...], ...]) -> tuple[int, ...] | None:
    """The shape of what an operator makes, where that is plain."""
    if name in LINEAR and len(tensors) >= 2:
        x, weight = tensors[:2]
        return (*x[:-1], weight[0]) if name == "aten::linear" else (*x[:-1], weight[-1])
    family = (work_models.find(name) or ("",))[0]
    if family in ("elementwise", "copy") and tensors:
        try:
            return tuple(np.broadcast_shapes(*tensors))
        except ValueError:
            return None
    return None


def takes_pieces(case: Case, loop: Repeat) -> bool:
    """Whether each pass takes a piece of its own, rather than goes on with what the one before made.

    So it is if it does nothing but to read, if its tensors are of other sizes in other passes, or if it picks.
    """
    names = case.names
    if all(names[int(op)] in _ONLY_READ for op in loop.ops(0, 1)):
        return True
    given = shapes(case, loop.ops())
    edges = list(pairwise(loop.starts))
    sizes = Counter(str([given.get(int(op)) for op in loop.line.ops[begin:end]]) for begin, end in edges)
    if max(sizes.values()) <= loop.passes / 2:
        return True
    begin, end = case.host.start_ns[loop.ops()[0]], case.host.end_ns[loop.ops()[-1]]
    picking = np.flatnonzero(case.host.named(_PICKS, "op"))
    at = case.host.start_ns[picking]
    return int(((at >= begin) & (at < end)).sum()) >= ALIKE * loop.passes


def _listed_shapes(text: str) -> tuple[tuple[int, ...], ...]:
    """The shapes of the tensors of an operator's first argument, where that is a list of them."""
    try:
        arguments = json.loads(text)
        return tuple(tuple(shape) for shape in arguments[0] if isinstance(shape, list))
    except (ValueError, TypeError, LookupError, RecursionError):
        return ()
