"""waiting-loop: loops that wait in each pass, and those whose passes stay."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.host.host_sync import host_sync
from foretrace.diagnose.rules.host.waiting_loop import waiting_loop
from tests.builders import Recording
from tests.diagnose.loops import findings, item, launches, loop


def passes(recording: Recording, at: float, first: str) -> None:
    """20 passes of 50 µs: a kernel, a wait of 30 µs for it, another kernel; then 50 launches of 10 µs."""
    for number in range(20):
        start = at + number * 50
        for name, begin, dur in ((first, start, 28), ("aten::sum", start + 40, 1)):
            recording.op(name, begin, begin + 10, **{"Input Dims": [[100, 16]], "Input type": ["float"]})
            few = {"blocks per SM": 0.01, "warps per SM": 0.1}
            recording.launch(begin + 8, name, begin + 10, begin + 10 + dur, call=1.5, **few)
        item(recording, start + 10, start + 40)
    launches(recording, at + 1_000, 50)


def test_a_loop_over_pieces_is_done_at_once(tmp_path: Path) -> None:
    """One pass of two kernels and a launch in the place of the wait stays of twenty: 30 µs before the 500."""
    trace = loop(tmp_path, 1_500, lambda recording, at: passes(recording, at, "aten::eq"))
    (found,) = findings(waiting_loop, trace, step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 530, rel=0.05)
    assert found.predicted.speedup.low < 1_500 / 1_100  # one launch of 10 µs for each wait
    assert "loops that wait in each pass done for all at once" in found.predicted.basis


def test_a_loop_that_goes_on_with_what_it_made_keeps_its_passes(tmp_path: Path) -> None:
    """Nothing is picked and all passes have the same shapes: only the waits go, 20 µs each."""
    trace = loop(tmp_path, 1_500, lambda recording, at: passes(recording, at, "aten::mul"))
    assert findings(waiting_loop, trace, step_us=1_500) == []
    (found,) = findings(host_sync, trace, step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 1_100, rel=0.05)


def test_a_loop_with_products_keeps_its_passes(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        for number in range(20):
            recording.op("aten::select", at + number * 50, at + number * 50 + 1)
        passes(recording, at, "aten::mm")

    trace = loop(tmp_path, 1_500, body)
    assert findings(waiting_loop, trace, step_us=1_500) == []
    (found,) = findings(host_sync, trace, step_us=1_500)
    assert found.predicted is not None
    assert found.predicted.speedup.point == pytest.approx(1_500 / 1_100, rel=0.05)


@pytest.mark.slow
def test_a_wait_in_a_loop_is_found_once(tmp_path: Path) -> None:
    """The loop's rule claims the waits: host-sync, which runs after it, has none left."""
    trace = loop(tmp_path, 1_500, lambda recording, at: passes(recording, at, "aten::eq"))
    found = diagnose(Case(trace, step_ns=1_500_000), (waiting_loop, host_sync))
    assert [finding.rule for finding in found.findings] == ["waiting-loop"]
    assert found.checked == (), "host-sync is explained, not free of an issue"


def experts(recording: Recording, at: float, stacked: int) -> None:
    """Two layers of eight experts: nonzero with a wait of 20 µs, rows, a product with a slice, index_add_; 100 launches."""
    few = {"blocks per SM": 0.01, "warps per SM": 0.1}
    for number in range(16):
        start = at + number * 50 + (100 if number >= 8 else 0)
        recording.op("aten::nonzero", start, start + 20, **{"Input Dims": [[64]], "Input type": ["float"]})
        recording.launch(start + 2, "nonzero", start + 4, start + 18, call=1.5, **few)
        recording.runtime("cudaStreamSynchronize", start + 5, start + 20)
        recording.op("aten::select", start + 20, start + 22, **{"Input Dims": [[stacked, 16, 32], [], []]})
        for name, begin, dims in (
            ("index", start + 22, [[64, 16], [4]]),
            ("mm", start + 31, [[4, 16], [16, 32]]),
            ("index_add_", start + 40, [[64, 32], [], [4], [4, 32], []]),
        ):
            recording.op(
                f"aten::{name}",
                begin,
                begin + 9,
                **{"Input Dims": dims, "Input type": ["float"] * len(dims)},
            )
            recording.launch(begin + 7, name, begin + 9, begin + 10, call=1.5, **few)
    launches(recording, at + 400, 10)
    launches(recording, at + 900, 90)


@pytest.mark.slow
@pytest.mark.parametrize(("stacked", "left"), [(8, 2 * (10 + 30)), (5, 16 * (10 + 30))])
def test_experts_whose_weights_lie_together_are_a_batched_product(
    tmp_path: Path, stacked: int, left: float
) -> None:
    """Of 800 µs of experts one pass a layer stays, with a launch of 10 µs for the wait; else each, with as much."""
    trace = loop(tmp_path, 1_800, lambda recording, at: experts(recording, at, stacked))
    (found,) = findings(waiting_loop if stacked == 8 else host_sync, trace, step_us=1_800)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"  # the values decide how many rows there are
    assert found.predicted.speedup.point == pytest.approx(1_800 / (1_000 + left), rel=0.05)
    assert ("batched products" in found.predicted.basis) == (stacked == 8)
    assert found.predicted.speedup.low <= 1.0
