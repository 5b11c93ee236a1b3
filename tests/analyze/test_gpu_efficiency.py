"""GPU efficiency: shares with known answers, MFU by hand, the plugin's goldens and the corpus's truths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

TENSOR = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
PLAIN = "ampere_sgemm_128x64_nn"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(x)"
CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(x)>"
H200 = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "numSms": 132}
# NVIDIA H200 datasheet: 989.5 TFLOP/s dense bf16 (1,979 with sparsity).
BF16_PEAK = 1979e12 / 2


def mm(
    recording: Recording,
    at: float,
    size: int,
    kernel: str,
    start: float,
    dur: float,
    *,
    kind: Any = "c10::BFloat16",
    **args: Any,
) -> None:
    dims = {
        "Input Dims": [[size, size], [size, size]],
        "Input type": [kind, kind],
        "Input Strides": [[size, 1], [size, 1]],
    }
    recording.op("aten::mm", at, at + 8, **dims, **args)
    recording.launch(at + 2, kernel, start, start + dur)


def run(recording: Recording, folder: Path) -> dict[str, Any]:
    return dict(analyze.run(recording.open(folder), "gpu-efficiency").values)


def test_tensor_cores_by_kernel_time_and_by_operator(tmp_path: Path) -> None:
    recording = Recording()
    mm(recording, 0, 64, TENSOR, 100, 30)
    mm(recording, 10, 64, PLAIN, 130, 10)
    recording.op("aten::linear", 20, 40)
    recording.op("aten::addmm", 22, 38)
    recording.launch(24, "my_own_kernel", 140, 160)
    recording.op("aten::add", 50, 60)
    recording.launch(52, ADD, 160, 200)
    values = run(recording, tmp_path)
    assert values["tensor_core_pct"] == pytest.approx(30)
    assert values["no_tensor_core_pct"] == pytest.approx(50)
    assert values["unknown_tensor_core_pct"] == pytest.approx(20)
    # By name only two kernels multiply; by operator the unknown one does as well.
    assert values["tensor_core_gemm_pct"] == pytest.approx(75)
    assert values["tensor_core_eligible_pct"] == pytest.approx(50)


def test_goodput_leaves_out_casts_copies_and_recomputation(tmp_path: Path) -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.launch(2, TENSOR, 100, 150)
    recording.op("aten::_to_copy", 10, 20)
    recording.launch(12, CAST, 150, 160)
    recording.op("aten::copy_", 20, 30)
    recording.launch(22, "Memcpy DtoD (Device -> Device)", 160, 165, category="gpu_memcpy")
    recording.op("aten::copy_", 30, 40)
    recording.launch(32, "Memcpy HtoD (Pinned -> Device)", 165, 175, category="gpu_memcpy")
    recording.op(
        "autograd::engine::evaluate_function: MmBackward0",
        50,
        90,
        **{"Sequence number": 1, "Fwd thread id": 1},
    )
    recording.op("aten::linear", 60, 80, **{"Sequence number": 4, "Fwd thread id": 0})
    recording.launch(62, TENSOR, 175, 195)
    recording.launch(70, CAST, 195, 200)
    values = run(recording, tmp_path)
    assert values["recompute_pct"] == pytest.approx(25)
    assert values["moving_pct"] == pytest.approx(15)
    assert values["goodput_pct"] == pytest.approx(60)


def test_mfu_by_hand(tmp_path: Path) -> None:
    """Two steps of one 4096-cubed bf16 multiply; each lasts 400 us between completions."""
    recording = Recording(deviceProperties=[H200])
    for number in (1, 2, 3):
        begin = 1000 + 400 * number
        recording.step(number, begin, begin + 400)
        mm(recording, begin + 10, 4096, TENSOR, begin + 50, 200)
    values = run(recording, tmp_path)
    flops = 2 * 4096**3
    assert values["model_flops"] == flops
    assert values["flops_coverage_pct"] == pytest.approx(100)
    assert values["mfu_pct"] == pytest.approx(100 * flops / BF16_PEAK / 400e-6, rel=1e-3)
    assert values["hfu_pct"] == values["mfu_pct"]


def test_recomputed_flops_count_for_the_hardware_only(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    recording.step(1, 0, 400)
    mm(recording, 10, 4096, TENSOR, 50, 200, **{"Sequence number": 1, "Fwd thread id": 0})
    recording.op(
        "autograd::engine::evaluate_function: MmBackward0",
        100,
        200,
        **{"Sequence number": 1, "Fwd thread id": 1},
    )
    mm(recording, 110, 4096, TENSOR, 250, 200, **{"Sequence number": 9, "Fwd thread id": 0})
    values = run(recording, tmp_path)
    assert values["hfu_pct"] == pytest.approx(2 * values["mfu_pct"])


def test_mfu_is_null_where_flops_or_peaks_are_unknown(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    recording.op("aten::mm", 0, 10)
    recording.launch(2, TENSOR, 100, 150)
    result = analyze.run(recording.open(tmp_path), "gpu-efficiency")
    assert result.values["mfu_pct"] is None
    assert any("record_shapes" in note for note in result.notes)
    nameless = Recording()
    mm(nameless, 0, 64, TENSOR, 100, 30)
    result = analyze.run(nameless.open(tmp_path, "nameless.json"), "gpu-efficiency")
    assert result.values["mfu_pct"] is None
    assert any("peaks" in note for note in result.notes)


def test_without_kernels(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="ProfilerActivity"):
        analyze.run(
            Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
            .op("aten::mm", 0, 10)
            .open(tmp_path),
            "gpu-efficiency",
        )


def test_kernels_without_length(tmp_path: Path) -> None:
    recording = Recording()
    recording.op("aten::mm", 0, 10)
    recording.launch(2, TENSOR, 100, 100)
    values = run(recording, tmp_path)
    assert values["tensor_core_pct"] is None
    assert values["goodput_pct"] is None


# What the last TensorBoard plugin said (checklist 2), and its kernel-level tensor-core share (checklist 4).
PLUGIN = (
    ("peers/kineto/resnet50_workers0.pt.trace.json.gz", 55.51, 54.68, 49.13, 0.0),
    ("peers/kineto/resnet50_workers4.pt.trace.json.gz", 70.27, 69.22, 48.91, 0.0),
    ("peers/tutorial_h100/dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz", 13.16, 13.07, 30.42, 60.0),
)


@needs_corpus
@pytest.mark.parametrize(
    ("name", "busy", "sm", "occupancy", "cores"), PLUGIN, ids=["workers0", "workers4", "h100"]
)
def test_the_plugins_numbers(name: str, busy: float, sm: float, occupancy: float, cores: float) -> None:
    values = analyze.run(foretrace.open(CORPUS / name), "gpu-efficiency").values
    assert values["utilisation_pct"] == pytest.approx(busy, abs=0.02)
    assert values["sm_efficiency_pct"] == pytest.approx(sm, abs=0.02)
    assert values["occupancy_pct"] == pytest.approx(occupancy, abs=0.02)
    assert values["tensor_core_pct"] == pytest.approx(cores, abs=0.5)


@needs_corpus
@pytest.mark.parametrize("kind", ["lite", "rich"])
def test_tensor_cores_of_fp32_gemm(kind: str) -> None:
    """The issue's: none before the fix, more than 80 % of the gemm time after it."""
    slow = analyze.run(
        foretrace.open(CORPUS / f"h200/fp32_gemm.slow.{kind}.json.gz"), "gpu-efficiency"
    ).values
    fixed = analyze.run(
        foretrace.open(CORPUS / f"h200/fp32_gemm.fixed.{kind}.json.gz"), "gpu-efficiency"
    ).values
    assert (slow["tensor_core_gemm_pct"], slow["tensor_core_eligible_pct"]) == (0, 0)
    assert fixed["tensor_core_gemm_pct"] > 80  # type: ignore[operator]
    assert fixed["tensor_core_eligible_pct"] > 80  # type: ignore[operator]
    # The same multiplies in both: the fix changed their type, not their number.
    assert slow["model_flops"] == fixed["model_flops"]


@needs_corpus
def test_shares_are_shares_on_every_recording() -> None:
    for path in sorted(CORPUS.rglob("*.json*")):
        if "truth" in path.name or "expected" in path.name or "rocprof" in path.parts:
            continue
        try:
            values = analyze.run(foretrace.open(path), "gpu-efficiency").values
        except MissingDataError:
            continue
        shares = {
            name: float(value)
            for name, value in values.items()
            if name.endswith("_pct") and value is not None
        }
        assert all(-1e-9 <= value <= 100 + 1e-6 for value in shares.values()), (path.name, shares)
        cores = [values[f"{name}tensor_core_pct"] for name in ("", "no_", "unknown_")]
        assert sum(cores) == pytest.approx(100)  # type: ignore[arg-type]
        parts = [values[name] for name in ("goodput_pct", "recompute_pct", "moving_pct")]
        assert sum(parts) == pytest.approx(100)  # type: ignore[arg-type]


def test_more_than_the_peak_is_damage(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    mm(recording, 0, 2**15, TENSOR, 100, 1)  # 70 TFLOP in a microsecond
    result = analyze.run(recording.open(tmp_path), "gpu-efficiency")
    assert result.values["mfu_pct"] is None
    assert any("damaged" in note for note in result.notes)
