"""What activation checkpointing costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.device.recompute import recompute
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200, findings

NODE = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
STEPS, LENGTH = 4, 100.0


def training(folder: Path, *, checkpoint: bool, scale: float = 1, again: str = "aten::linear") -> Trace:
    """Forward 300 µs, the same again inside the backward if checkpointed, backward 600 µs; the host runs ahead."""
    recording = Recording(deviceProperties=[H200])
    ready = 0.0

    def operator(name: str, start: float, dur: float, sequence: int, forward_thread: int) -> None:
        nonlocal ready
        told = {"Sequence number": sequence, "Fwd thread id": forward_thread}
        recording.op(name, start, start + 10, **told)
        begin = max(ready, start + 8)
        recording.launch(start + 2, f"{name}_kernel", begin, begin + dur * scale, call=4)
        ready = begin + dur * scale

    for number in range(STEPS):
        at = number * LENGTH
        recording.step(number, at, at + LENGTH)
        operator("aten::linear", at, 300, 10 * number + 1, 0)
        recording.op(NODE, at + 20, at + 90, **{"Sequence number": 10 * number + 1, "Fwd thread id": 1})
        if checkpoint:
            operator(again, at + 30, 300, 10 * number + 2, 0)
        operator("aten::mm", at + 60, 600, 10 * number + 1, 1)
    return recording.open(folder)


def test_work_done_twice_is_worth_its_time(tmp_path: Path) -> None:
    (found,) = findings(recompute, training(tmp_path, checkpoint=True), step_us=1200)
    assert found.evidence["recomputed_pct"] == pytest.approx(25, rel=0.01)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(900, rel=0.02)
    assert "memory" in found.why
    assert "fit" in found.unless


def test_a_plain_backward_is_no_fault(tmp_path: Path) -> None:
    assert findings(recompute, training(tmp_path, checkpoint=False), step_us=900) == []


def test_a_backward_that_is_differentiated_computes_nothing_again(tmp_path: Path) -> None:
    """create_graph=True gives the backward's operators numbers of their own, but the forward pass called no such ones."""
    trace = training(tmp_path, checkpoint=True, again="aten::mm")
    assert findings(recompute, trace, step_us=1200) == []


def test_on_the_host_all_of_the_node_goes_that_comes_before_its_own_operators(tmp_path: Path) -> None:
    """The node begins at 20 µs and its own operator at 60: of 100 µs, 60 are left."""
    (found,) = findings(recompute, training(tmp_path, checkpoint=True, scale=0.01), step_us=100)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(60, rel=0.05)


def test_what_checkpoint_does_in_python_goes_with_it(tmp_path: Path) -> None:
    """Of 300 µs, 60 are of the node, 40 lead into checkpoint(), and 20 go for two tensors saved; 10 to 30 at the ends."""
    recording = Recording(deviceProperties=[H200])
    for number in range(STEPS):
        at = number * 300.0
        recording.step(number, at, at + 300)
        forward, backward = (
            {"Sequence number": 10 * number + 1, "Fwd thread id": thread} for thread in (0, 1)
        )
        again = {"Sequence number": 10 * number + 2, "Fwd thread id": 0}
        recording.op("aten::add", at, at + 40)
        recording.launch(at + 30, "add_kernel", at + 40, at + 41, call=10)
        recording.op("_NoopSaveInputs", at + 70, at + 80)
        recording.op("aten::linear", at + 80, at + 120, **forward)
        recording.launch(at + 116, "linear_kernel", at + 120, at + 121, call=4)
        recording.op(NODE, at + 140, at + 300, **backward)
        recording.op("aten::linear", at + 150, at + 200, **again)
        recording.launch(at + 196, "linear_kernel", at + 200, at + 201, call=4)
        recording.op("aten::mm", at + 200, at + 300, **backward)
        recording.launch(at + 290, "mm_kernel", at + 295, at + 296, call=4)
    (found,) = findings(recompute, recording.open(tmp_path), step_us=300)
    assert found.predicted
    after = found.predicted.after_ns
    assert after.point / 1e3 == pytest.approx(300 - 60 - 40 - 20, rel=0.02)
    assert after.low < 170e3
    assert after.high > 190e3
