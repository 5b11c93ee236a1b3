"""layout-conversions: planar tensors that cost conversions, or slow depthwise kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnose.kernels import ADD, Op, device_bound

from foretrace.diagnose.layout_conversions import layout_conversions
from tests.diagnose.loops import findings

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


def test_depthwise_kernels_take_a_third_in_channels_last_order(tmp_path: Path) -> None:
    (found,) = findings(
        layout_conversions, device_bound(tmp_path, [op(DEPTHWISE, 600), op(ADD, 400)]), step_us=1000
    )
    assert "depthwise" in found.says
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(400 + 0.35 * 600, rel=0.02)


@pytest.mark.parametrize("kernel", [ADD, DEPTHWISE.replace("c10::BFloat16", "float")])
def test_nothing_to_convert_no_finding(tmp_path: Path, kernel: str) -> None:
    assert findings(layout_conversions, device_bound(tmp_path, [op(kernel, 500)]), step_us=500) == []
