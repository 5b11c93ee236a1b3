"""Repeats: loops within a step, told by what they call."""

from __future__ import annotations

from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns import repeated_passes
from tests.builders import Recording
from tests.diagnose.loops import loop


def calling(folder: Path, *names: str) -> Case:
    """Three steps of operators of 10 µs that launch a kernel each."""

    def body(recording: Recording, at: float) -> None:
        for number, name in enumerate(names):
            start = at + number * 10
            recording.op(f"aten::{name}", start, start + 10)
            recording.launch(start + 8, name, start + 10, start + 11, call=1.5)

    return Case(loop(folder, 10 * len(names), body))


def found(case: Case, least: int = 4) -> set[tuple[int, int]]:
    """The passes of each loop, and where in the step it begins."""
    return {(each.passes, each.starts[0]) for each in repeated_passes.find(case, least=least, shapes=False)}


def test_a_loop_between_other_operators(tmp_path: Path) -> None:
    assert found(calling(tmp_path, "rand", *("mul", "mean", "sub") * 5, "stack")) == {(5, 1)}


def test_an_operator_that_some_passes_leave_out(tmp_path: Path) -> None:
    body = ("mul", "mean", "add", "sub", "clamp", "div")
    case = calling(tmp_path, *body, *(("flip", *body) * 2), *body * 2, "stack")
    assert found(case) == {(5, 0)}


def test_too_few_passes_are_no_loop(tmp_path: Path) -> None:
    assert found(calling(tmp_path, *("mul", "mean", "sub") * 3)) == set()


def test_a_loop_in_a_loop(tmp_path: Path) -> None:
    """Four passes of an embedding, five layers and a loss; each pass's layers are a loop as well."""
    case = calling(tmp_path, *("embedding", *("linear", "gelu") * 5, "sum") * 4)
    every = repeated_passes.find(case, least=4, shapes=False)
    assert every[0].passes == 4
    assert [each.passes for each in repeated_passes.apart(every)] == [4, 4, 4]  # one a step


def test_the_same_loop_in_two_places(tmp_path: Path) -> None:
    """Each of two layers goes through five experts."""
    experts = ("nonzero", "mm", "index_add_") * 5
    assert found(calling(tmp_path, "linear", *experts, "softmax", "topk", *experts, "add")) == {
        (5, 1),
        (5, 18),
    }
