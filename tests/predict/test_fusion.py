"""`fuse kernel:~PATTERN`: runs of kernels as one, by the model of unfused-elementwise or by their longest."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.fusion.unfused_elementwise import unfused_elementwise
from foretrace.errors import MissingDataError, UsageError
from foretrace.predict.builder import build
from foretrace.predict.calibrate import calibrate
from foretrace.predict.changes import Change, apply, parse
from foretrace.predict.prediction import predict
from foretrace.predict.steady import step_ns
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.kernels import ADD, STEPS, Op, device_bound
from tests.diagnose.loops import findings

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
COUNT = 1 << 26
MODELLED_US = 2 * 4 * COUNT / (4.8e12 * 0.8) * 1e6 + 1.2  # read once, written once, and a launch


def unary(dur: float = 140, count: int = COUNT, *, kernel: str = ADD) -> Op:
    return Op("aten::relu", kernel, dur, [[count]], ["float"])


def bare(dur: float = 140) -> Op:
    return Op("aten::relu", ADD, dur)


def matmul(dur: float = 500) -> Op:
    return Op("aten::mm", GEMM, dur, [[4096, 4096], [4096, 4096]], ["c10::BFloat16", "c10::BFloat16"])


def fused(trace: Trace, text: str = "fuse kernel:~elementwise") -> Change:
    return parse(text, trace, build(trace))


def after_us(trace: Trace) -> float:
    program = build(trace)
    return step_ns(apply(program, (fused(trace),))) / 1e3


def test_a_run_with_shapes_takes_what_it_moves(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [*[unary()] * 6, matmul()])
    change = fused(trace)
    assert len(change.edit.removed_tasks) == STEPS * 5
    assert after_us(trace) == pytest.approx(MODELLED_US + 500, rel=0.01)
    assert "6 kernels a step become 1" in change.says
    assert "by what their operators move and compute" in change.says


@pytest.mark.parametrize(("row", "after"), [(128, MODELLED_US), (4096, 800)])
def test_short_rows_are_normalised_several_at_once(tmp_path: Path, row: int, after: float) -> None:
    """torch's layer norm of short rows is far from the bandwidth, compiled code is not; of long ones it stays as it is."""
    shape, both = [COUNT // row, row], ["float", "float"]
    norm = Op(
        "aten::native_layer_norm", "void vectorized_layer_norm_kernel<float, float, false>", 800,
        [shape, [], [row], [row], []], ["float", "ScalarList", *both, "Scalar"],
    )  # fmt: skip
    trace = device_bound(tmp_path, [unary(), norm, matmul()])
    change = fused(trace, "fuse kernel:~elementwise|layer_norm")
    assert step_ns(apply(build(trace), (change,))) / 1e3 == pytest.approx(after + 500, rel=0.02)


def test_the_rule_and_the_verb_are_close(tmp_path: Path) -> None:
    """The compiler's kernels reach 78 % of the bandwidth, streaming kernels 80 %."""
    trace = device_bound(tmp_path, [*[unary()] * 6, matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=6 * 140 + 500)
    fitted = calibrate(trace, build(trace), step_ns=1_340_000)
    by_verb = predict(fitted, (parse("fuse kernel:~elementwise", trace, fitted.program),)).speedup
    assert found.predicted
    assert found.predicted.speedup.point == pytest.approx(by_verb.point, rel=0.02)


def test_a_run_without_shapes_takes_as_long_as_its_longest(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [bare(100), bare(170), bare(130), matmul()])
    assert after_us(trace) == pytest.approx(170 + 500, rel=0.01)
    assert "as long as the longest of their kernels" in fused(trace).says


def test_a_device_without_peaks_leaves_the_longest(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary(), unary(170), matmul()], device=None)
    assert after_us(trace) == pytest.approx(170 + 500, rel=0.01)


def test_other_sizes_and_products_have_no_model(tmp_path: Path) -> None:
    sizes = device_bound(tmp_path, [unary(), unary(70, COUNT // 2), matmul()])
    assert after_us(sizes) == pytest.approx(140 + 500, rel=0.01)
    products = device_bound(tmp_path, [unary(), matmul()])
    whole = parse("fuse kernel:~.", products, build(products))
    assert set(whole.edit.durations_ns.values()) == {500_000}


def test_what_lies_between_parts_a_run(tmp_path: Path) -> None:
    """Two runs of two about a product: each moves its operand in and out."""
    trace = device_bound(tmp_path, [unary(), unary(), matmul(), unary(), unary(), matmul()])
    assert len(fused(trace).edit.durations_ns) == 2 * STEPS
    assert after_us(trace) == pytest.approx(2 * MODELLED_US + 1_000, rel=0.01)


def test_runs_of_both_kinds_are_told_apart(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary(), unary(), matmul(), bare(), bare(), matmul()])
    assert f"{STEPS} by what their operators move and compute and {STEPS} as long as" in fused(trace).says


def test_a_fused_kernel_is_never_longer_than_its_run(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary(30), unary(30), matmul()])
    assert set(fused(trace).edit.durations_ns.values()) == {60_000}


def two_streams(folder: Path, *, wait: bool) -> Trace:
    recording = Recording()
    for number in range(2):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        for place in range(4):
            start = at + 100 * place
            stream = 7 if wait or place % 2 else 8
            recording.launch(start, "scale_kernel", start + 5, start + 15, stream=stream)
            if wait:
                recording.runtime("cudaStreamSynchronize", start + 6, start + 17)
    return recording.open(folder)


def test_kernels_of_different_streams_are_not_fused_together(tmp_path: Path) -> None:
    change = fused(two_streams(tmp_path, wait=False), "fuse kernel:scale_kernel")
    assert len(change.edit.durations_ns) == 4  # one a stream and step
    assert len(change.edit.removed_tasks) == 4


def test_kernels_that_the_host_waits_between_are_not_fused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="follow one another"):
        fused(two_streams(tmp_path, wait=True), "fuse kernel:scale_kernel")


def test_only_kernels_are_fused(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary(), unary()])
    for text in ("fuse op:aten::relu", "fuse", "fuse host", "fuse kernel:~(", "fuse elementwise"):
        with pytest.raises(UsageError):
            fused(trace, text)
    with pytest.raises(MissingDataError, match="no kernel of that name"):
        fused(trace, "fuse kernel:flash")


def test_only_what_lies_under_a_name_is_fused(tmp_path: Path) -> None:
    recording = Recording()
    for number in range(2):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        recording.annotation("Block", at, at + 300)
        for place in range(6):
            start = at + 100 * place
            recording.op("aten::relu", start, start + 50)
            recording.launch(start + 10, "scale_kernel", start + 15, start + 25)
    change = fused(recording.open(tmp_path), "fuse kernel:scale_kernel under:Block")
    assert len(change.edit.removed_tasks) == 2 * 2  # three of six in each of two steps become one
