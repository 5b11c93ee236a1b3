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
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from foretrace.analyze.concepts.device.device_time import names_like
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


def _of_tokens(trace: Trace, reads: list[_Read], nodes: list[int]) -> Batch | None:
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


def _of_images(reads: list[_Read], nodes: list[int], copied: dict[int, list[Shape]]) -> Batch | None:
    convolutions = [read for read in reads if read.name.startswith(_CONVOLUTION)]
    items: dict[int, int] = {}
    for step, calls in _by_step(convolutions).items():
        first = calls[0]
        same = [read for read in calls if (read.given, read.table) == (first.given, first.table)]
        begins = {shape[0] for shape in copied.get(step, ())}
        confirmed = begins == {first.given[0]}
        alone = len(same) == 1 and bool(nodes) and not begins
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


def _apart(calls: list[_Read], nodes: list[int]) -> bool:
    """Whether a backward begins between every two of the calls."""
    return all(
        bisect_left(nodes, one.at_ns) < bisect_left(nodes, other.at_ns) for one, other in pairwise(calls)
    )


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
    spans = trace.spans.filter(pl.col("kind") == "op")
    spans = spans.filter(pl.col("name").is_in(names_like(spans, pattern))).select(
        "id", "name", "start_ns", "step", "parent_id"
    )
    shapes = trace.ops.select(pl.col("span_id").alias("id"), pl.col("shapes").cast(pl.String)).drop_nulls()
    calls = spans.join(shapes, on="id", maintain_order="left").with_columns(pl.col("name").cast(pl.String))
    # Under autocast an operator calls itself once more, with its arguments cast.
    around = trace.spans["name"].gather(calls["parent_id"]).cast(pl.String)
    repeated = (around == calls["name"]).fill_null(value=False)
    return calls.filter(~repeated & ~_inside_backward(trace, calls["parent_id"]))


def _inside_backward(trace: Trace, parents: pl.Series) -> pl.Series:
    """Whether an autograd node is around: what a checkpoint computes again is read once only."""
    nodes = names_like(trace.spans, _NODE)
    inside = pl.Series([False] * len(parents), dtype=pl.Boolean)
    at = parents
    while at.null_count() < len(at):
        inside |= trace.spans["name"].gather(at).is_in(nodes).fill_null(value=False)
        at = trace.spans["parent_id"].gather(at)
    return inside


def _backward_starts(trace: Trace) -> list[int]:
    ops = trace.spans.filter(pl.col("kind") == "op")
    starts: list[int] = ops.filter(pl.col("name").is_in(names_like(ops, _NODE)))["start_ns"].to_list()
    return starts


def _copied(trace: Trace) -> dict[int, list[Shape]]:
    """Shapes of what operators copied from the host to the device in each step; single numbers left out."""
    to_device = trace.copies.filter(pl.col("direction").cast(pl.String) == "HtoD")["span_id"]
    spans = trace.spans.select("id", "op_id", "step").drop_nulls()
    copies = spans.filter(pl.col("id").is_in(to_device.implode())).unique("op_id", maintain_order=True)
    shapes = trace.ops.select(pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String)).drop_nulls()
    found: dict[int, list[Shape]] = {}
    for step, text in (
        copies.join(shapes, on="op_id", maintain_order="left").select("step", "shapes").iter_rows()
    ):
        first = _shapes(text)[:1]
        if first and any(extent > 1 for extent in first[0]):
            found.setdefault(step, []).append(first[0])
    return found


def _shapes(text: str | None) -> list[Shape]:
    """The tensors' shapes as recorded; what is no plain list of sizes is an empty one."""
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
