"""The batch: how many items, and tokens, a step takes in. Known only where the recorded shapes leave no doubt.

What tells it, in this order:
- token ids: the indices of an embedding, [batch, length], where attention then runs over [batch, heads, length, size];
- the input of the first convolution, whose first dimension is the batch. Without a backward pass, or with several
  passes in a step, only where the tensors copied to the device begin with the same number;
- tensors of different shapes that are copied to the device once a step, all with the same first dimension, as an input
  and its labels.
Several passes in one step count together where a backward lies between them (gradient accumulation). Anything else, such as
a model that is called twice before its backward, or steps that disagree with what was copied, is no answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import polars as pl

from foretrace.analyze.concepts.names.named_spans import ids_like, named_like, operator_rows
from foretrace.analyze.concepts.trees import attribution
from foretrace.analyze.concepts.trees.call_tree import NOBODY, Array
from foretrace.trace import Trace, once_per_trace

Shape = tuple[int, ...]

_READS = r"^aten::(?:embedding|conv[123]d)$"
_EMBEDDING, _CONVOLUTION = "aten::embedding", "aten::conv"
_ATTENTION = (
    r"^aten::(?:scaled_dot_product_attention|_scaled_dot_product_\w+|_softmax|_safe_softmax)$|flash_attn"
)
_NODE = r"^autograd::engine::evaluate_function"
TOKENS = "token ids of the embedding, and the attention over them"
IMAGES = "first dimension of the first convolution's input"
COPIED = "first dimension of the tensors copied to the device in each step"


@dataclass(frozen=True)
class Batch:
    """Items, and tokens where they are known, by the number of the step; and what tells it."""

    items: Mapping[int, int]
    tokens: Mapping[int, int]
    source: str


@dataclass(frozen=True)
class _Read:
    """An operator of the forward pass that takes in the batch."""

    step: int
    at_ns: int
    name: str
    given: Shape
    table: Shape  # the weight


@once_per_trace
def find(trace: Trace) -> Batch | None:
    """The batch of each step; None where the shapes do not tell it beyond doubt."""
    if not trace.steps:
        return None
    reads, nodes = _reads(trace), _backward_starts(trace)
    copied = _copied(trace)
    return _of_tokens(trace, reads, nodes) or _of_images(reads, nodes, copied) or _of_copies(reads, copied)


def _of_tokens(trace: Trace, reads: list[_Read], nodes: Array) -> Batch | None:
    ids = [read for read in reads if read.name == _EMBEDDING and len(read.given) == 2]
    if not ids:
        return None
    # Positions and segments are looked up too, in smaller tables.
    largest = max(read.table for read in ids)
    attended = _attended(trace)
    items: dict[int, int] = {}
    tokens: dict[int, int] = {}
    for step, calls in _by_step([read for read in ids if read.table == largest]).items():
        batches = [_batch_of(read.given, attended) for read in calls]
        if not _apart(calls, nodes) or None in batches:
            return None
        items[step] = sum(batch for batch in batches if batch is not None)
        tokens[step] = sum(read.given[0] * read.given[1] for read in calls)
    return Batch(items, tokens, TOKENS)


def _batch_of(ids: Shape, attended: set[tuple[int, int]]) -> int | None:
    """The batch among the two dimensions of token ids, by the attention over them; None where none fits."""
    first, second = ids
    if (first, second) in attended:
        return first
    return second if (second, first) in attended else None


def _of_images(reads: list[_Read], nodes: Array, copied: dict[int, list[Shape]]) -> Batch | None:
    convolutions = [read for read in reads if read.name.startswith(_CONVOLUTION)]
    items: dict[int, int] = {}
    for step, calls in _by_step(convolutions).items():
        first = calls[0]
        same = [read for read in calls if (read.given, read.table) == (first.given, first.table)]
        begins = {shape[0] for shape in copied.get(step, ())}
        confirmed = begins == {first.given[0]}
        alone = len(same) == 1 and len(nodes) > 0 and not begins
        if not (confirmed or alone) or not _apart(same, nodes) or len(first.given) != len(first.table):
            return None
        items[step] = first.given[0] * len(same)
    return Batch(items, {}, IMAGES) if items else None


def _of_copies(reads: list[_Read], copied: dict[int, list[Shape]]) -> Batch | None:
    if any(read.name.startswith(_CONVOLUTION) for read in reads):
        return None  # which did not agree
    items: dict[int, int] = {}
    for step, shapes in copied.items():
        begins = {shape[0] for shape in shapes}
        if len(begins) != 1 or len(set(shapes)) != len(shapes) or len(shapes) == 1:
            return None
        items[step] = begins.pop()
    return Batch(items, {}, COPIED) if items else None


def _by_step(reads: list[_Read]) -> dict[int, list[_Read]]:
    found: dict[int, list[_Read]] = {}
    for read in reads:
        found.setdefault(read.step, []).append(read)
    return found


def _apart(calls: list[_Read], nodes: Array) -> bool:
    """Whether a backward begins between every two of the calls."""
    return bool((np.diff(np.searchsorted(nodes, [read.at_ns for read in calls])) > 0).all())


def _reads(trace: Trace) -> list[_Read]:
    """Embeddings and convolutions of the forward passes within steps, in order."""
    found = []
    for row in _calls(trace, _READS).filter(pl.col("step").is_not_null()).iter_rows(named=True):
        shapes = _shapes(row["shapes"])
        if len(shapes) < 2 or not shapes[0] or not shapes[1]:
            continue
        given, table = shapes[:2] if row["name"] != _EMBEDDING else (shapes[1], shapes[0])
        found.append(_Read(row["step"], row["start_ns"], row["name"], given, table))
    return found


def _attended(trace: Trace) -> set[tuple[int, int]]:
    """Batch and length of what attention ran over: the first and third dimension of queries or of scores."""
    firsts = (_shapes(text)[:1] for text in _calls(trace, _ATTENTION)["shapes"].unique().to_list())
    return {(first[0][0], first[0][2]) for first in firsts if first and len(first[0]) == 4}


def _calls(trace: Trace, pattern: str) -> pl.DataFrame:
    """Operators of such names outside the backward, with their shapes, in order."""
    ids = ids_like(trace, "op", pattern)
    rows = operator_rows(trace, ids)
    ids, rows = ids[rows >= 0], rows[rows >= 0]
    codes, parent = trace.spans["name"].to_physical().to_numpy(), attribution.parents(trace)
    above = parent[ids]
    # Under autocast an operator calls itself once more, with its arguments cast.
    repeated = (above != NOBODY) & (codes[above] == codes[ids])
    kept = ~repeated & ~_inside_backward(trace, above)
    calls: pl.DataFrame = trace.spans.select("name", "start_ns", "step")[ids[kept]]
    shapes = trace.ops["shapes"].gather(rows[kept])
    told = calls.with_columns(pl.col("name").cast(pl.String), shapes=shapes.cast(pl.String))
    return told.drop_nulls("shapes")


@once_per_trace
def _nodes(trace: Trace) -> Array:
    """For each span, whether it is an autograd node."""
    return named_like(trace, _NODE)


def _inside_backward(trace: Trace, parents: Array) -> Array:
    """Whether an autograd node is around: what a checkpoint computes again is read once only."""
    is_node, parent = _nodes(trace), attribution.parents(trace)
    inside, at = np.zeros(len(parents), bool), parents
    while (there := at != NOBODY).any():
        inside |= there & is_node[at]
        at = np.where(there, parent[at], NOBODY)
    return inside


def _backward_starts(trace: Trace) -> Array:
    return trace.spans["start_ns"].to_numpy()[ids_like(trace, "op", _NODE)]


def _copied(trace: Trace) -> dict[int, list[Shape]]:
    """Shapes of what operators copied from the host to the device in each step; single numbers left out."""
    to_device = trace.copies.filter(pl.col("direction").cast(pl.String) == "HtoD")["span_id"]
    copies = trace.spans.select("op_id", "step")[np.sort(to_device.unique().to_numpy())].drop_nulls()
    copies = copies.unique("op_id", maintain_order=True)
    rows = operator_rows(trace, copies["op_id"].to_numpy())
    shapes = trace.ops["shapes"].gather(pl.Series(rows).replace(-1, None)).cast(pl.String)
    found: dict[int, list[Shape]] = {}
    for step, text in copies.select("step", shapes=shapes).drop_nulls().iter_rows():
        first = _shapes(text)[:1]
        if first and any(extent > 1 for extent in first[0]):
            found.setdefault(step, []).append(first[0])
    return found


@lru_cache(maxsize=4096)
def _shapes(text: str | None) -> list[Shape]:
    """The tensors' shapes as recorded; what is no plain list of sizes is an empty one. Not to be changed."""
    try:
        listed = json.loads(text or "")
    except ValueError:
        return []
    if not isinstance(listed, list):
        return []
    return [
        tuple(sizes) if isinstance(sizes, list) and all(isinstance(size, int) for size in sizes) else ()
        for sizes in listed
    ]
