"""`op_work` against formulas by hand, brute force, and torch's own counters where torch is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretrace
from foretrace.analyze.concepts.work import flops, work_models
from foretrace.analyze.concepts.work.work_models.attention import pairs
from foretrace.analyze.concepts.work.work_models.call import broadcast
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

F32, BF16, HALF, FP8, I64 = "float", "c10::BFloat16", "c10::Half", "c10::Float8_e4m3fn", "long int"


def work(name: str, *arguments: Any, kernel: str | None = None) -> tuple[int | None, int, str] | None:
    """Work of a call; an argument is (dtype, shape), (dtype, shape, stride), a list of shapes, or a value."""
    shapes, dtypes, strides, inputs = [], [], [], []
    for each in arguments:
        if isinstance(each, tuple):
            dtypes.append(each[0])
            shapes.append(each[1])
            strides.append(each[2] if len(each) > 2 else [])
            inputs.append("")
        elif isinstance(each, list):
            dtypes.append("TensorList")
            shapes.append(each)
            strides.append([])
            inputs.append("")
        else:
            dtypes.append("" if each is None else "Scalar")
            shapes.append([])
            strides.append([])
            inputs.append("" if each is None else str(each))
    found = work_models.work(
        name, json.dumps(shapes), json.dumps(dtypes), json.dumps(strides), json.dumps(inputs), kernel
    )
    return None if found is None else (found.flops, found.bytes, found.dtype)


# --- formulas ---------------------------------------------------------------------------------------------


def test_products_are_two_mnk() -> None:
    a, b = (BF16, [64, 128]), (BF16, [128, 32])
    product = 2 * 64 * 128 * 32
    moved = 2 * (64 * 128 + 128 * 32 + 64 * 32)
    assert work("aten::mm", a, b) == (product, moved, "bf16")
    assert work("aten::addmm", (BF16, [32]), a, b, 1, 1) == (product, moved + 64, "bf16")
    assert work("aten::matmul", a, b) == (product, moved, "bf16")
    assert work("aten::linear", a, (BF16, [32, 128]), None) == (product, moved, "bf16")
    batched = work("aten::bmm", (F32, [3, 4, 5]), (F32, [3, 5, 6]))
    assert batched == (2 * 3 * 4 * 5 * 6, 4 * 3 * (20 + 30 + 24), "fp32")
    assert work("aten::mv", (F32, [4, 5]), (F32, [5])) == (40, 4 * (20 + 5 + 4), "fp32")
    assert work("aten::dot", (F32, [5]), (F32, [5])) == (10, 4 * 11, "fp32")


def test_a_matmul_broadcasts_its_batch() -> None:
    found = work("aten::matmul", (F32, [7, 1, 4, 5]), (F32, [3, 5, 6]))
    assert found is not None
    assert found[0] == 2 * 7 * 3 * 4 * 5 * 6


def test_an_expanded_operand_is_read_as_stored() -> None:
    whole = work("aten::bmm", (F32, [8, 4, 5], [20, 5, 1]), (F32, [8, 5, 6], [30, 6, 1]))
    shared = work("aten::bmm", (F32, [8, 4, 5], [20, 5, 1]), (F32, [8, 5, 6], [0, 6, 1]))
    assert whole is not None
    assert shared is not None
    assert (whole[0], whole[1] - shared[1]) == (shared[0], 4 * 7 * 30)


def test_fp8_products_write_what_they_were_asked_for() -> None:
    a, b = (FP8, [16, 32]), (FP8, [32, 64])
    scale: tuple[str, list[int]] = (F32, [])
    bf16 = work("aten::_scaled_mm", a, b, scale, scale, None, None, 15, "False")
    fp32 = work("aten::_scaled_mm", a, b, scale, scale, None, None, 6, "False")
    operands = 16 * 32 + 32 * 64 + 8
    assert bf16 == (2 * 16 * 32 * 64, operands + 2 * 16 * 64, "fp8")
    assert fp32 == (2 * 16 * 32 * 64, operands + 4 * 16 * 64, "fp8")


def test_arguments_that_do_not_fit_have_no_work() -> None:
    assert work("aten::mm", (F32, [3, 4]), (F32, [5, 6])) is None
    assert work("aten::mm", (F32, [3, 4])) is None
    assert work("aten::mm", None, None) is None
    assert work("aten::no_such_operator", (F32, [3, 4])) is None
    assert work_models.work("aten::mm", None, None, None, None, None) is None
    for broken in ("", "{}", "[", '["a"]', "[[-1, 2], [2, 3]]", "[[null], [1]]", '[["x", 1], [1, 1]]'):
        assert work_models.work("aten::mm", broken, '["float", "float"]', None, None, None) is None


def convolved(extent: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many places a kernel fits, by trying them."""
    reach = dilation * (kernel - 1)
    return sum(1 for start in range(-padding, extent + padding - reach, stride))


@pytest.mark.parametrize(("stride", "padding", "dilation"), [(1, 0, 1), (2, 1, 1), (2, 3, 2), (3, 2, 1)])
def test_a_convolution_counts_its_output(stride: int, padding: int, dilation: int) -> None:
    source, weight = (F32, [2, 6, 14, 11]), (F32, [8, 3, 3, 2])
    tall, wide = convolved(14, 3, stride, padding, dilation), convolved(11, 2, stride, padding, dilation)
    count = 2 * 8 * tall * wide
    expected = (2 * count * 3 * 3 * 2, 4 * (2 * 6 * 14 * 11 + 8 * 3 * 3 * 2 + count), "fp32")
    s, p, d = ([each] * 2 for each in (stride, padding, dilation))
    assert work("aten::cudnn_convolution", source, weight, str(p), str(s), str(d), 2, "False") == expected
    general = (source, weight, None, str(s), str(p), str(d), "False", "[0, 0]", 2)
    assert work("aten::convolution", *general) == expected
    assert work("aten::miopen_convolution", source, weight, None, str(p), str(s), str(d), 2) == expected
    assert work("aten::cudnn_convolution", source, weight) is None  # stride and padding not recorded


def test_each_gradient_of_a_convolution_costs_a_forward_pass() -> None:
    forward = 2 * (2 * 8 * 14 * 14) * 6 * 9
    arguments = (
        (F32, [2, 8, 14, 14]), (F32, [2, 6, 14, 14]), (F32, [8, 6, 3, 3]),
        "[8]", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", 1,
    )  # fmt: skip
    name = "aten::convolution_backward"
    masks = [(True, True, True), (False, True, False), (True, False, False)]
    found = [work(name, *arguments, str(list(mask))) for mask in masks]
    assert [each and each[0] for each in found] == [2 * forward, forward, forward]


def test_a_transposed_convolution_spreads_its_input() -> None:
    # ConvTranspose2d(6, 8, 4, stride 2, padding 1) doubles the extents.
    source, weight = (F32, [2, 6, 7, 7]), (F32, [6, 8, 4, 4])
    general = (source, weight, None, "[2, 2]", "[1, 1]", "[1, 1]", "True", "[0, 0]", 1)
    expected = (2 * (2 * 6 * 49) * 8 * 16, 4 * (2 * 6 * 49 + 6 * 8 * 16 + 2 * 8 * 14 * 14), "fp32")
    assert work("aten::convolution", *general) == expected
    cudnn = (source, weight, "[1, 1]", "[0, 0]", "[2, 2]", "[1, 1]", 1)
    assert work("aten::cudnn_convolution_transpose", *cudnn) == expected


@pytest.mark.parametrize("queries", range(8))
@pytest.mark.parametrize("keys", range(8))
@pytest.mark.parametrize("last_key", [False, True])
def test_a_causal_mask_leaves_exactly_its_pairs(queries: int, keys: int, *, last_key: bool) -> None:
    shift = keys - queries if last_key else 0
    left = sum(1 for query in range(queries) for key in range(keys) if key <= query + shift)
    assert pairs(queries, keys, causal=True, last_key=last_key) == left
    assert pairs(queries, keys, causal=False, last_key=last_key) == queries * keys


def test_attention_counts_the_queries_heads() -> None:
    # Grouped: 8 heads of queries, 2 of keys and values; Nq != Nkv.
    query, key = (BF16, [2, 8, 10, 64]), (BF16, [2, 2, 24, 64])
    cudnn = (query, key, key, None, None, None, 10, 24, "False", "0.", "False", "False", None)
    flops_expected = 4 * 2 * 8 * 10 * 24 * 64
    moved = 2 * (2 * (2 * 8 * 10 * 64) + 2 * (2 * 2 * 24 * 64))
    assert work("aten::_cudnn_attention_forward", *cudnn) == (flops_expected, moved, "bf16")
    flipped = ((BF16, [2, 10, 8, 64]), (BF16, [2, 24, 2, 64]), (BF16, [2, 24, 2, 64]))
    flash = (*flipped, None, None, 10, 24, "0.", "False", "False", 0.125, None, None, None, None)
    assert work("aten::_flash_attention_forward", *flash) == (flops_expected, moved, "bf16")


def test_backward_attention_is_five_products() -> None:
    whole = (BF16, [2, 8, 16, 64])
    forward = work("aten::_scaled_dot_product_flash_attention", whole, whole, whole, "0.", "True", "False")
    lse, none = (F32, [2, 8, 16]), (I64, [0])
    backward = work(
        "aten::_scaled_dot_product_flash_attention_backward",
        whole, whole, whole, whole, whole, lse, none, none, 16, 16, "0.", "True",
    )  # fmt: skip
    assert forward is not None
    assert backward is not None
    assert forward[0] == 4 * 2 * 8 * (16 * 17 // 2) * 64
    assert backward[0] == 5 * forward[0] // 2


def test_attention_over_unequal_lengths_or_a_window_is_not_guessed() -> None:
    packed = (BF16, [2048, 8, 64])
    lengths = ("int", [5])
    flash = (packed, packed, packed, lengths, lengths, 512, 512, "0.", "True", "False")
    assert work("aten::_flash_attention_forward", *flash) is None
    whole = (BF16, [2, 16, 8, 64])
    windowed = (whole, whole, whole, None, None, 16, 16, "0.", "True", "False", None, 4, 0)
    assert work("aten::_flash_attention_forward", *windowed) is None
    assert work("aten::_flash_attention_forward", whole, whole, whole) is None  # causal or not: not recorded


def test_elementwise_operands_move_once() -> None:
    big, row = (F32, [64, 100]), (F32, [100])
    assert work("aten::add", big, row, 1) == (6400, 4 * (6400 + 100 + 6400), "fp32")
    assert work("aten::add_", (BF16, [64, 100]), big, 1) == (6400, 2 * 6400 + 4 * 6400 + 2 * 6400, "fp32")
    assert work("aten::mul", big, ("double", [])) == (6400, 4 * 6400 + 8 + 4 * 6400, "fp32")
    assert work("aten::gt", big, 0) == (6400, 4 * 6400 + 6400, "fp32")
    # Where the result goes is no operand: an empty tensor that will be resized, or one that is as large.
    assert work("aten::abs", big, (F32, [0])) == (6400, 8 * 6400, "fp32")
    assert work("aten::clamp_min", big, 0, big) == (6400, 8 * 6400, "fp32")
    assert work("aten::copy_", (BF16, [64, 100]), big, "False") == (0, 6 * 6400, "bf16")
    assert work("aten::fill_", big, 0) == (0, 4 * 6400, "fp32")


def test_reductions_write_what_is_left() -> None:
    big = (F32, [8, 16, 32])
    assert work("aten::sum", big, "[-1]", "False", None) == (4096, 4 * (4096 + 128), "fp32")
    assert work("aten::mean", big, "[]", "False", None) == (4096, 4 * (4096 + 1), "fp32")
    assert work("aten::argmax", big, "1", "False") == (4096, 4 * 4096 + 8 * 256, "fp32")


def test_norms_and_softmax_read_and_write_once() -> None:
    source, row = (BF16, [32, 64]), (BF16, [64])
    assert work("aten::native_layer_norm", source, "[64]", row, row, 1e-5) == (
        7 * 2048, 2 * (2 * 2048 + 2 * 64), "bf16",
    )  # fmt: skip
    assert work("aten::_softmax", source, -1, "True") == (5 * 2048, (2 + 4) * 2048, "bf16")
    wide = (F32, [32, 64])
    assert work("aten::_softmax_backward_data", wide, wide, -1, 15) == (4 * 2048, (4 + 4 + 2) * 2048, "fp32")


def test_lookups_move_what_they_touch() -> None:
    table, index = (BF16, [50000, 64]), (I64, [3, 7])
    assert work("aten::embedding", table, index, -1, "False", "False") == (
        0,
        8 * 21 + 2 * 2 * 21 * 64,
        "bf16",
    )
    rows = work("aten::index_select", table, 0, (I64, [21]))
    assert rows == (0, 8 * 21 + 2 * 2 * 21 * 64, "bf16")
    assert work("aten::gather", table, 1, (I64, [5, 2])) == (0, 10 * (8 + 4), "bf16")


def test_lists_take_their_type_from_the_kernel() -> None:
    shapes = [[8, 16], [8, 32]]
    catting = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<OpaqueType<2u>, unsigned int, 2>"
    assert work("aten::cat", shapes, 1, kernel=catting) == (0, 2 * 2 * (128 + 256), "2-byte")
    adam = "multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>"
    states = [[100], [28]]
    found = work("aten::_fused_adamw_", *(states,) * 4, None, [[1], [1]], kernel=adam)
    assert found == (12 * 128, 7 * 4 * 128, "fp32")
    # More than thirty tensors: torch records no shapes.
    assert work("aten::_fused_adamw_", None, None, None, None, kernel=adam) is None
    assert work("aten::cat", shapes, 1) is None


def test_inductor_kernels_have_bytes_and_no_flops() -> None:
    # The table is larger than what the kernel's 8 x 4 points can touch.
    found = work("triton_per_fused_embedding_0", (I64, [8]), (F32, [5000, 4]), (F32, [8, 4]), 8, 4)
    assert found == (None, 8 * 8 + 2 * 4 * 32, "fp32")
    assert work("triton_tem_fused_mm_0", (F32, [8, 8]), (F32, [8, 8]), (F32, [8, 8])) is None


@given(st.data())
def test_no_arguments_break_a_model(data: st.DataObject) -> None:
    """Recorded arguments may be anything: a model gives sound numbers, or none."""
    name = data.draw(st.sampled_from(sorted(work_models.names())))
    sizes = st.lists(st.integers(0, 9) | st.sampled_from((-1, 10**12)), max_size=4)
    shapes = data.draw(st.lists(sizes | st.lists(sizes, max_size=2), max_size=8))
    kinds = st.sampled_from((F32, BF16, I64, "Scalar", "", "TensorList", "odd"))
    scalars = st.sampled_from(
        ("", "0", "1", "-1", "True", "False", "[1, 1]", "[0, 0]", "[True, True, True]", "x")
    )
    dtypes = data.draw(st.lists(kinds, max_size=8))
    inputs = data.draw(st.lists(scalars, max_size=16))
    texts = json.dumps(shapes)
    found = work_models.work(name, texts, json.dumps(dtypes), texts, json.dumps(inputs), "void k<float>")
    assert found is None or (found.bytes >= 0 and (found.flops is None or found.flops >= 0))


def test_shapes_broadcast() -> None:
    assert broadcast([(3, 1, 5), (4, 1)]) == (3, 4, 5)
    assert broadcast([(), (2,)]) == (2,)
    assert broadcast([(1,), (0,)]) == (0,)
    assert broadcast([]) == ()


# --- which operator counts --------------------------------------------------------------------------------

LINEAR = {"Input Dims": [[4, 8], [16, 8], [16]], "Input type": [F32] * 3}
ADDMM = {"Input Dims": [[16], [4, 8], [8, 16], [], []], "Input type": [F32] * 3 + ["Scalar"] * 2}
COPY = {"Input Dims": [[4, 16], [4, 16], []], "Input type": [F32, F32, "Scalar"]}


def names(trace: foretrace.Trace) -> dict[str, int]:
    """How often each operator counts."""
    work = flops.op_work(trace)
    found = trace.spans["name"].gather(work["span_id"]).cast(pl.String)
    return dict(found.value_counts().rows())


def test_only_the_innermost_product_counts(tmp_path: Path) -> None:
    recording = Recording().op("aten::linear", 0, 20, **LINEAR).op("aten::addmm", 1, 10, **ADDMM)
    recording.launch(2, "sgemm", 30, 40)
    trace = recording.open(tmp_path)
    assert names(trace) == {"aten::addmm": 1}
    assert flops.op_work(trace)["flops"].to_list() == [2 * 4 * 8 * 16]


def test_a_caller_with_a_kernel_of_its_own_does_not_count_the_product_again(tmp_path: Path) -> None:
    recording = Recording().op("aten::linear", 0, 20, **LINEAR).op("aten::addmm", 1, 10, **ADDMM)
    recording.launch(2, "sgemm", 30, 40).launch(12, "bias", 41, 42)
    assert names(recording.open(tmp_path)) == {"aten::addmm": 1}


def test_a_product_that_copies_first_counts_beside_its_copy(tmp_path: Path) -> None:
    recording = Recording().op("aten::addmm", 0, 20, **ADDMM).op("aten::copy_", 1, 5, **COPY)
    recording.launch(2, "copy", 30, 40).launch(12, "sgemm", 41, 42)
    assert names(recording.open(tmp_path)) == {"aten::addmm": 1, "aten::copy_": 1}


def test_a_kernel_of_a_callee_without_model_belongs_to_its_caller(tmp_path: Path) -> None:
    recording = Recording().op("aten::addmm", 0, 20, **ADDMM).op("vendor::fast_gemm", 1, 10)
    recording.launch(2, "fast", 30, 40)
    trace = recording.open(tmp_path)
    assert names(trace) == {"aten::addmm": 1}
    assert flops.kernel_owners(trace)["owner_id"].to_list() == [0]


def test_an_operator_that_launched_nothing_does_not_count(tmp_path: Path) -> None:
    recording = Recording().op("aten::addmm", 0, 20, **ADDMM).op("aten::copy_", 30, 35, **COPY)
    recording.launch(31, "copy", 40, 41)
    assert names(recording.open(tmp_path)) == {"aten::copy_": 1}


def test_without_a_gpu_the_innermost_of_a_family_counts(tmp_path: Path) -> None:
    recording = Recording().op("aten::linear", 0, 20, **LINEAR).op("aten::addmm", 1, 10, **ADDMM)
    recording.op("aten::copy_", 2, 3, **COPY)
    assert names(recording.open(tmp_path)) == {"aten::addmm": 1, "aten::copy_": 1}


def test_a_tf32_kernel_computes_in_tf32(tmp_path: Path) -> None:
    recording = Recording().op("aten::addmm", 0, 9, **ADDMM).op("aten::addmm", 10, 19, **ADDMM)
    recording.launch(1, "cutlass_80_tensorop_s1688gemm_128x128_32x5_tn_align4", 30, 40)
    recording.launch(11, "ampere_sgemm_128x64_tn", 41, 50)
    assert flops.op_work(recording.open(tmp_path))["dtype"].to_list() == ["tf32", "fp32"]


def test_nothing_recorded_is_no_work(tmp_path: Path) -> None:
    assert flops.op_work(Recording().open(tmp_path)).is_empty()
    bare = Recording().op("aten::mm", 0, 5).launch(1, "sgemm", 6, 7)
    assert flops.op_work(bare.open(tmp_path, "bare.json")).is_empty()
    assert flops.op_work(bare.open(tmp_path, "bare.json")).columns == [
        "span_id",
        "flops",
        "bytes",
        "dtype",
        "model",
    ]


# --- against torch ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_products_and_convolutions_match_with_flops(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    x, kernel = torch.randn(2, 6, 20, 20), torch.randn(8, 3, 3, 3)
    with torch.profiler.profile(record_shapes=True, with_flops=True) as profiler:
        torch.mm(torch.randn(30, 40), torch.randn(40, 50))
        torch.nn.functional.linear(torch.randn(4, 30, 40), torch.randn(50, 40), torch.randn(50))
        torch.bmm(torch.randn(3, 30, 40), torch.randn(3, 40, 50))
        torch.baddbmm(torch.randn(3, 30, 50), torch.randn(3, 30, 40), torch.randn(3, 40, 50))
        torch.nn.functional.conv2d(x, kernel, stride=2, padding=1, groups=2)
    path = tmp_path / "cpu.json"
    profiler.export_chrome_trace(str(path))
    trace = foretrace.open(path, cache=False)
    work = flops.op_work(trace).with_columns(name=trace.spans["name"].gather(flops.op_work(trace)["span_id"]))
    matrix = work.filter(pl.col("model").is_in(("gemm", "convolution")))
    ours = dict(matrix.group_by(pl.col("name").cast(pl.String)).agg(pl.col("flops").sum()).rows())
    torchs = {each.key: each.flops for each in profiler.key_averages() if each.flops}
    for name in ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"):
        assert ours[name] == pytest.approx(torchs[name], rel=0.01), name
    convolutions = sum(value for name, value in ours.items() if "conv" in name)
    assert convolutions == pytest.approx(torchs["aten::conv2d"], rel=0.01)


@pytest.mark.slow
def test_a_training_step_matches_the_flop_counter(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    counter_module = pytest.importorskip("torch.utils.flop_counter", reason="torch before 2.1 has none")

    def step() -> None:
        torch.manual_seed(0)
        image = torch.randn(2, 6, 20, 20, requires_grad=True)
        convolution = torch.nn.Conv2d(6, 8, 3, stride=2, padding=1)
        transposed = torch.nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1)
        transposed(convolution(image)).sum().backward()
        query = torch.randn(2, 4, 24, 16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(query, query, query).sum().backward()
        layer = torch.nn.Linear(16, 32)
        layer(torch.randn(7, 16, requires_grad=True)).sum().backward()

    with counter_module.FlopCounterMode(display=False) as counter:
        step()
    with torch.profiler.profile(record_shapes=True) as profiler:
        step()
    path = tmp_path / "step.json"
    profiler.export_chrome_trace(str(path))
    work = flops.op_work(foretrace.open(path, cache=False))
    products = work.filter(pl.col("model").is_in(("gemm", "convolution")))["flops"].sum()
    # The counter has no entry for the attention of CPUs: its formula is asked instead.
    assert products == counter.get_total_flops() > 0
    attention = work.filter(pl.col("model") == "attention")["flops"].to_list()
    shape = (2, 4, 24, 16)
    assert attention == [
        counter_module.sdpa_flop_count(shape, shape, shape),
        counter_module.sdpa_backward_flop_count(shape, shape, shape, shape),
    ]


# --- against the corpus -----------------------------------------------------------------------------------


@needs_corpus
def test_a_gpt_step_does_six_flops_per_parameter_and_token() -> None:
    """12 layers of 12·768² weights and the 50304 x 768 head, 32 x 1024 tokens, causal attention apart."""
    trace = foretrace.open(CORPUS / "h200" / "gpt_healthy.slow.lite.json.gz")
    work = flops.op_work(trace)
    gemms = work.filter(pl.col("model") == "gemm")["flops"].sum() / len(trace.steps)
    weights = 12 * 12 * 768**2 + 50304 * 768
    assert gemms == pytest.approx(6 * weights * 32 * 1024, rel=0.01)
    attention = work.filter(pl.col("model") == "attention")["flops"].sum() / len(trace.steps)
    forward = 12 * 4 * 32 * 12 * (1024 * 1025 // 2) * 64
    assert attention == pytest.approx(3.5 * forward)


@needs_corpus
@pytest.mark.parametrize("kind", ["slow", "fixed"])
def test_compiled_and_eager_do_the_same_products(kind: str) -> None:
    trace = foretrace.open(CORPUS / "h200" / f"gpt_healthy.{kind}.lite.json.gz")
    work = flops.op_work(trace)
    assert (
        work.filter(pl.col("model") == "gemm")["flops"].sum() == 3 * 6 * (144 * 768**2 + 50304 * 768) * 32768
    )


@needs_corpus
def test_a_resnet_step_does_its_published_work() -> None:
    """4.09 G multiply-adds an image of 224 x 224 forward, three times that in training, 32 images a step."""
    trace = foretrace.open(CORPUS / "h200" / "resnet50.slow.lite.json.gz")
    work = flops.op_work(trace).filter(pl.col("model").is_in(("gemm", "convolution")))
    assert work["flops"].sum() / len(trace.steps) == pytest.approx(3 * 2 * 4.09e9 * 32, rel=0.02)
