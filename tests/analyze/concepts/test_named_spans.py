"""Spans by name and operators by id, beside the same asked of the tables."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import foretrace
from foretrace.analyze.concepts.names import named_spans
from foretrace.analyze.concepts.names.per_name import by_name, distinct_rows
from foretrace.commands.demo import SAMPLE
from foretrace.runtime_names import Effect, calls_that, does
from foretrace.trace import Trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return foretrace.open(SAMPLE)


def test_spans_by_name(trace: Trace) -> None:
    spans = trace.spans.with_columns(pl.col("name").cast(pl.String))
    kinds = pl.col("kind").cast(pl.String)
    for pattern in (r"^aten::mm$", r"^Optimizer\.", "^ProfilerStep#", "Backward", "no such name"):
        for asked in (("op",), ("annotation",), ("op", "annotation", "runtime")):
            expected = spans.filter(kinds.is_in(asked) & pl.col("name").str.contains(pattern))["id"].to_list()
            assert named_spans.ids_like(trace, asked, pattern).tolist() == expected
        assert named_spans.named_like(trace, pattern).sum() == spans["name"].str.contains(pattern).sum()
        assert named_spans.any_like(trace, pattern) == spans["name"].str.contains(pattern).any()
    assert len(named_spans.ids_like(trace, "op", "^aten::mm$")) > 0
    waits = np.flatnonzero(calls_that(trace.spans["name"], Effect.BLOCKS))
    assert waits.tolist() == [span for span, name in spans.select("id", "name").iter_rows() if does(name, Effect.BLOCKS)]  # fmt: skip


def test_rows_of_operators(trace: Trace) -> None:
    places = {op: row for row, op in enumerate(trace.ops["span_id"])}
    ids = np.arange(-1, trace.spans.height)
    expected = [places.get(op, -1) for op in ids.tolist()]
    assert named_spans.operator_rows(trace, ids).tolist() == expected
    backwards = trace.ops.reverse()  # no reader writes it so; the answer is the same
    turned = Trace(
        trace.path, trace.format, trace.meta, (), {"ops": backwards, "spans": trace.spans}.__getitem__
    )
    assert named_spans.operator_rows(turned, ids).tolist() == [
        -1 if row < 0 else backwards.height - 1 - row for row in expected
    ]


def test_a_value_for_each_name() -> None:
    names = pl.Series(["b", None, "a", "b"], dtype=pl.Categorical)
    asked: list[str] = []

    def length(distinct: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        asked.extend(distinct.to_list())
        return np.array([10 * ord(text) for text in distinct], np.int64)

    assert by_name(names, length).tolist() == [980, 0, 970, 980]
    assert sorted(asked) == ["a", "b"]
    assert by_name(names.clear(), length).tolist() == []
    table = pl.DataFrame({"x": names, "y": pl.Series(["1", "1", None, "1"], dtype=pl.Categorical)})
    rows, which = distinct_rows(table)
    assert rows.height == 3
    assert rows[which].rows() == table.rows()
