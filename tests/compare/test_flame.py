"""The differential flame graph: both sides in one tree, and nothing in a name can act in the file."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from foretrace.commands import main
from foretrace.compare.flame import Node, frames, tree
from foretrace.compare.traces import compare
from foretrace.present.export.difference_flame import colour, to_html, to_svg
from tests.builders import Recording
from tests.compare.recorded import GEMM, steps


def test_what_was_removed_keeps_its_width() -> None:
    root = Node("step", 100, 60)
    root.add(["works", "old"], 80, 0)
    root.add(["works", "new"], 0, 30)
    laid = {frame.name: frame for frame in frames(root)}
    assert laid["step"].width == 1
    assert laid["old"].width == pytest.approx(80 / 110)  # old and new stand side by side
    assert laid["old"].change == -1
    assert laid["new"].change == 1
    assert laid["new"].start == pytest.approx(80 / 110)
    assert (laid["works"].before_ns, laid["works"].after_ns) == (80, 30)


def test_both_steps_are_in_the_tree(tmp_path: Path) -> None:
    found = compare(
        steps((1_000.0,) * 3).open(tmp_path, "a.json"), steps((400.0,) * 3).open(tmp_path, "b.json")
    )
    root = tree(found)
    assert (root.before_ns, root.after_ns) == (found.steps.before_ns, found.steps.after_ns)
    product = root.children["GPU works"].children["(no module)"].children["aten::mm"]
    assert [product.before_ns, product.after_ns] == pytest.approx([1e6, 4e5])
    assert list(product.children) == [GEMM]
    waits = root.children["GPU waits"]
    assert waits.after_ns - waits.before_ns == pytest.approx(6e5)


def test_colours_tell_more_from_less() -> None:
    red, blue, same = colour(1.0), colour(-1.0), colour(0.0)
    assert red[1:3] > red[3:5]
    assert blue[5:7] > blue[1:3]
    assert len({same, red, blue}) == 3


def test_names_stay_names(tmp_path: Path) -> None:
    """A kernel that is called like markup is text in the file, which no script may run in."""
    made = Recording()
    for number in range(2):
        at = 1_000.0 * number
        made.step(number, at, at + 900)
        made.op("<script>alert(1)</script>", at + 5, at + 30, **{"External id": number + 1})
        made.launch(at + 10, '"><img src=x onerror=alert(2)>', at + 40, at + 400)
    trace = made.open(tmp_path, "a.json")
    found = compare(trace, trace)
    svg = to_svg(found)
    names = {element.tag.rpartition("}")[2] for element in ElementTree.fromstring(svg).iter()}
    assert names <= {"svg", "title", "style", "rect", "text", "g"}
    assert "default-src 'none'" in to_html(found)


@pytest.mark.slow
def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(steps((gemm,) * 3).write(tmp_path, f"{gemm:.0f}.json")) for gemm in (1_000.0, 400.0)]
    for name in ("out.svg", "out.html"):
        assert main(["compare", "--no-cache", *paths, "--flame", str(tmp_path / name)]) == 0
        assert "aten::mm" in (tmp_path / name).read_text()
    assert main(["compare", "--no-cache", *paths, "--flame", str(tmp_path / "out.svg")]) == 2
    assert main(["compare", "--no-cache", *paths, "--flame", str(tmp_path / "out.png")]) == 2
    assert "end the name in .svg or .html" in capsys.readouterr().err
