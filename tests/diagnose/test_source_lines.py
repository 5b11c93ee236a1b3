"""The user's lines behind operators: named where recording or source, both written here, prove them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.trace import Trace
from tests.builders import Recording

SOURCE = """\
import torch


def attend(q, k, v, mask):
    scores = q @ k.transpose(-2, -1)
    scores = scores / q.shape[-1] ** 0.5
    weights = torch.softmax(
        scores.masked_fill(mask, -1e9), dim=-1
    )
    return weights @ v


@torch.no_grad()
def log(loss, parts):
    if loss > 10:
        print("large")
    inner = lambda x: x.item()
    total = sum(parts)
    return (
        total
        .float()
        .item()
    )


for batch in loader:
    loss = attend(*batch)
    loss.backward()
"""


def _ids(trace: Trace, name: str) -> list[int]:
    return trace.spans.filter(trace.spans["name"].cast(str) == name)["id"].to_list()


def _recording(frame: str, operator: str, *below: str) -> Recording:
    """An operator in a function that is called after recording has begun, through further functions."""
    recording = Recording().step(1, 0, 100).python("train.py(1): <module>", 1, 2)
    for depth, name in enumerate((frame, *below)):
        recording.python(name, 5 + depth, 60 - depth)
    return recording.op(operator, 20, 30)


def _place(tmp_path: Path, recording: Recording, operator: str) -> Place:
    trace = recording.open(tmp_path)
    (place, *_) = Case(trace).places(_ids(trace, operator))
    return place


@pytest.mark.parametrize(
    ("frame", "operator", "line"),
    [
        ("model.py(4): attend", "aten::softmax", 7),
        ("model.py(4): attend", "aten::masked_fill", 8),
        ("model.py(4): attend", "aten::div", 6),
        ("model.py(13): log", "aten::item", 22),  # not the lambda's, and not the first line of the expression
        ("model.py(13): log", "aten::to", 21),
        ("model.py(13): log", "aten::is_nonzero", 15),
        ("model.py(17): <lambda>", "aten::item", 17),
    ],
)
def test_the_only_line_that_calls_the_operator(tmp_path: Path, frame: str, operator: str, line: int) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    place = _place(tmp_path, _recording(frame, operator), operator)
    assert (place.line, place.lines, place.line_by) == (line, None, "source")
    assert place.text == f"model.py:{line} in {frame.partition(': ')[2]}"


def test_of_two_lines_that_may_both_be_neither_is_named(tmp_path: Path) -> None:
    """Lines 5 and 10 multiply matrices: the operator may be of either."""
    (tmp_path / "model.py").write_text(SOURCE)
    place = _place(tmp_path, _recording("model.py(4): attend", "aten::matmul"), "aten::matmul")
    assert (place.line, place.lines, place.line_by) == (None, (5, 10), "range")
    assert place.text == "model.py in attend, lines 5-10"


def test_an_operator_that_the_source_does_not_name_is_somewhere_in_its_function(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    place = _place(tmp_path, _recording("model.py(4): attend", "aten::cumsum"), "aten::cumsum")
    assert (place.line, place.lines, place.line_by) == (None, (4, 10), "range")


@pytest.mark.parametrize("frame", ["gone.py(4): attend", "broken.py(4): attend", "model.py(4): forward"])
def test_without_its_source_a_function_has_a_first_line_and_no_other(tmp_path: Path, frame: str) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def attend(:\n\x00")
    place = _place(tmp_path, _recording(frame, "aten::softmax"), "aten::softmax")
    assert (place.line, place.lines, place.line_by) == (None, (4, None), "entry")
    file, _, function = frame.partition("(4): ")
    assert place.text == f"{file} in {function}, from line 4"


def test_a_call_into_a_library_is_looked_for_by_its_own_name(tmp_path: Path) -> None:
    """`aten::item` below `backward` is not the user's `.item()`; the only line that calls `backward` is 28."""
    (tmp_path / "train.py").write_text(SOURCE)
    recording = Recording().step(1, 0, 100).python("train.py(27): <module>", 1, 90)
    recording.python("torch/_tensor.py(566): backward", 5, 60).op("aten::item", 20, 30)
    place = _place(tmp_path, recording, "aten::item")
    assert (place.file, place.line, place.line_by) == ("train.py", 28, "source")


@pytest.mark.parametrize("has_source", [True, False])
def test_the_line_at_which_recording_began_is_not_passed_on(tmp_path: Path, has_source: bool) -> None:
    """The loop was at line 27 when recording began; the product below it is called from nobody knows where."""
    if has_source:
        (tmp_path / "train.py").write_text(SOURCE)
    recording = Recording().step(1, 0, 100).python("train.py(27): <module>", 1, 90)
    place = _place(tmp_path, recording.op("aten::mm", 20, 30), "aten::mm")
    assert (place.line, place.lines, place.line_by) == (None, None, "function")
    assert place.text == "train.py in <module>"


def test_a_function_that_ran_when_recording_began_has_the_lines_of_its_source(tmp_path: Path) -> None:
    """It was at line 8, within `attend`, which goes from 4 to 10."""
    (tmp_path / "model.py").write_text(SOURCE)
    recording = Recording().step(1, 0, 100).python("model.py(27): <module>", 1, 90)
    recording.python("model.py(8): attend", 2, 80).op("aten::cumsum", 20, 30)
    place = _place(tmp_path, recording, "aten::cumsum")
    assert place.text == "model.py in attend, lines 4-10"


def test_the_lines_of_a_stack_that_was_recorded_with_the_operator_ran(tmp_path: Path) -> None:
    """torch before 2.0 recorded at each operator the lines that ran."""
    stack = "model.py(9): attend;train.py(3): <module>"
    recording = Recording().step(1, 0, 100).op("aten::mm", 20, 30, **{"Call stack": stack})
    place = _place(tmp_path, recording, "aten::mm")
    assert (place.line, place.line_by, place.text) == (9, "recorded", "model.py:9 in attend")


def test_the_users_file_comes_before_an_installed_package_and_this_before_torch(tmp_path: Path) -> None:
    recording = _recording(
        "train.py(40): step",
        "aten::mm",
        "transformers/trainer.py(7): loss",
        "torch/nn/functional.py(1): linear",
    )
    places = Case(trace := recording.open(tmp_path)).places(_ids(trace, "aten::mm"))
    assert [place.text for place in places] == [
        "train.py in step, from line 40",
        "transformers/trainer.py in loss, from line 7",
    ]
    recording = _recording(
        "transformers/trainer.py(7): loss", "aten::mm", "torch/nn/functional.py(1): linear"
    )
    assert _place(tmp_path, recording, "aten::mm").text == "transformers/trainer.py in loss, from line 7"


def test_what_a_compiler_wrote_is_not_the_users(tmp_path: Path) -> None:
    recording = _recording("train.py(40): step", "aten::mm", "/tmp/torchinductor_root/ab/cabc.py(130): call")
    assert _place(tmp_path, recording, "aten::mm").text == "train.py in step, from line 40"


def test_places_of_the_user_come_first_however_few(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100).python("train.py(1): <module>", 1, 2)
    for at in (10, 20, 30):
        recording.python("torch/optim/adam.py(5): step", at, at + 5).op("aten::add_", at + 1, at + 2)
    recording.python("train.py(40): step", 50, 60).op("aten::add_", 51, 52)
    trace = recording.open(tmp_path)
    places = Case(trace).places(_ids(trace, "aten::add_"))
    assert [place.file for place in places] == ["train.py", "torch/optim/adam.py"]


def test_backward_work_is_given_to_its_forward_operator(tmp_path: Path) -> None:
    """On a CPU the backward runs below `loss.backward()`. Two operators have number 5: the later one made the node."""
    recording = Recording().step(1, 0, 100).python("train.py(1): <module>", 1, 2)
    for at, frame in ((5, "data.py(3): fetch"), (20, "model.py(4): attend")):
        recording.python(frame, at, at + 10)
        recording.op("aten::mm", at + 1, at + 5, **{"Sequence number": 5, "Fwd thread id": 0})
    recording.python("train.py(40): step", 50, 90).python("torch/_tensor.py(566): backward", 51, 89)
    recording.op(
        "autograd::engine::evaluate_function: MmBackward0",
        60,
        80,
        **{"Sequence number": 5, "Fwd thread id": 1},
    )
    recording.op("aten::addcmul", 65, 70)
    place = _place(tmp_path, recording, "aten::addcmul")
    assert place.text == "model.py in attend, from line 4"


def test_a_finding_names_the_line_of_a_recorded_program(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    recording = _recording("model.py(4): attend", "aten::softmax")
    recording.op("aten::_softmax", 22, 28).launch(24, "softmax_kernel", 30, 40)
    trace = recording.open(tmp_path)
    assert Case(trace).places(_ids(trace, "aten::_softmax")) == (Place("model.py", 7, "attend"),)
