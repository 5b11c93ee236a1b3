"""layout-conversions: planar tensors that cost conversions, or slow depthwise kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.rules.copies.layout_conversions import layout_conversions
from tests.builders import Recording
from tests.diagnose.kernels import ADD, CAST, H200, Op, device_bound
from tests.diagnose.loops import findings, loop

CONVERTS = "void cudnn::ops::nchwToNhwcKernel<__half, __half, float, false, true>"
DEPTHWISE = "void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, c10::BFloat16, int>"


def op(kernel: str, dur: float) -> Op:
    return Op("aten::cudnn_convolution", kernel, dur, [[64, 8, 8, 8]], ["c10::BFloat16"])


def test_conversions_are_worth_their_time(tmp_path: Path) -> None:
    (found,) = findings(
        layout_conversions, device_bound(tmp_path, [op(CONVERTS, 300), op(ADD, 700)]), step_us=1000
    )
    assert "1 conversions" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(700, rel=0.02)


def test_copies_of_permuted_tensors_go_with_the_conversions(tmp_path: Path) -> None:
    """Layer norm over channels copies what was permuted from a planar tensor; in channels-last order it is there."""
    shape, planar = [64, 32, 32, 96], [98304, 32, 1, 1024]
    copy = Op(
        "aten::copy_", CAST, 100, [shape, shape, []], ["float", "float", "Scalar"], ("aten::layer_norm",),
        told={"Input Strides": [[98304, 3072, 96, 1], planar, []]},
    )  # fmt: skip
    trace = device_bound(tmp_path, [op(CONVERTS, 300), copy, op(ADD, 600)])
    (found,) = findings(layout_conversions, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(600, rel=0.02)


def test_convolutions_of_one_dimension_have_no_other_layout(tmp_path: Path) -> None:
    forward = Op(
        "aten::cudnn_convolution", CONVERTS, 300, [[8, 64, 1, 999]], ["c10::Half"], ("aten::conv1d",)
    )
    backward = Op(
        "aten::convolution_backward", CONVERTS, 300, [[8, 64, 999], [8, 64, 999]], ["c10::Half"] * 2
    )
    assert findings(layout_conversions, device_bound(tmp_path, [forward, backward]), step_us=600) == []


def test_nothing_is_promised_around_norms_for_planar_tensors(tmp_path: Path) -> None:
    norm = Op("aten::native_group_norm", ADD, 100)
    (found,) = findings(
        layout_conversions, device_bound(tmp_path, [op(CONVERTS, 300), norm, op(ADD, 600)]), step_us=1000
    )
    assert found.predicted
    assert found.predicted.verdict == "uncertain"


@pytest.mark.parametrize(("dtype", "share"), [("float", 0.2), ("c10::BFloat16", 0.1)])
def test_around_group_norm_torch_copies_into_planar_order_and_back(
    tmp_path: Path, dtype: str, share: float
) -> None:
    """Each copy reads and writes 64 Mi elements, at a fifth of 4.8 TB/s in fp32."""
    norm = Op("aten::native_group_norm", ADD, 500, [[16, 256, 128, 128], [256], [256]], [dtype] * 3)
    trace = device_bound(tmp_path, [op(CONVERTS, 300), norm, op(ADD, 4_000)])
    (found,) = findings(layout_conversions, trace, step_us=4_800)
    item_bytes = 4 if dtype == "float" else 2
    copy_us = 2 * item_bytes * 2**26 / (share * 4.8e12) * 1e6
    assert found.predicted
    assert found.predicted.verdict == "no gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(4_500 + 2 * copy_us, rel=0.02)
    assert found.predicted.after_ns.low / 1e3 <= 4_500 + copy_us


def test_depthwise_kernels_take_a_third_in_channels_last_order(tmp_path: Path) -> None:
    (found,) = findings(
        layout_conversions, device_bound(tmp_path, [op(DEPTHWISE, 600), op(ADD, 400)]), step_us=1000
    )
    assert "depthwise" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400 + 0.35 * 600, rel=0.02)


@pytest.mark.parametrize(
    ("shape", "trained", "rate"),
    [
        ([64, 256, 64, 64], True, 0.35 / 1.6),
        ([64, 256, 64, 64], False, 0.55),
        ([64, 256, 4, 16, 64], True, 0.055),
        ([64, 256, 4, 16, 64], False, 0.55),
    ],
)
def test_batch_norm_in_channels_last_order(
    tmp_path: Path, shape: list[int], trained: bool, rate: float
) -> None:
    """2 x 134 MB: with statistics to collect in two kernels at 0.35 of the bandwidth, else in one at 0.55; volumes, which
    torch has no kernel of its own for, at 0.055, which is slower than the 800 µs of now."""
    kernels = [("transform_input", 400.0), ("collect_statistics", 400.0)][: 2 if trained else 1]
    recording = Recording(deviceProperties=[H200])
    length = 400 + sum(dur for _, dur in kernels)
    for number in range(4):
        at, begin = 100.0 * number, 100 + length * number
        recording.step(number, at, at + 100)
        recording.op("aten::cudnn_convolution", at, at + 20)
        recording.launch(at + 2, CONVERTS, begin, begin + 400, call=4)
        recording.op("aten::native_batch_norm", at + 30, at + 90, **{"Input Dims": [shape, [256], [256], [256], [256], [], [], []],
                     "Input type": ["c10::Half", *["float"] * 4, "Scalar", "Scalar", "Scalar"]})  # fmt: skip
        begin += 400
        for place, (name, dur) in enumerate(kernels):
            kernel = f"void at::native::batch_norm_{name}_kernel<c10::Half, c10::Half, float, true, int>"
            recording.launch(at + 40 + 20 * place, kernel, begin, begin + dur, call=4)
            begin += dur
    (found,) = findings(layout_conversions, recording.open(tmp_path), step_us=length)
    assert found.predicted
    moved_us = 2 * 2 * 64 * 256 * 64 * 64 / (4.8e12 * rate) * 1e6
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(moved_us, rel=0.05)


@pytest.mark.parametrize("kernel", [ADD, DEPTHWISE.replace("c10::BFloat16", "float")])
def test_nothing_to_convert_no_finding(tmp_path: Path, kernel: str) -> None:
    assert findings(layout_conversions, device_bound(tmp_path, [op(kernel, 500)]), step_us=500) == []


def test_on_the_host_launches_of_conversions_go_with_what_leads_to_them(tmp_path: Path) -> None:
    """A convolution of 100 µs, 40 of which are for the second of its three launches."""

    def body(recording: Recording, at: float) -> None:
        recording.op("aten::cudnn_convolution", at, at + 100, **{"Input Dims": [[64, 8, 8, 8]]})
        for start, kernel in ((30, ADD), (70, CONVERTS), (90, ADD)):
            recording.launch(at + start - 10, kernel, at + start + 1, at + start + 6, call=10)

    (found,) = findings(layout_conversions, loop(tmp_path, 100, body), step_us=100)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(60, rel=0.05)


RESIZES = (
    "void at::native::(anonymous namespace)::upsample_bilinear2d_backward_out_frame<c10::BFloat16, float>"
)


def test_the_gradient_of_resizing_is_faster_in_channels_last_order(tmp_path: Path) -> None:
    """300 µs of conversions go, and of 400 µs of resizing 0.45 stay."""
    trace = device_bound(tmp_path, [op(CONVERTS, 300), op(RESIZES, 400), op(ADD, 300)])
    (found,) = findings(layout_conversions, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(300 + 0.45 * 400, rel=0.02)


@pytest.mark.parametrize(("shape", "order"), [([8, 8, 8, 8], "channels_last"), ([8] * 5, "channels_last_3d")])
def test_the_code_names_the_order_of_the_programs_tensors(
    tmp_path: Path, shape: list[int], order: str
) -> None:
    converts = Op("aten::cudnn_convolution", CONVERTS, 300, [shape], ["c10::BFloat16"])
    (found,) = findings(layout_conversions, device_bound(tmp_path, [converts, op(ADD, 700)]), step_us=1000)
    assert f"memory_format=torch.{order})" in found.fix.code


def test_without_conversions_resizing_stays_as_it_is(tmp_path: Path) -> None:
    """Depthwise kernels are the finding: nothing tells that what is resized lies in planes."""
    trace = device_bound(tmp_path, [op(DEPTHWISE, 300), op(RESIZES, 400), op(ADD, 300)])
    (found,) = findings(layout_conversions, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(700 + 0.35 * 300, rel=0.02)
