"""NVTX ranges that torch writes (emit_nvtx, `nsys profile --pytorch`): which are operators, with their sequence and shapes.

torch writes "aten::mm, seq = 12, op_id = 345, sizes = [[4, 8], [8, 2]]"; each part after the name may be missing. A range of
record_function has an op_id as well: the name tells it from an operator.
"""

from __future__ import annotations

import json
import re

import polars as pl

_PARTS = ("seq = ", "op_id = ", "sizes = ")
_OPERATOR = re.compile(
    r"(?:[A-Za-z_]\w*::)+[\w.~<>]+|autograd::engine::evaluate_function: .+|\w+Backward\d*(?:<[^>]*>)?|detach_?"
)
_PLAIN_OPERATOR = re.compile(r"aten::\w+|autograd::engine::evaluate_function: .+")


def is_operator(name: str, *, numbered: bool) -> bool:
    """Whether a range of this name is an operator; `numbered` where torch wrote a number behind it."""
    return (_OPERATOR if numbered else _PLAIN_OPERATOR).fullmatch(name) is not None


def split(texts: pl.Series) -> pl.DataFrame:
    """Each text's `name`, whether torch wrote more behind it (`numbered`), its `sequence` and `sizes`; null where not told."""
    first = pl.col("text").str.splitn(", ", 2)
    rest = pl.col("rest")
    frame = texts.to_frame("text").with_columns(
        head=first.struct.field("field_0"), rest=first.struct.field("field_1")
    )
    numbered = pl.any_horizontal(rest.str.starts_with(part) for part in _PARTS).fill_null(value=False)
    frame = frame.with_columns(numbered=numbered)
    if frame.select((pl.col("rest").is_not_null() & ~pl.col("numbered")).any()).item():
        frame = _with_commas(frame)
    known = pl.when("numbered").then(rest)
    sequence = known.str.strip_prefix("seq = ").str.splitn(", ", 2).struct.field("field_0")
    sizes = known.str.splitn("sizes = ", 2).struct.field("field_1")
    return frame.select(
        "numbered",
        name=pl.when("numbered").then("head").otherwise("text"),
        sequence=sequence.cast(pl.Int64, strict=False),
        sizes=sizes.str.splitn(", input_op_ids", 2).struct.field("field_0"),
    )


def _with_commas(frame: pl.DataFrame) -> pl.DataFrame:
    """The frame with names that hold a comma of their own told from what torch wrote behind them."""
    unusual = (
        pl.col("rest").is_not_null()
        & ~pl.col("numbered")
        & pl.col("text").str.contains(r", (?:seq|op_id) = \d")
    )
    return frame.with_columns(
        head=pl.when(unusual)
        .then(pl.col("text").str.extract(r"^(.*?), (?:seq|op_id) = \d", 1))
        .otherwise("head"),
        rest=pl.when(unusual)
        .then(pl.col("text").str.extract(r", ((?:seq|op_id) = \d.*)$", 1))
        .otherwise("rest"),
        numbered=pl.col("numbered") | unusual,
    )


def shapes(sizes: str) -> str | None:
    """Recorded sizes as the tables keep shapes; null where they are not a list of lists of numbers."""
    try:
        parsed = json.loads(sizes)
    except (ValueError, RecursionError):
        return None
    if not isinstance(parsed, list) or not all(_is_shape(shape) for shape in parsed):
        return None
    return json.dumps(parsed)


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list):
        return False
    return all(isinstance(size, int) or _is_shape(size) for size in shape)
