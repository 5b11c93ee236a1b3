"""Casts of the program's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.precision.explicit_casts import explicit_casts
from foretrace.diagnose.rules.precision.fp32_island import fp32_island
from tests.diagnose.casts import BF16, FP32, cast, work
from tests.diagnose.kernels import ADD, CAST, Op, device_bound
from tests.diagnose.loops import findings


def test_casts_for_one_operator_are_found_and_not_promised(tmp_path: Path) -> None:
    """A norm in fp32 between bf16 layers: 200 of 1000 µs are casts, but fp32 may be needed."""
    trace = device_bound(tmp_path, [cast(BF16, FP32), work(), cast(FP32, BF16)])
    (found,) = findings(explicit_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)
    assert found.predicted.speedup.low <= 1


def test_the_scaling_of_quantised_weights_goes_with_their_cast(tmp_path: Path) -> None:
    scale = Op("aten::mul", ADD, 100, [[1 << 20], [1]], [BF16, BF16])
    trace = device_bound(tmp_path, [cast("signed char", BF16), scale, work()])
    (found,) = findings(explicit_casts, trace, step_us=1000)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(800, rel=0.02)


def test_on_the_host_the_scaling_goes_with_the_cast(tmp_path: Path) -> None:
    """Three operators of 20 µs on a host that the step follows: without cast and scaling one is left."""
    scale = Op("aten::mul", ADD, 5, [[1 << 20], [1]], [BF16, BF16])
    quick = Op("aten::copy_", CAST, 5, [[1024], [1024], []], [BF16, "signed char", "Scalar"], ("aten::to",))
    (found,) = findings(explicit_casts, device_bound(tmp_path, [quick, scale, work(5)]), step_us=60)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(20, rel=0.1)


def test_casts_around_a_layer_in_fp32_are_found_once(tmp_path: Path) -> None:
    """Two casts of 100 µs of 1,000, and a product in fp32 between them: fp32-island claims the casts."""
    product = Op("aten::mm", "sgemm", 300, [[1024, 1024], [1024, 1024]], [FP32, FP32])
    trace = device_bound(tmp_path, [cast(BF16, FP32), product, cast(FP32, BF16), work(500)])
    assert len(findings(explicit_casts, trace, step_us=1000)) == 1
    both = diagnose(Case(trace, step_ns=1e6), (fp32_island, explicit_casts))
    assert [finding.rule for finding in both.findings] == ["fp32-island"]
