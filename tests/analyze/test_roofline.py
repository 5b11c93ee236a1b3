"""`roofline` against figures worked out by hand, printed in the tutorials, and plausible on real recordings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.device import device_peaks
from foretrace.analyze.result import Result
from foretrace.errors import MissingDataError, UsageError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

RTX_4090 = {"id": 0, "name": "NVIDIA GeForce RTX 4090", "totalGlobalMem": 25_383_993_344, "numSms": 128}
H200 = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_109_880_320, "numSms": 132}
SGEMM, HGEMM = "ampere_sgemm_128x64_tn", "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
Row = dict[str, Any]


def recorded(device: Row | None = None) -> Recording:
    return Recording(deviceProperties=[device]) if device else Recording()


def arguments(*tensors: tuple[str, list[int]], **values: Any) -> Row:
    """Dims, types and values of an operator whose first arguments are these tensors."""
    scalars = values.get("scalars", [])
    return {
        "Input Dims": [shape for _, shape in tensors] + [[] for _ in scalars],
        "Input type": [dtype for dtype, _ in tensors] + ["Scalar" if each else "" for each in scalars],
        "Concrete Inputs": ["" for _ in tensors] + scalars,
    }


def addmm(dtype: str, m: int, k: int, n: int) -> Row:
    return arguments((dtype, [n]), (dtype, [m, k]), (dtype, [k, n]), scalars=["1", "1"])


def add(dtype: str, count: int) -> Row:
    return arguments((dtype, [count]), (dtype, [count]), scalars=["1"])


def calls(recording: Recording, *given: tuple[str, Row, str, float]) -> Recording:
    """Operators one after another, each with one kernel of so many microseconds."""
    for place, (name, args, kernel, dur) in enumerate(given):
        at = 1e4 * place
        recording.op(name, at, at + 10, **args).launch(at + 1, kernel, at + 20, at + 20 + dur)
    return recording


def run(recording: Recording, folder: Path, **options: Any) -> Result:
    return analyze.run(recording.open(folder), "roofline", **options)


def rows(result: Result) -> list[Row]:
    return result.table.to_dicts()


# --- the tutorials' own figures (an RTX 4090: fp32 and tf32 82.6, fp16 165.2 TFLOP/s) -----------------------


def test_the_tutorials_linear_layers_reach_80_and_83_percent(tmp_path: Path) -> None:
    """Embedding 512, feed-forward 2048, 16 x 128 tokens, fp32: 65 and 63 us in torch's table."""
    recording = calls(
        recorded(RTX_4090),
        ("aten::addmm", addmm("float", 16 * 128, 512, 2048), SGEMM, 65),
        ("aten::addmm", addmm("float", 16 * 128, 2048, 512), SGEMM, 63),
    )
    first, second = rows(run(recording, tmp_path))
    assert first["work_flops"] == second["work_flops"] == pytest.approx(4.295e9, rel=1e-4)
    assert first["achieved_flops_per_s"] == pytest.approx(66.1e12, rel=1e-3)
    assert second["achieved_flops_per_s"] == pytest.approx(68.2e12, rel=1e-3)
    assert (round(first["roof_pct"]), round(second["roof_pct"])) == (80, 83)
    assert (first["bound"], first["dtype"], first["model"]) == ("compute", "fp32", "gemm")


def test_the_tutorials_larger_layer_in_half_precision_reaches_83_percent(tmp_path: Path) -> None:
    """32 x 2048 tokens in fp16: 1.006 ms."""
    recording = calls(
        recorded(RTX_4090), ("aten::addmm", addmm("c10::Half", 32 * 2048, 512, 2048), HGEMM, 1006)
    )
    (row,) = rows(run(recording, tmp_path))
    assert row["work_flops"] == pytest.approx(137.4e9, rel=1e-3)
    assert row["achieved_flops_per_s"] == pytest.approx(136.6e12, rel=1e-3)
    assert round(row["roof_pct"]) == 83


def test_the_tutorials_fused_attention_reaches_77_teraflops(tmp_path: Path) -> None:
    """32 sequences of 2048, eight heads of 64: 3.553 ms."""
    whole = ("c10::Half", [32, 2048, 8, 64])
    flash = arguments(whole, whole, whole, scalars=["", "", "2048", "2048", "0.", "False", "False"])
    recording = recorded(RTX_4090).op("aten::scaled_dot_product_attention", 0, 100)
    recording.op("aten::_flash_attention_forward", 1, 50, **flash)
    recording.launch(2, "void pytorch_flash::flash_fwd_kernel<...>", 60, 60 + 3553)
    (row,) = rows(run(recording, tmp_path))
    assert (row["op"], row["model"]) == ("aten::_flash_attention_forward", "attention")
    assert row["work_flops"] == pytest.approx(274.9e9, rel=1e-3)
    assert row["achieved_flops_per_s"] == pytest.approx(77.4e12, rel=1e-3)


def test_both_halves_of_a_feed_forward_layer_do_the_same_work(tmp_path: Path) -> None:
    """Part 2 of the series: 38.65 GFLOP each, 0.19 and 0.17 ms."""
    up, down = addmm("c10::BFloat16", 8192, 768, 3072), addmm("c10::BFloat16", 8192, 3072, 768)
    recording = calls(recorded(H200), ("aten::addmm", up, HGEMM, 190), ("aten::addmm", down, HGEMM, 170))
    found = rows(run(recording, tmp_path))
    assert [row["work_flops"] for row in found] == [38_654_705_664] * 2
    assert found[0]["achieved_flops_per_s"] == pytest.approx(38.65e9 / 0.19e-3, rel=1e-3)


# --- the roof (an H200: 4.8 TB/s, fp32 67, tf32 494, bf16 989 TFLOP/s) ---------------------------------------


def test_a_memory_bound_operator_is_measured_against_the_bandwidth(tmp_path: Path) -> None:
    # 12 bytes an element: 1e8 elements take 250 us at 4.8 TB/s.
    recording = calls(recorded(H200), ("aten::add", add("float", 10**8), "add", 500))
    (row,) = rows(run(recording, tmp_path))
    assert row["traffic_bytes"] == 12 * 10**8
    assert row["achieved_bytes_per_s"] == pytest.approx(2.4e12)
    assert row["intensity_flops_per_byte"] == pytest.approx(1 / 12)
    assert row["roof_pct"] == pytest.approx(50)
    assert row["excess_ns"] == pytest.approx(250_000, rel=1e-6)
    assert (row["bound"], row["note"]) == ("memory", "")


def test_far_from_both_roofs_is_latency_or_too_small(tmp_path: Path) -> None:
    recording = calls(
        recorded(H200),
        ("aten::add", add("float", 10**8), "add", 2500),  # 10 % of 250 us
        ("aten::mul", add("float", 10**4), "mul", 3),  # 25 ns at the roof
    )
    assert [row["bound"] for row in rows(run(recording, tmp_path))] == ["latency", "too small"]


@pytest.mark.slow
def test_a_group_adds_up_its_calls(tmp_path: Path) -> None:
    same = addmm("c10::BFloat16", 4096, 4096, 4096)
    other = addmm("c10::BFloat16", 4096, 4096, 8192)
    given = [
        ("aten::addmm", same, "k1", 200),
        ("aten::addmm", same, "k1", 300),
        ("aten::addmm", other, "k2", 400),
    ]
    recording = calls(recorded(H200), *given)
    by_shape = rows(run(recording, tmp_path))
    assert [row["calls_count"] for row in by_shape] == [2, 1]
    assert by_shape[0]["achieved_flops_per_s"] == pytest.approx(2 * 2 * 4096**3 / 500e-6)
    (by_op,) = rows(run(recording, tmp_path, group_by="op"))
    assert by_op["work_flops"] == 4 * 2 * 4096**3
    assert by_op["roof_pct"] == pytest.approx(100 * 4 * 2 * 4096**3 / 989e12 / 900e-6, rel=1e-3)
    assert [row["kernel"] for row in rows(run(recording, tmp_path, group_by="kernel"))] == ["k1", "k2"]


def test_a_call_owns_all_its_kernels(tmp_path: Path) -> None:
    recording = recorded(H200).op("aten::addmm", 0, 20, **addmm("float", 2048, 2048, 2048))
    recording.launch(1, "cutlass_80_tensorop_s1688gemm_128x128_32x5_tn_align4", 30, 90)
    recording.launch(5, "splitKreduce_kernel", 90, 100)
    (row,) = rows(run(recording, tmp_path))
    assert (row["calls_count"], row["total_ns"], row["dtype"]) == (1, 70_000, "tf32")
    assert row["roof_pct"] == pytest.approx(100 * (2 * 2048**3 / 494.5e12) / 70e-6, rel=2e-3)


def test_a_kernel_that_outruns_fp32_used_tensor_cores(tmp_path: Path) -> None:
    work = addmm("float", 8192, 8192, 8192)  # 1.1 TFLOP: 16.4 ms in fp32, 2.2 ms in tf32
    given = [("aten::addmm", work, "unnamed_a", 4000), ("aten::addmm", work, "unnamed_b", 20_000)]
    fast, slow = sorted(rows(run(calls(recorded(H200), *given), tmp_path)), key=lambda row: row["total_ns"])
    assert (fast["dtype"], slow["dtype"]) == ("tf32", "fp32")
    assert fast["roof_pct"] == pytest.approx(100 * 2 * 8192**3 / 494.5e12 / 4e-3, rel=2e-3)


def test_above_the_roof_is_marked_and_explained(tmp_path: Path) -> None:
    conv = arguments(
        ("float", [32, 256, 56, 56]), ("float", [256, 256, 3, 3]),
        scalars=["[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "False"],
    )  # fmt: skip
    recording = calls(
        recorded(
            {**RTX_4090, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34_089_730_048, "numSms": 80}
        ),
        ("aten::cudnn_convolution", conv, "winograd_3x3_kernel", 6000),  # 118 GFLOP: 7.5 ms at 15.7 TFLOP/s
    )
    recording.op("aten::add", 90_000, 90_010, **add("float", 10**5)).launch(90_001, "add", 90_020, 90_021)
    recording.op("aten::add", 95_000, 95_010, **add("float", 10**9)).launch(95_001, "add", 95_020, 95_120)
    result = run(recording, tmp_path)
    notes = {(row["op"], row["total_ns"]): row["note"] for row in rows(result)}
    assert "Winograd" in notes["aten::cudnn_convolution", 6_000_000]
    assert "L2 cache" in notes["aten::add", 1_000]
    assert "the model or the peak is wrong" in notes["aten::add", 100_000]
    assert result.values["anomaly_count"] == 3
    assert any("3 groups above 110 %" in note for note in result.notes)


# --- devices and peaks ------------------------------------------------------------------------------------


def test_an_unknown_device_shows_rates_without_shares(tmp_path: Path) -> None:
    given = [("aten::add", add("float", 10**8), "add", 500.0)]
    for place, device in enumerate((None, {**H200, "name": "NVIDIA X9000"})):
        result = analyze.run(calls(recorded(device), *given).open(tmp_path, f"{place}.json"), "roofline")
        (row,) = rows(result)
        assert row["achieved_bytes_per_s"] == pytest.approx(2.4e12)
        assert (row["roof_pct"], row["bound"], row["excess_ns"]) == (None, None, None)
        assert result.values["roof_pct"] is None
        assert any("are not known: pass --peak-memory-bytes" in note for note in result.notes)


def test_the_users_peaks_go_before_the_tables(tmp_path: Path) -> None:
    half = addmm("c10::BFloat16", 4096, 4096, 4096)
    given = [("aten::addmm", half, "gemm", 200), ("aten::add", add("float", 10**8), "add", 500)]
    recording = calls(recorded(None), *given)
    peaks = {"peak_bf16_flops": 1e15, "peak_fp32_flops": 1e14, "peak_memory_bytes": 4.8e12}
    memory, compute = rows(run(recording, tmp_path, **peaks))
    assert memory["roof_pct"] == pytest.approx(50)
    assert compute["roof_pct"] == pytest.approx(100 * 2 * 4096**3 / 1e15 / 200e-6)
    with pytest.raises(UsageError, match="above zero"):
        run(recording, tmp_path, peak_bf16_flops=0.0)


def test_a_type_without_peak_has_no_share(tmp_path: Path) -> None:
    given = [("aten::addmm", addmm("double", 1024, 1024, 1024), "dgemm", 200)]
    result = run(calls(recorded(H200), *given), tmp_path)
    (row,) = rows(result)
    assert (row["dtype"], row["roof_pct"]) == ("fp64", None)
    assert any("no peak is known for fp64" in note for note in result.notes)


def test_a_virtual_function_is_its_device() -> None:
    whole = {"name": "AMD Instinct MI300X VF", "totalGlobalMem": 205_571_227_648, "numSms": 304}
    found = device_peaks.find_device(whole)
    assert found is not None
    assert found.name == "AMD Instinct MI300X"
    # A part of one has fewer compute units: its peaks are not known.
    assert device_peaks.find_device({**whole, "numSms": 38}) is None
    assert device_peaks.find_device({}) is None


# --- what is left out, and what is missing ------------------------------------------------------------------


def test_kernels_without_model_are_listed_with_the_reason(tmp_path: Path) -> None:
    recording = recorded(H200)
    calls(
        recording,
        ("aten::add", add("float", 10**6), "add", 10),
        ("vendor::attention", arguments(("float", [8, 8])), "mystery", 40),
        ("aten::mm", arguments(("float", [8, 8])), "half_recorded", 30),
    )
    recording.op("aten::mm", 5e4, 5e4 + 9).launch(5e4 + 1, "shapeless", 5e4 + 20, 5e4 + 40)
    recording.launch(6e4, "lone", 6e4 + 20, 6e4 + 25)
    recording.kernel("early", 1, 2)
    recording.launch(7e4, "ncclDevKernel_AllReduce", 7e4 + 10, 7e4 + 900)
    result = run(recording, tmp_path, group_by="kernel")
    notes = {row["kernel"]: row["note"] for row in rows(result)}
    assert notes == {
        "add": "",
        "mystery": "no model of this operator",
        "half_recorded": "its recorded arguments do not determine the work",
        "shapeless": "shapes not recorded",
        "lone": "no operator launched it",
    }
    values = result.values
    assert (values["kernel_ns"], values["modelled_ns"]) == (105_000, 10_000)
    assert values["coverage_pct"] == pytest.approx(100 * 10 / 105)
    assert (values["communication_ns"], values["orphan_count"], values["orphan_ns"]) == (890_000, 1, 1_000)
    unmodelled = [row for row in rows(result) if row["model"] is None]
    assert all(row["work_flops"] is None and row["roof_pct"] is None for row in unmodelled)


def test_an_inductor_kernel_far_below_the_memory_is_not_classified(tmp_path: Path) -> None:
    whole = ("float", [10**8])
    given = [
        (
            "triton_poi_fused_exp_0",
            arguments(whole, whole, scalars=[str(10**8)]),
            "triton_poi_fused_exp_0",
            2000,
        )
    ]
    (row,) = rows(run(calls(recorded(H200), *given), tmp_path))
    assert (row["model"], row["work_flops"], row["bound"]) == ("triton", None, "unknown")
    assert row["achieved_bytes_per_s"] == pytest.approx(8e8 / 2e-3)


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no kernels recorded"):
        run(Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}]).op("aten::mm", 0, 5), tmp_path)
    with pytest.raises(MissingDataError, match="record_shapes"):
        run(Recording().op("aten::mm", 0, 5).launch(1, "sgemm", 6, 7), tmp_path)
    with pytest.raises(MissingDataError, match="without graphs"):
        run(Recording().launch(1, "replayed", 6, 7), tmp_path)
    with pytest.raises(UsageError, match="shape, op, kernel"):
        run(Recording().op("aten::mm", 0, 5).launch(1, "sgemm", 6, 7), tmp_path, group_by="name")


def test_only_early_kernels_is_no_error(tmp_path: Path) -> None:
    recording = recorded(H200).op("aten::add", 0, 5, **add("float", 100)).kernel("early", 0, 5)
    recording.launch(7, "ncclKernel", 10, 20)
    result = run(recording, tmp_path)
    assert result.table.is_empty()
    assert result.values["coverage_pct"] is None


def test_a_kernel_of_no_length_divides_nothing(tmp_path: Path) -> None:
    recording = calls(recorded(H200), ("aten::add", add("float", 100), "add", 0))
    (row,) = rows(run(recording, tmp_path))
    assert (row["total_ns"], row["total_pct"], row["achieved_flops_per_s"], row["roof_pct"]) == (
        0,
        None,
        None,
        None,
    )


# --- real recordings --------------------------------------------------------------------------------------


def opened(name: str) -> foretrace.Trace:
    return foretrace.open(CORPUS / name)


@needs_corpus
@pytest.mark.parametrize(
    "name",
    [
        "h200/naive_attention.slow.lite.json.gz",
        "h200/resnet50.fixed.lite.json.gz",
        "peers/tracelens/h100_qwen.json.gz",
        "peers/tracelens/mi300_qwen.json.gz",
        "peers/tracelens/b200_eager.json.gz",
        "peers/kineto/resnet50_workers0.pt.trace.json.gz",
        "peers/hta/trace_filter__sampled_rank-0.json.gz",
    ],
)
@pytest.mark.parametrize("group_by", ["shape", "op", "kernel"])
def test_parts_add_up_to_the_whole(name: str, group_by: str) -> None:
    result = analyze.run(opened(name), "roofline", group_by=group_by)
    table, values = result.table, result.values
    assert table["total_ns"].sum() == values["kernel_ns"]
    assert table.filter(pl.col("model").is_not_null())["total_ns"].sum() == values["modelled_ns"]
    assert table["total_pct"].sum() == pytest.approx(100)
    assert isinstance(values["coverage_pct"], float)
    assert 0 <= values["coverage_pct"] <= 100
    assert table.filter(pl.col("model").is_not_null())["traffic_bytes"].sum() == values["traffic_bytes"]
    measures = table.select(pl.selectors.numeric())
    assert all((each.drop_nulls() >= 0).all() for each in measures)
    over = table.filter(pl.col("roof_pct") > 110)
    assert over["note"].str.starts_with("anomaly").all()
    assert over.height == values["anomaly_count"]


@needs_corpus
def test_large_products_and_copies_come_near_an_h200s_roof() -> None:
    """cuBLAS is known to reach 60 to 85 % of the dense peak, plain elementwise kernels 80 to 95 % of HBM."""
    table = analyze.run(opened("h200/gpt_healthy.slow.lite.json.gz"), "roofline").table
    large = table.filter((pl.col("model") == "gemm") & (pl.col("work_flops") / pl.col("calls_count") > 1e11))
    assert large.height >= 5
    assert large["roof_pct"].is_between(60, 86).all()
    assert (large["bound"] == "compute").all()
    chain = analyze.run(opened("h200/elementwise_chain.slow.lite.json.gz"), "roofline")
    assert (chain.table["bound"] == "memory").all()
    assert chain.table["roof_pct"].is_between(80, 110).all()


@needs_corpus
def test_precision_decides_the_roof() -> None:
    slow = analyze.run(opened("h200/fp32_gemm.slow.lite.json.gz"), "roofline").table
    fixed = analyze.run(opened("h200/fp32_gemm.fixed.lite.json.gz"), "roofline").table
    for table, dtype in ((slow, "fp32"), (fixed, "tf32")):
        gemms = table.filter(pl.col("model") == "gemm")
        mine = gemms.filter(pl.col("dtype") == dtype)["total_ns"].sum()
        assert mine > 0.95 * sum(gemms["total_ns"])


@needs_corpus
def test_launch_bound_decoding_is_too_small_for_the_device() -> None:
    table = analyze.run(opened("h200/decode_launch_bound.slow.lite.json.gz"), "roofline").table
    assert sum(table.filter(pl.col("bound") == "too small")["total_ns"]) > 0.9 * sum(table["total_ns"])
