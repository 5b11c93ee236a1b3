"""The host time that goes with operators: their own, that of autograd's nodes for them, and the Python before."""

from __future__ import annotations

from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.diagnose.removal import host_time
from tests.builders import Recording
from tests.diagnose.loops import H200

NODE = "autograd::engine::evaluate_function: "


def removed_us(folder: Path, recording: Recording, *names: str) -> list[tuple[float, float]]:
    """What goes with the operators of these names, in microseconds from the recording's start."""
    case = Case(recording.open(folder))
    spans = case.trace.spans
    ops = spans.filter(spans["name"].cast(str).is_in(names))["id"].to_list()
    found = host_time(case, ops)
    return [(float(start) / 1e3, float(end) / 1e3) for start, end in zip(found.start, found.end, strict=True)]


def launching(recording: Recording, name: str, start: float, end: float, **told: object) -> None:
    recording.op(name, start, end, **told)
    recording.launch(start + 2, f"{name}_kernel", end, end + 1, call=1)


def test_python_that_leads_to_a_call_goes_with_it_where_it_is_short(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    recording.step(0, 0, 200)
    launching(recording, "aten::linear", 0, 10)
    launching(recording, "aten::mul", 15, 25)  # five microseconds of Python lead to it
    launching(recording, "aten::linear", 25, 35)
    launching(recording, "aten::tanh", 35, 45)  # none
    launching(recording, "aten::exp", 145, 155)  # the program did something else before
    recording.op("aten::empty", 160, 161)
    found = removed_us(tmp_path, recording, "aten::mul", "aten::tanh", "aten::exp")
    assert found == [(10, 25), (35, 45), (145, 155)]


def test_nodes_of_autograd_for_views_inside_go_with_an_operator(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    recording.step(0, 0, 200)
    recording.op("aten::matmul", 0, 30)
    recording.op("aten::expand", 1, 3, **{"Sequence number": 1, "Fwd thread id": 0})
    launching(recording, "aten::bmm", 5, 25, **{"Sequence number": 2, "Fwd thread id": 0})
    recording.op("aten::view", 40, 45, **{"Sequence number": 3, "Fwd thread id": 0})
    launching(recording, "aten::add", 50, 60)
    for number, name, start in ((3, "ViewBackward0", 100), (1, "ExpandBackward0", 120)):
        told = {"Sequence number": number, "Fwd thread id": 1}
        recording.op(NODE + name, start, start + 10, **told)
        recording.op(name, start + 1, start + 9, **told)
    assert removed_us(tmp_path, recording, "aten::bmm") == [(0, 30), (110, 130)]
