"""The line within a function, found in source that is written here, so that the answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Place
from foretrace.diagnose.source_lines import exact_line
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
"""


@pytest.mark.parametrize(
    ("first", "function", "operators", "line"),
    [
        (4, "attend", {"aten::softmax": 6}, 7),
        (4, "attend", {"aten::masked_fill": 6}, 8),
        (4, "attend", {"aten::div": 6}, 6),
        (4, "attend", {"aten::softmax": 6, "aten::matmul": 2}, 7),
        (13, "log", {"aten::item": 3}, 22),  # not the lambda's, and not the first line of the expression
        (13, "log", {"aten::to": 3}, 21),
        (13, "log", {"aten::is_nonzero": 3}, 15),
        (17, "<lambda>", {"aten::item": 1}, 17),
    ],
)
def test_the_line_that_calls_the_operator(
    tmp_path: Path, first: int, function: str, operators: dict[str, int], line: int
) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    found = exact_line(Place("model.py", first, function), operators, (tmp_path / "elsewhere", tmp_path))
    assert found == Place("model.py", line, function)


@pytest.mark.parametrize(
    ("place", "operators"),
    [
        (Place("model.py", 4, "attend"), {"aten::cumsum": 6}),  # nothing there is called so
        (Place("model.py", 5, "attend"), {"aten::softmax": 6}),  # the file was edited since
        (Place("model.py", 4, "forward"), {"aten::softmax": 6}),
        (Place("gone.py", 4, "attend"), {"aten::softmax": 6}),
        (Place("broken.py", 4, "attend"), {"aten::softmax": 6}),
        (Place(None, None, "aten::softmax"), {"aten::softmax": 6}),
    ],
)
def test_what_the_source_cannot_tell_stays_as_recorded(
    tmp_path: Path, place: Place, operators: dict[str, int]
) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def attend(:\n\x00")
    assert exact_line(place, operators, (tmp_path,)) == place


def test_a_finding_names_the_line_of_a_recorded_program(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    recording = Recording().step(1, 0, 100).python("model.py(4): attend", 5, 60)
    recording.op("aten::softmax", 10, 30).op("aten::_softmax", 12, 28).launch(20, "softmax_kernel", 30, 40)
    trace = recording.open(tmp_path)
    inner = trace.spans.filter(trace.spans["name"].cast(str) == "aten::_softmax")["id"].to_list()
    assert Case(trace).places(inner) == (Place("model.py", 7, "attend"),)
