"""The builders make what they say: a wait is read as a wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.predict.builder import build
from foretrace.predict.program import SYNC
from foretrace.predict.waits import waiting_calls
from tests.builders import Recording


def recording() -> Recording:
    made = Recording().step(0, 0, 500).op("aten::add", 10, 20)
    return made.launch(12, "add_kernel", 20, 200)


def test_a_wait_waits(tmp_path: Path) -> None:
    made = recording()
    assert made.wait(30) == 201
    program = build(made.open(tmp_path))
    assert program.kind.tolist()[-1] == SYNC


def test_a_call_that_returns_late_is_no_wait(tmp_path: Path) -> None:
    """The same call, 20 µs after the work ended: it waited for something else."""
    trace = recording().runtime("cudaStreamSynchronize", 30, 220).open(tmp_path)
    assert build(trace).kind.tolist()[-1] != SYNC


def test_item_is_one_wait(tmp_path: Path) -> None:
    made = recording()
    made.item(30)
    trace = made.open(tmp_path)
    assert len(waiting_calls(trace, build(trace))) == 1


def test_there_must_be_something_to_wait_for() -> None:
    with pytest.raises(AssertionError, match="idle"):
        recording().wait(300)
