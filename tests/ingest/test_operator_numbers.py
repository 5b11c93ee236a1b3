"""How many of the numbers that the profiler gave to operators are in a recording, by both readers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from foretrace.ingest import kineto_native, open_trace
from foretrace.ingest.operator_numbers import operator_numbers
from tests.builders import Recording

READERS = ["python", *(["native"] if kineto_native.missing is None else [])]


@pytest.mark.parametrize(
    ("numbers", "there", "between"),
    [
        (range(1, 102), 95, 95),  # the longest jump in twenty is left out
        ([*range(1, 51), *range(1_000_001, 1_000_051)], 95, 95),  # the profiler was paused once
        (range(7, 2_000, 10), 190, 1_900),  # a tenth is left
        ([5], 0, 0),
        ([3, None, 3, 0, 5], 1, 2),
    ],
)
def test_numbers_are_counted_without_the_longest_jumps(
    numbers: Iterable[int | None], there: int, between: int
) -> None:
    assert operator_numbers(numbers) == {"op_ids": there, "op_id_range": between}


@pytest.mark.parametrize("reader", READERS)
def test_both_readers_count_them(tmp_path: Path, reader: str) -> None:
    recording = Recording()
    numbers = [*range(1, 60), *range(900, 960, 3), 2**63 + 5]
    for place, number in enumerate(numbers[::-1]):
        recording.op("aten::add", 10 * place, 10 * place + 5, **{"External id": number})
    meta = open_trace(recording.write(tmp_path), reader=reader).meta
    expected = operator_numbers(numbers)
    assert (meta["op_ids"], meta["op_id_range"]) == (expected["op_ids"], expected["op_id_range"])
