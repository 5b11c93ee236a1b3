"""What `operators` flags, and what it leaves alone."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import foretrace
from foretrace.analyze.concepts.work import operator_flags
from foretrace.analyze.operators import operators
from tests.builders import Recording


def flags(trace: foretrace.Trace) -> dict[str, str | None]:
    table = operators(trace).table
    return dict(zip(table["name"], table["flags"], strict=True))


def test_an_operator_whose_time_is_inside(tmp_path: Path) -> None:
    made = Recording().step(0, 0, 1000).op("aten::linear", 0, 500).op("aten::addmm", 10, 490)
    made.op("aten::add", 600, 610).op("aten::_add", 600, 609.5)
    result = operators(made.open(tmp_path))
    found = dict(zip(result.table["name"], result.table["flags"], strict=True))
    assert found["aten::linear"] == "total far above self"  # 500 µs, of which 20 its own
    assert found["aten::addmm"] is None  # all its own
    assert found["aten::add"] is None  # a hundredth of the host's time: not worth a look
    assert found["ProfilerStep*"] is None  # a step holds what is in it
    assert any(note.startswith("total far above self: aten::linear;") for note in result.notes)


@pytest.mark.parametrize(("calls", "flagged"), [(999, False), (1000, True)])
def test_huge_call_counts_are_per_step(tmp_path: Path, calls: int, flagged: bool) -> None:
    made = Recording()
    for step in range(2):
        made.step(step, step * 5000, step * 5000 + 4000)
        for call in range(calls):
            made.op("aten::add", step * 5000 + call * 4, step * 5000 + call * 4 + 2)
    assert flags(made.open(tmp_path))["aten::add"] == ("many calls" if flagged else None)


def test_negative_self_time(tmp_path: Path) -> None:
    """A call on another thread counts under the operator it belongs to, and may take longer than that."""
    made = Recording().step(0, 0, 1000).op("outer", 0, 100, **{"External id": 3})
    made.runtime("cudaLaunchKernel", 10, 60, thread=8, **{"External id": 3, "correlation": 1})
    made.runtime("cudaMemsetAsync", 20, 95, thread=9, **{"External id": 3, "correlation": 2})
    result = operators(made.open(tmp_path))
    (row,) = (row for row in result.table.to_dicts() if row["name"] == "outer")
    assert row["host_self_ns"] == -25_000
    assert row["flags"] is not None
    assert "negative self time" in row["flags"].split(", ")
    assert any(note.startswith("negative self time: outer;") for note in result.notes)


def test_nothing_odd_is_no_flag(tmp_path: Path) -> None:
    trace = Recording().step(0, 0, 100).op("aten::add", 0, 50).open(tmp_path)
    assert set(flags(trace).values()) == {None}


def test_the_documentation_says_the_limits() -> None:
    text = " ".join((inspect.getdoc(operators.function) or "").split())
    assert f"at least {operator_flags.LEAST_SHARE} of the host time" in text
    assert f"is {operator_flags.TIMES_SELF} times its self time" in text
    assert f"at least {operator_flags.CALLS_PER_STEP} a step" in text
