"""The operators of a program's threads: torch's own on all of them, or all on the main one."""

from __future__ import annotations

from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.diagnose.operators import main_thread_operators, torch_operators
from tests.builders import Recording
from tests.diagnose.loops import launches, loop

AUTOGRAD = 200


def case(folder: Path) -> Case:
    """Three launches on the main thread and an operator of a library; then two on autograd's, which the main one waits for."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 3)
        recording.op("library::fused", at + 30, at + 40).op("aten::view", at + 32, at + 34)
        for start in (at + 42, at + 62):
            recording.op("MulBackward0", start, start + 18, thread=AUTOGRAD)
            recording.op("aten::mul", start + 2, start + 16, thread=AUTOGRAD)
            recording.launch(start + 8, "mul", start + 10, start + 11, thread=AUTOGRAD)
        recording.op("aten::add", at + 34, at + 48, thread=300)  # a thread that calls nothing

    return Case(loop(folder, 100, body))


def test_torchs_own_operators_on_all_threads_that_make_calls(tmp_path: Path) -> None:
    asked = case(tmp_path)
    names = asked.names.gather(torch_operators(asked)).to_list()
    assert names == ["aten::add", "aten::add", "aten::add", "aten::view", "aten::mul", "aten::mul"] * 3


def test_all_operators_of_the_thread_that_makes_most_calls(tmp_path: Path) -> None:
    asked = case(tmp_path)
    names = asked.names.gather(main_thread_operators(asked)).to_list()
    assert names == ["aten::add", "aten::add", "aten::add", "library::fused"] * 3
