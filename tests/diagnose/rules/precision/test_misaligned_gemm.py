"""Products with sizes that tensor cores cannot load 16 bytes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.precision.misaligned_gemm import misaligned_gemm
from foretrace.errors import MissingDataError
from foretrace.hardware import match
from foretrace.predict.costs.gemm import PEAK_SHARE, Size, time_ns
from tests.diagnose.kernels import H200, Op, device_bound
from tests.diagnose.loops import findings

ALIGNED = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
PIECEWISE = "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_tn_align1>"
BF16 = ["c10::BFloat16", "c10::BFloat16"]


def product(kernel: str, dur: float, m: int, n: int, k: int, dtypes: list[str] | None = None) -> Op:
    return Op("aten::mm", kernel, dur, [[m, k], [k, n]], dtypes or BF16)


def test_a_padded_product_runs_at_the_rate_of_the_others(tmp_path: Path) -> None:
    h200 = match(str(H200["name"]))
    assert h200
    ideal = time_ns(h200, "bf16", Size(1, 8192, 8192, 8192), 2, share=1.0) or 0
    other = product(ALIGNED, ideal / 1e3 / 0.7, 8192, 8192, 8192)  # aligned ones reach 70 % of the peak
    trace = device_bound(tmp_path, [product(PIECEWISE, 4000, 8192, 50257, 768), other])
    (found,) = findings(misaligned_gemm, trace, step_us=4000 + other.dur)
    padded = (time_ns(h200, "bf16", Size(1, 8192, 50304, 768), 2, share=0.7) or 0) / 1e3
    before, after = (1 + 0.3 * (share - 0.5) for share in (other.dur / (4000 + other.dur), 1.0))  # see heat
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(
        other.dur * after / max(before, 1.0) + padded * after, rel=0.02
    )
    assert found.evidence["sizes"] == [50257]
    assert "50304" in found.fix.code


def test_tf32_loads_four_at_once(tmp_path: Path) -> None:
    kernel = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_nn_align1>"
    (found,) = findings(
        misaligned_gemm, device_bound(tmp_path, [product(kernel, 8000, 8192, 4003, 4096, ["float", "float"])])
    )
    h200 = match(str(H200["name"]))
    assert h200
    padded = (time_ns(h200, "tf32", Size(1, 8192, 4032, 4096), 4, share=PEAK_SHARE) or 0) / 1e3
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(padded, rel=0.02)
    assert found.evidence["sizes"] == [4003]


@pytest.mark.parametrize(
    "op",
    [
        product(PIECEWISE, 4000, 8192, 50304, 768),  # aligned
        product(PIECEWISE, 4000, 3, 8192, 8192),  # rows of a small batch
        product(PIECEWISE, 4000, 8192, 50257, 768, ["float", "float"]),
        product(
            PIECEWISE.replace("bf16_s16816gemm_bf16", "s1688gemm"), 4000, 8192, 4004, 768, ["float", "float"]
        ),
        product(ALIGNED, 4000, 8193, 8192, 768),  # a kernel that takes nothing misaligned
    ],
)
def test_no_fault(tmp_path: Path, op: Op) -> None:
    assert findings(misaligned_gemm, device_bound(tmp_path, [op]), step_us=4000) == []


def test_a_product_as_fast_as_a_padded_one_is_not_worth_a_word(tmp_path: Path) -> None:
    assert (
        findings(misaligned_gemm, device_bound(tmp_path, [product(PIECEWISE, 900, 8192, 50257, 768)])) == []
    )


def test_without_shapes_it_could_not_look(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="record_shapes"):
        list(misaligned_gemm(Case(device_bound(tmp_path, [Op("aten::mm", PIECEWISE, 4000)]))))
