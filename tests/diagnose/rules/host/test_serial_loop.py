"""serial-loop: loops within a step that are better done for all pieces at once than as CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.host.launch_bound import launch_bound
from foretrace.diagnose.rules.host.serial_loop import serial_loop
from tests.builders import Recording
from tests.diagnose.loops import findings, launches, loop


def pieces(
    recording: Recording,
    at: float,
    names: tuple[tuple[str, list[list[int]]], ...],
    made: list[int],
    count: int = 16,
) -> None:
    """Passes of operators of 10 µs each, put together by one more."""
    together = [made] * count if count <= 30 else []  # as torch records them
    ops: list[tuple[str, list[Any]]] = [*(names * count), ("aten::stack", [together, []])]
    for number, (name, dims) in enumerate(ops):
        start = at + number * 10
        recording.op(name, start, start + 10, **{"Input Dims": dims, "Input type": ["float"] * len(dims)})
        recording.launch(
            start + 8, name, start + 10, start + 11, call=1.5, grid=[132, 1, 1], block=[256, 1, 1]
        )


FRAMES = (("aten::relu", [[4, 512]]), ("aten::linear", [[4, 512], [100, 512], [100]]))
CELLS = (("aten::linear", [[4, 100], [512, 100], [512]]), *FRAMES)


def test_a_loop_over_frames_is_done_at_once(tmp_path: Path) -> None:
    """16 times 20 µs and the stack of 10 µs: one pass and the stack, at worst a graph of 33 kernels."""
    trace = loop(tmp_path, 330, lambda recording, at: pieces(recording, at, FRAMES, [4, 100]))
    (found,) = findings(serial_loop, trace, step_us=330)
    assert "the same 2 operators 16 times" in found.says
    assert found.predicted is not None
    assert found.predicted.verdict == "gain"
    assert found.predicted.speedup.point == pytest.approx(330 / 30, rel=0.05)
    assert found.predicted.speedup.low < 330 / (33 * 1.15)


def test_a_loop_that_is_better_done_at_once_is_found_once(tmp_path: Path) -> None:
    """The loop's rule claims the launches: launch-bound, which runs after it, has none left."""
    trace = loop(tmp_path, 330, lambda recording, at: pieces(recording, at, FRAMES, [4, 100]))
    found = diagnose(Case(trace, step_ns=330_000), (serial_loop, launch_bound))
    assert [finding.rule for finding in found.findings] == ["serial-loop"]
    assert found.checked == (), "launch-bound is explained, not free of an issue"


@pytest.mark.slow
def test_of_many_frames_the_last_operator_tells_the_shape(tmp_path: Path) -> None:
    trace = loop(tmp_path, 810, lambda recording, at: pieces(recording, at, FRAMES, [4, 100], 40))
    (found,) = findings(serial_loop, trace, step_us=810)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(810 / 30, rel=0.05)


def test_where_no_graph_can_be_made_a_loop_is_done_at_once_without_a_promise(tmp_path: Path) -> None:
    """A wait for the size of a result behind the loop, and two more launches: 30 µs and 30 stay of 360."""

    def body(recording: Recording, at: float) -> None:
        pieces(recording, at, FRAMES, [4, 100])
        recording.op("aten::nonzero", at + 330, at + 340).runtime("cudaStreamSynchronize", at + 332, at + 338)
        launches(recording, at + 340, 2)

    (found,) = findings(serial_loop, loop(tmp_path, 360, body), step_us=360)
    assert "how large a result is" in found.says
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.speedup.point == pytest.approx(360 / 60, rel=0.1)


@pytest.mark.slow
def test_a_loop_whose_passes_need_each_other_is_a_graph(tmp_path: Path) -> None:
    """What a pass makes has the shape of what it begins with: 49 kernels in one graph."""
    trace = loop(tmp_path, 490, lambda recording, at: pieces(recording, at, CELLS, [4, 100]))
    assert findings(serial_loop, trace, step_us=490) == []
    (found,) = findings(launch_bound, trace, step_us=490)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(490 / (49 * 1.15), rel=0.05)


@pytest.mark.parametrize(
    ("stacked", "picks", "found"), [(8, "index", True), (8, "relu", False), (5, "index", False)]
)
def test_experts_whose_weights_lie_together_are_done_at_once(
    tmp_path: Path, stacked: int, picks: str, found: bool
) -> None:
    """Eight times three operators of 10 µs, one pass of which stays; then 26. Memory is allocated: there is no graph.

    Not where no rows are picked, as in layers that follow each other, or where the weights have other than eight slices.
    """

    def body(recording: Recording, at: float) -> None:
        few = {"blocks per SM": 0.01, "warps per SM": 0.1}
        called = (
            (picks, [[64, 16], [4]]),
            ("mm", [[4, 16], [16, 32]]),
            ("index_add_", [[64, 32], [], [4], [4, 32]]),
        )
        for number in range(8):
            for place, (name, dims) in enumerate(called):
                start = at + number * 30 + place * 10
                types = ["float"] * len(dims)
                recording.op(f"aten::{name}", start, start + 10, **{"Input Dims": dims, "Input type": types})
                recording.launch(start + 8, name, start + 10, start + 11, call=1.5, **few)
            taken = {"Input Dims": [[stacked, 16, 32], [], []]}
            recording.op("aten::select", at + number * 30 + 11, at + number * 30 + 12, **taken)
        recording.runtime("cudaMalloc", at + 240, at + 242)
        launches(recording, at + 242, 26)

    trace = loop(tmp_path, 502, body)
    if not found:
        assert findings(serial_loop, trace, step_us=502) == []
        (made,) = findings(launch_bound, trace, step_us=502)
        assert made.predicted is None
    else:
        (made,) = findings(serial_loop, trace, step_us=502)
        assert made.predicted is not None
        assert made.predicted.speedup.point == pytest.approx(502 / (502 - 7 * 30), rel=0.05)
        assert made.predicted.verdict == "uncertain"
