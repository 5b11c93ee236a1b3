"""Products in fp32: found by their kernels, worth what a product of their size takes in TF32 or bf16."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose.rules.precision.no_tensor_cores import no_tensor_cores
from foretrace.hardware import match
from foretrace.predict.costs import convolution
from foretrace.predict.costs.gemm import Size, narrowed_ns, size, time_ns
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import ADD, H200, Op, device_bound
from tests.diagnose.loops import findings

SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4"
TF32 = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize1x1x1_execute_segment_k_off_kernel"
SHAPES = [[4096, 4096], [4096, 4096]]
WRITTEN_US = 4 * 4096**2 / 4.8e12 * 1e6
PADDED = 86 * 48 / 4096  # K, loaded 48 at a time
START_US = 5


def in_tf32(share: float) -> float:
    """The product in microseconds: 1,024 tiles of 128 x 128 in eight waves, at a share of the peak."""
    rate = 494.7e12 * share * 1024 / (8 * 132)
    return 2 * 4096**3 * PADDED / rate * 1e6 + WRITTEN_US + START_US


NT, TN = in_tf32(0.88), in_tf32(0.55)
BF16_US = 2 * 4096**3 / (989.5e12 * 0.84 * 1024 / (8 * 132)) * 1e6 + WRITTEN_US / 2 + 2


def product(kernel: str, dur: float, shapes: list[list[int]] | None = SHAPES) -> Op:
    return Op("aten::mm", kernel, dur, shapes, ["float", "float"] if shapes else None)


def test_fp32_products_are_worth_their_time_in_tf32(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(SGEMM, 2600), Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=2700)
    found = found.led_by("tf32")
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(NT + 100, rel=0.02)
    assert found.evidence["products_pct"] == pytest.approx(100 * 2600 / 2700, rel=0.01)
    assert "set_float32_matmul_precision" in found.fix.code


def test_tf32_products_are_asked_about_bf16(tmp_path: Path) -> None:
    """At best twice as fast: half of 2,900 µs. There is nothing left for TF32."""
    trace = device_bound(tmp_path, [product(TF32, 2900), Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=3000)
    assert "1 matrix products and convolutions a step run in TF32 on the tensor cores" in found.says
    assert found.label == "bf16-weights"
    assert [other.label for other in found.alternatives] == ["bf16-autocast"]
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1450 + 100, rel=0.02)


def test_in_training_autocast_leads(tmp_path: Path) -> None:
    backward = Op("aten::mul", ADD, 100, told={"Sequence number": 1, "Fwd thread id": 1})
    (found,) = findings(
        no_tensor_cores, device_bound(tmp_path, [product(TF32, 2900), backward]), step_us=3000
    )
    assert found.label == "bf16-autocast"
    assert [other.label for other in found.alternatives] == ["bf16-weights"]
    assert found.predicted
    assert found.predicted.verdict == "gain"


def test_few_products_in_tf32_or_without_shapes_are_not_worth_a_word(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(TF32, 200), Op("aten::add", ADD, 2800)])
    assert findings(no_tensor_cores, trace, step_us=3000) == []
    trace = device_bound(tmp_path, [product(TF32, 2900, None), Op("aten::add", ADD, 100)])
    assert findings(no_tensor_cores, trace, step_us=3000) == []


def test_tf32_that_waits_for_the_host_gets_longer_under_autocast(tmp_path: Path) -> None:
    """Kernels of 10 µs behind operators of 20 µs: two casts of 17 µs each come before every product."""
    small = [[512, 512], [512, 512]]
    trace = device_bound(tmp_path, [product(TF32, 10, small) for _ in range(10)])
    (found,) = findings(no_tensor_cores, trace, step_us=210)
    autocast = found.led_by("bf16-autocast")
    assert autocast.predicted
    assert autocast.predicted.speedup.point == pytest.approx(210 / (210 + 10 * 2 * 17), rel=0.05)
    kept = found.led_by("bf16-weights")
    assert kept.predicted
    assert kept.predicted.verdict == "no gain"


@pytest.mark.slow
def test_products_on_the_cuda_cores_beside_tf32_may_be_told_of_tf32(tmp_path: Path) -> None:
    """Fifty of 3,000 µs are too few to be counted; 120, which TF32 cannot make shorter, are told of as an alternative."""
    few = device_bound(tmp_path, [product(SGEMM, 50), product(TF32, 2950)])
    (found,) = findings(no_tensor_cores, few, step_us=3000)
    assert {found.label, *(other.label for other in found.alternatives)} == {"bf16-weights", "bf16-autocast"}
    more = device_bound(tmp_path, [product(SGEMM, 120), product(TF32, 2880)])
    (found,) = findings(no_tensor_cores, more, step_us=3000)
    assert "in TF32" in found.says
    tf32 = found.led_by("tf32")
    assert tf32.predicted
    assert tf32.predicted.verdict == "no gain"


def test_without_shapes_or_device_it_is_found_but_nothing_is_promised(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(SGEMM, 2900, None)])
    (found,) = findings(no_tensor_cores, trace, step_us=2900)
    assert found.predicted is None
    (found,) = findings(no_tensor_cores, device_bound(tmp_path, [product(SGEMM, 2900)], device=None))
    assert found.predicted is None


def test_a_device_without_tf32_is_told_of_fp16(tmp_path: Path) -> None:
    v100 = {"id": 0, "name": "Tesla V100-SXM2-32GB", "numSms": 80, "totalGlobalMem": 34089730048}
    (found,) = findings(no_tensor_cores, device_bound(tmp_path, [product(SGEMM, 9000)], device=v100))
    assert "float16" in found.fix.code
    assert found.predicted
    assert found.predicted.verdict == "gain"


def test_sizes_of_products() -> None:
    assert size("aten::addmm", "[[8], [4, 16], [16, 8], [], []]") == Size(1, 4, 8, 16)
    assert size("aten::bmm", "[[3, 4, 16], [3, 16, 8]]") == Size(3, 4, 8, 16)
    assert size("aten::add", "[[4], [4]]") is None
    assert size("aten::mm", "[[4], [4]]") is None
    assert size("aten::mm", None) is None


def test_a_small_product_is_bound_by_memory_or_by_its_waves() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    thin = time_ns(h200, "bf16", Size(1, 1, 8192, 8192), 2)
    assert thin == pytest.approx(8192**2 * 2 / (4.8e12 * 0.8) * 1e9 + 2000, rel=0.02)
    assert time_ns(match("Tesla V100-SXM2-32GB") or h200, "tf32", Size(1, 64, 64, 64), 4) is None


def test_a_small_grid_over_a_long_sum_is_split_along_it() -> None:
    """3 x 4 tiles of 128 x 320 on 132 multiprocessors: eleven parts of K fill them all; 6 x 20 small ones fill 120."""
    h200 = match("NVIDIA H200")
    assert h200
    flops = 2 * 384 * 1280 * 32768
    long = time_ns(h200, "bf16", Size(1, 384, 1280, 32768), 2)
    written = 2 * 384 * 1280 / 4.8e12 * 1e9
    assert long == pytest.approx(flops / (989.5e12 * 0.84) * 1e9 + written + 2000, rel=0.01)
    short = time_ns(h200, "bf16", Size(1, 384, 1280, 1024), 2)
    slower = 0.25**0.3  # blocks of a quarter of the usual area
    computed = flops / 32 / (989.5e12 * 0.84 * 120 / 132 * slower) * 1e9
    assert short == pytest.approx(computed + written + 2000, rel=0.01)


def test_the_gradient_of_a_weight_is_slower_in_tf32(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(SGEMM.replace("_tn_", "_nt_"), 2900), Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=3000)
    found = found.led_by("tf32")
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(TN + 100, rel=0.02)


@pytest.mark.parametrize(("layout", "planar"), [("nchwkcrs_nchw", True), ("nhwckrsc_nhwc", False)])
def test_a_convolution_of_64_channels_fills_small_tiles(tmp_path: Path, layout: str, planar: bool) -> None:
    """131,072 positions by 64 channels: 1,024 tiles of 128 x 64 in eight waves; planar tensors are converted."""
    kernel = f"sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_{layout}_tilesize128x32x8_stage3_warpsize2x2x1"
    shapes = [[8, 64, 128, 128], [64, 64, 3, 3], *([[]] * 7)]
    dtypes = ["float", "float", "ScalarList", "ScalarList", "ScalarList", *(["Scalar"] * 4)]
    inputs = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    op = Op("aten::cudnn_convolution", kernel, 2900, shapes, dtypes, inputs=inputs)
    trace = device_bound(tmp_path, [op, Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=3000)
    found = found.led_by("tf32")
    elements = 8 * 64 * 128 * 128
    used = 512 / (4 * 132) * 1.0  # or 512 tiles of 256 x 64 in four waves, as large as the usual ones
    computing = 2 * elements * 64 * 9 / (494.7e12 * 0.7 * used) * 1e6
    moving = 4 * (2 * elements + 64 * 64 * 9) / (4.8e12 * 0.8) * 1e6
    converting = 2.5 * moving + 10 if planar else 0
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(100 + computing + 6.5 + converting, rel=0.02)
    assert ("cudnn.allow_tf32" in found.fix.code) is True


def test_convolutions_in_groups_may_take_longer_in_bf16(tmp_path: Path) -> None:
    """wav2vec 2.0's positions: 16 groups of 48 channels, filters of 128; 600 µs a group, and 113 GFLOP at 17 TFLOP/s."""
    kernel = "cutlass_tensorop_s1688fprop_analytic_tf32_128x64_16x6_nhwc_align4"
    shapes = [[16, 768, 1, 749], [768, 48, 1, 128], *([[]] * 7)]
    dtypes = ["float", "float", "ScalarList", "ScalarList", "ScalarList", *(["Scalar"] * 4)]
    inputs = ["", "", "[0, 64]", "[1, 1]", "[1, 1]", "16", "False", "False", "True"]
    op = Op("aten::cudnn_convolution", kernel, 1200, shapes, dtypes, inputs=inputs)
    trace = device_bound(tmp_path, [product(SGEMM, 50_000), op])
    (found,) = findings(no_tensor_cores, trace, step_us=51_200)
    found = found.led_by("bf16-weights")
    flops = 2 * 16 * 768 * 750 * 48 * 128
    assert found.predicted
    without = found.predicted.after_ns.point / 1e3 - (16 * 600 + flops / 17e12 * 1e6)
    assert 0 < without < 50_000 / 4  # what the product takes in bf16


@needs_corpus
@pytest.mark.parametrize("kind", ["lite", "rich"])
def test_the_measured_pair(kind: str) -> None:
    trace = foretrace.open(CORPUS / "h200" / f"fp32_gemm.slow.{kind}.json.gz", cache=False)
    (found,) = findings(no_tensor_cores, trace, step_us=49290.6)
    found = found.led_by("tf32")
    assert found.predicted
    assert found.predicted.speedup.point == pytest.approx(3.177, rel=0.10)
    fixed = foretrace.open(CORPUS / "h200" / f"fp32_gemm.fixed.{kind}.json.gz", cache=False)
    (left,) = findings(no_tensor_cores, fixed)
    assert "in TF32" in left.says
    assert {left.label, *(other.label for other in left.alternatives)} == {"bf16-autocast", "bf16-weights"}


def test_h200_is_known() -> None:
    assert match(str(H200["name"])) is not None


def test_an_idle_gpu_does_not_wait_for_products(tmp_path: Path) -> None:
    """Operators of 20 µs on the host, kernels of 5 µs: shorter ones change nothing."""
    trace = device_bound(tmp_path, [product(SGEMM, 5) for _ in range(10)])
    assert findings(no_tensor_cores, trace, step_us=200) == []


def test_a_slow_kernel_gains_no_more_than_the_ratio_of_the_peaks(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [product(SGEMM, 29_000), Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=29_100)
    found = found.led_by("tf32")
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(100 + 29_000 * 66.9 / 494.7, rel=0.02)


def test_products_of_few_rows_wait_for_memory(tmp_path: Path) -> None:
    """Eight rows: 4 FLOPs a byte of the weight, where the CUDA cores do 14 while a byte arrives."""
    trace = device_bound(tmp_path, [product(SGEMM, 500, [[8, 8192], [8192, 8192]])])
    assert findings(no_tensor_cores, trace, step_us=500) == []


@pytest.mark.parametrize("channels", [1, 4])
def test_groups_of_few_channels_stay_on_the_cuda_cores(tmp_path: Path, channels: int) -> None:
    kernel = (
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float>"
    )
    shapes = [[8, 64, 128, 128], [64, channels, 7, 7], *([[]] * 7)]
    dtypes = ["float", "float", "ScalarList", "ScalarList", "ScalarList", *(["Scalar"] * 4)]
    inputs = ["", "", "[3, 3]", "[1, 1]", "[1, 1]", str(64 // channels), "False", "False", "True"]
    op = Op("aten::cudnn_convolution", kernel, 2900, shapes, dtypes, inputs=inputs)
    for found in findings(no_tensor_cores, device_bound(tmp_path, [op]), step_us=2900):
        assert found.predicted is None


@pytest.mark.slow
def test_a_model_that_is_only_served_is_best_kept_in_bf16(tmp_path: Path) -> None:
    """The product at bf16's rate, half the bytes for the rest, no casts. In training, that is said but does not lead."""
    ops = [product(SGEMM, 2600), Op("aten::add", ADD, 600, [[1 << 26]], ["float"])]
    (served,) = findings(no_tensor_cores, device_bound(tmp_path, ops), step_us=3200)
    assert served.label == "bf16-weights"
    assert [other.label for other in served.alternatives] == ["bf16-autocast", "tf32"]
    assert served.predicted
    kept = BF16_US + 2 + 0.55 * 598
    assert served.predicted.after_ns.point / 1e3 == pytest.approx(kept, rel=0.03)
    backward = Op(
        "aten::add", ADD, 600, [[1 << 26]], ["float"], told={"Sequence number": 1, "Fwd thread id": 1}
    )
    (trained,) = findings(no_tensor_cores, device_bound(tmp_path, [ops[0], backward]), step_us=3200)
    assert trained.label == "bf16-autocast"
    assert "loss" in trained.led_by("bf16-weights").unless


def test_autocast_pays_for_its_casts(tmp_path: Path) -> None:
    """Both operands are cast: 16 million elements each, of six bytes, before a product in bf16."""
    trace = device_bound(tmp_path, [product(SGEMM, 2600), Op("aten::add", ADD, 100)])
    (found,) = findings(no_tensor_cores, trace, step_us=2700)
    autocast = found.led_by("bf16-autocast")
    cast = 6 * 4096**2 / (4.8e12 * 0.8) * 1e6 + 2
    assert autocast.predicted
    assert autocast.predicted.after_ns.point / 1e3 == pytest.approx(BF16_US + 2 * cast + 100, rel=0.02)
    assert "2 casts a step" in autocast.predicted.basis


def test_a_step_that_waits_for_the_host_becomes_longer_under_autocast(tmp_path: Path) -> None:
    """Kernels of 16 µs behind operators of 20 µs: two casts of 17 µs each come before every product."""
    small = [[512, 512], [512, 512]]
    trace = device_bound(tmp_path, [product(SGEMM, 16, small) for _ in range(10)])
    (found,) = findings(no_tensor_cores, trace, step_us=220)
    autocast = found.led_by("bf16-autocast")
    assert autocast.predicted
    assert autocast.predicted.verdict == "no gain"
    assert autocast.predicted.speedup.point < 0.6
    assert found.label == "tf32"


@pytest.mark.slow
def test_convolutions_that_may_run_in_tf32_are_not_promised_it(tmp_path: Path) -> None:
    """One runs on the tensor cores: TF32 is allowed, and the other stays on the CUDA cores for another reason."""
    shapes = [[8, 64, 128, 128], [64, 64, 3, 3], *([[]] * 7)]
    dtypes = ["float", "float", "ScalarList", "ScalarList", "ScalarList", *(["Scalar"] * 4)]
    inputs = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    kernels = [
        f"sm{arch}_xmma_fprop_implicit_gemm_f32f32_{middle}_f32_nhwckrsc_nhwc_tilesize128x32x8"
        for arch, middle in ((80, "f32f32"), (90, "tf32f32"))
    ]
    ops = [Op("aten::cudnn_convolution", kernel, 1000, shapes, dtypes, inputs=inputs) for kernel in kernels]
    (asked,) = findings(no_tensor_cores, device_bound(tmp_path, ops), step_us=2000)
    assert "tf32" not in {asked.label, *(other.label for other in asked.alternatives)}
    (found,) = findings(no_tensor_cores, device_bound(tmp_path, [*ops, product(SGEMM, 2600)]), step_us=4600)
    tf32 = found.led_by("tf32")
    assert tf32.predicted
    assert tf32.predicted.after_ns.point / 1e3 == pytest.approx(2000 + NT, rel=0.02)
    assert "cudnn" not in tf32.fix.code


def test_rows_that_are_no_multiple_of_16_bytes_are_loaded_piece_by_piece() -> None:
    h200 = match("NVIDIA H200")
    assert h200
    aligned = Size(1, 4096, 50304, 768, "NT")
    odd = Size(1, 4096, 50257, 768, "NT")
    assert (aligned.aligned, odd.aligned, Size(1, 64, 64, 12, "NN").aligned) == (128, 1, 4)
    for dtype, item_bytes, start, times in (("tf32", 4, 5_000, 3.1), ("bf16", 2, 2_000, 7.2)):
        whole, pieces = (time_ns(h200, dtype, each, item_bytes) for each in (aligned, odd))
        assert whole
        assert pieces
        otherwise = item_bytes * 4096 * 50257 / 4.8e12 * 1e9 + start  # the result written, and the start
        assert (pieces - otherwise) / (whole - otherwise) == pytest.approx(times, rel=0.02)
        assert narrowed_ns(h200, 50_000_000, odd, "fp32", dtype) >= pieces


def test_how_operands_lie_is_read_from_their_strides() -> None:
    shapes = "[[8], [4, 16], [16, 8], [], []]"
    assert size("aten::addmm", shapes, "[[1], [16, 1], [1, 16], [], []]") == Size(1, 4, 8, 16, "NT")
    assert size("aten::mm", "[[4, 16], [16, 8]]", "[[1, 4], [8, 1]]") == Size(1, 4, 8, 16, "TN")
    assert size("aten::bmm", "[[3, 4, 16], [3, 16, 8]]", "[[64, 16, 1], [128, 8, 1]]") == Size(
        3, 4, 8, 16, "NN"
    )
    assert size("aten::mm", "[[4, 16], [16, 8]]", "[[], []]") == Size(1, 4, 8, 16)


CONVOLVED = (
    "sm90_xmma_fprop_implicit_gemm_f32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x32_warpgroupsize1x1x1"
)
PLANAR_NORM = "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128, true, 1, true>"
NHWC_NORM = "void cudnn::batchnorm_fwtr_nhwc_semiPersist<float, 1, 1, 3, true, false, false>"


def convolved(given: int, dur: float) -> Op:
    shapes = [[32, given, 56, 56], [64, given, 3, 3], *([[]] * 7)]
    dtypes = ["float", "float", "ScalarList", "ScalarList", "ScalarList", *(["Scalar"] * 4)]
    inputs = ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "True"]
    return Op("aten::cudnn_convolution", CONVOLVED, dur, shapes, dtypes, inputs=inputs)


def test_convolutions_in_tf32_gain_what_their_models_differ_by(tmp_path: Path) -> None:
    """Whatever this one reached in TF32, 1,000 µs here: models of both types, of 64 channels, tell the ratio."""
    h200 = match("NVIDIA H200")
    assert h200
    positions = 32 * 56 * 56
    size = convolution.Size(64, 64, 9, positions, positions, False)
    ratio = convolution.time_ns(h200, "bf16", size, planar=False) / convolution.time_ns(
        h200, "tf32", size, planar=False
    )
    assert 0.5 < ratio < 0.7
    (found,) = findings(no_tensor_cores, device_bound(tmp_path, [convolved(64, 1000)]), step_us=1000)
    kept = found.led_by("bf16-weights")
    assert kept.predicted
    assert kept.predicted.after_ns.point / 1e3 == pytest.approx(1000 * ratio, rel=0.02)


def test_convolutions_of_few_channels_take_as_long_in_bf16(tmp_path: Path) -> None:
    (found,) = findings(
        no_tensor_cores, device_bound(tmp_path, [convolved(64, 500), convolved(3, 1000)]), step_us=1500
    )
    kept = found.led_by("bf16-weights")
    assert kept.predicted
    assert 1000 + 250 <= kept.predicted.after_ns.point / 1e3 <= 1000 + 350


APPLIED = 4 * 128 * 64 * 56 * 56 / (4.8e12 * 0.38) * 1e6
IN_BF16 = (0.82 * 401.408 + APPLIED) * 7 * 512 / 3136 + 4


@pytest.mark.parametrize(("kernel", "after"), [(PLANAR_NORM, IN_BF16), (NHWC_NORM, 2 + 0.85 * 298)])
def test_batch_norm_of_planar_tensors_does_not_gain_from_bf16(
    tmp_path: Path, kernel: str, after: float
) -> None:
    """Torch's own kernels: 401,408 elements of each of 64 channels, seven rounds of 512 threads for 3,136 of a plane."""
    shapes = [[128, 64, 56, 56], [64], [64], [64], [64], [], [], []]
    norm = Op("aten::cudnn_batch_norm", kernel, 300, shapes, [*["float"] * 5, *["Scalar"] * 3])
    trace = device_bound(tmp_path, [product(TF32, 1000), norm])
    (found,) = findings(no_tensor_cores, trace, step_us=1300)
    kept = found.led_by("bf16-weights")
    assert kept.predicted
    assert kept.predicted.after_ns.point / 1e3 == pytest.approx(500 + after, rel=0.02)
