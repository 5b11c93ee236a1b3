"""Roles and phases: hand-made steps with known answers, brute force on real ones, and the corpus's truths."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.device import attention_pieces
from foretrace.analyze.concepts.device.device_roles import ROLES, classified
from foretrace.analyze.concepts.device.phases import PHASES
from foretrace.errors import MissingDataError
from tests.analyze.closures import AUTOGRAD, closure_steps
from tests.builders import MAIN_THREAD, Recording
from tests.corpus import CORPUS, needs_corpus

GEMM = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(x)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(x)"
CAST = "void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(x)>"


class Step:
    """A recording in which every operator launches one kernel, one after another on the GPU."""

    def __init__(self) -> None:
        self.recording = Recording()
        self.at = 0.0
        self.gpu = 1000.0

    def run(
        self, op: str, kernel: str, dur: float, *shapes: list[int], thread: int = 100, **args: object
    ) -> None:
        dims = (
            {"Input Dims": [list(each) for each in shapes], "Input type": ["float"] * len(shapes)}
            if shapes
            else {}
        )
        self.recording.op(op, self.at, self.at + 8, thread=thread, **dims, **args)
        self.recording.launch(self.at + 2, kernel, self.gpu, self.gpu + dur, thread=thread)
        self.at += 10
        self.gpu += dur


def rows(table: pl.DataFrame, *keys: str) -> dict[tuple[object, ...], int]:
    return {tuple(row[key] for key in keys): row["total_ns"] for row in table.iter_rows(named=True)}


def test_attention_pieces_are_found_by_structure(tmp_path: Path) -> None:
    step = Step()
    step.run("aten::mm", GEMM, 5, [64, 32], [32, 32])
    step.run("aten::bmm", GEMM, 10, [6, 16, 8], [6, 8, 16])  # QK^T of 2 x 3 heads
    step.run("aten::mul", ADD, 7, [2, 3, 16, 16], [])
    step.run("aten::_to_copy", CAST, 3, [2, 3, 16, 16])
    step.run("aten::_softmax", SOFTMAX, 4, [2, 3, 16, 16], [], [])
    step.run("aten::native_dropout", ADD, 2, [2, 3, 16, 16], [], [])
    step.run("aten::bmm", GEMM, 11, [6, 16, 16], [6, 16, 8])  # PV
    step.run("aten::bmm", GEMM, 13, [6, 16, 16], [6, 16, 9])  # the gradient of one of them
    step.run("aten::add", ADD, 17, [2, 16, 24], [2, 16, 24])  # the residual, of another size
    step.run("aten::_log_softmax", SOFTMAX, 19, [2, 16, 512], [], [])  # the loss
    step.run("aten::bmm", GEMM, 23, [6, 16, 8], [6, 8, 4])  # another batched multiply
    trace = step.recording.open(tmp_path)
    result = analyze.run(trace, "roles", by="role")
    assert rows(result.table, "role") == {
        ("attention pieces",): 50_000,
        ("gemm",): 28_000,
        ("softmax",): 19_000,
        ("elementwise",): 17_000,
    }
    assert result.values["attention_pieces_pct"] == pytest.approx(100 * 50 / 114)
    parts = rows(analyze.run(trace, "roles", by="role", attention_parts=True).table, "role")
    assert parts[("attention: scores (QK^T)",)] == 10_000
    assert parts[("attention: scale, mask and copies",)] == 10_000
    assert parts[("attention: softmax",)] == 4_000
    assert parts[("attention: dropout",)] == 2_000
    assert parts[("attention: context (PV)",)] == 24_000


def test_a_softmax_alone_is_no_attention(tmp_path: Path) -> None:
    step = Step()
    step.run("aten::_softmax", SOFTMAX, 4, [2, 3, 16, 16], [], [])
    step.run("aten::bmm", GEMM, 10, [6, 16, 8], [6, 8, 12])
    assert analyze.run(step.recording.open(tmp_path), "roles").values["attention_pieces_pct"] == 0


def test_the_fallback_of_sdpa_is_in_pieces_even_without_shapes(tmp_path: Path) -> None:
    step = Step()
    step.recording.op("aten::_scaled_dot_product_attention_math", 0, 100)
    step.run("aten::bmm", GEMM, 10)
    step.run("aten::softmax", SOFTMAX, 5)
    result = analyze.run(step.recording.open(tmp_path), "roles")
    assert result.values["attention_pieces_pct"] == pytest.approx(100)


def test_an_operator_gives_its_helpers_a_role(tmp_path: Path) -> None:
    step = Step()
    reduce = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, x> >(x)"
    step.run("aten::cudnn_convolution", GEMM, 10)
    step.run("aten::cudnn_convolution", "void cudnn::ops::nchwToNhwcKernel<float>(x)", 3)
    step.run("aten::native_layer_norm_backward", reduce, 5)
    step.run("aten::embedding_dense_backward", "void cub::DeviceRadixSortOnesweepKernel<x>", 7)
    step.run("aten::_flash_attention_forward", "void my_new_flash<x>", 11)
    step.run("aten::addmm", ADD, 13)
    step.run("aten::sum", reduce, 17)
    assert rows(analyze.run(step.recording.open(tmp_path), "roles", by="role").table, "role") == {
        ("reduction",): 17_000,
        ("elementwise",): 13_000,
        ("fused attention",): 11_000,
        ("convolution",): 10_000,
        ("embedding",): 7_000,
        ("norm",): 5_000,
        ("copy",): 3_000,
    }


def checkpointed() -> Recording:
    """One step as non-reentrant checkpointing records it: the forward again inside the first backward node."""
    recording = Recording()
    recording.step(1, 0, 1000)
    recording.op("aten::linear", 10, 40, **{"Sequence number": 5, "Fwd thread id": 0})
    recording.launch(20, GEMM, 2000, 2010)
    recording.op("autograd::engine::evaluate_function: AddmmBackward0", 100, 200, thread=200,
                 **{"Sequence number": 5, "Fwd thread id": 1})  # fmt: skip
    recording.op("AddmmBackward0", 105, 195, thread=200, **{"Sequence number": 5, "Fwd thread id": 1})
    recording.op("aten::linear", 110, 140, thread=200, **{"Sequence number": 9, "Fwd thread id": 0})
    recording.op("aten::addmm", 112, 138, thread=200)
    recording.launch(120, GEMM, 2020, 2050, thread=200)
    recording.op("aten::mm", 150, 180, thread=200)
    recording.launch(160, GEMM, 2060, 2120, thread=200)
    recording.annotation("Optimizer.step#AdamW.step", 300, 400)
    recording.op("aten::add_", 310, 340)
    recording.launch(320, ADD, 2200, 2205)
    recording.runtime("cudaGraphLaunch", 500, 510, correlation=77)
    return recording.kernel(GEMM, 2300, 2307, correlation=77)


def test_phases(tmp_path: Path) -> None:
    result = analyze.run(checkpointed().open(tmp_path), "roles")
    assert rows(result.table, "role", "phase") == {
        ("gemm", "backward"): 60_000,
        ("gemm", "recompute"): 30_000,
        ("gemm", "forward"): 10_000,
        ("gemm", "unknown"): 7_000,
        ("elementwise", "optimizer"): 5_000,
    }
    assert result.values["recompute_pct"] == pytest.approx(100 * 30 / 112)


def test_a_backward_inside_the_recomputation_is_backward(tmp_path: Path) -> None:
    """Reentrant checkpointing runs autograd inside a node."""
    recording = Recording()
    node = {"Sequence number": 15, "Fwd thread id": 1}
    recording.op("autograd::engine::evaluate_function: CheckpointFunctionBackward", 0, 100, **node)
    recording.op("aten::linear", 10, 30, **{"Sequence number": 20, "Fwd thread id": 0})
    recording.launch(15, GEMM, 1000, 1001)
    recording.op(
        "autograd::engine::evaluate_function: AddmmBackward0",
        40,
        60,
        **{"Sequence number": 20, "Fwd thread id": 1},
    )
    recording.op("aten::mm", 45, 55)
    recording.launch(50, GEMM, 1010, 1012)
    table = analyze.run(recording.open(tmp_path), "roles", by="phase").table
    assert rows(table, "phase") == {("backward",): 2_000, ("recompute",): 1_000}


def test_steps_and_orphans(tmp_path: Path) -> None:
    recording = Recording()
    for number in (1, 2):
        recording.step(number, 100 * number, 100 * number + 90)
        recording.op("aten::mm", 100 * number + 10, 100 * number + 20)
        recording.launch(100 * number + 12, GEMM, 100 * number + 20, 100 * number + 20 + 10 * number)
    recording.kernel(ADD, 0, 50)
    trace = recording.open(tmp_path)
    result = analyze.run(trace, "roles")
    assert rows(result.table, "role") == {("gemm",): 30_000}
    assert result.table["per_step_ns"].to_list() == [15_000.0]
    assert any("queued before the recording began" in note for note in result.notes)
    split = analyze.run(trace, "roles", per_step=True).table
    assert rows(split, "step") == {(1,): 10_000, (2,): 20_000}


def test_the_top_kernel_and_its_calls(tmp_path: Path) -> None:
    step = Step()
    for dur in (3, 4):
        step.run("aten::mm", GEMM, dur)
    step.run("aten::mm", "ampere_sgemm_128x64_nn", 6)
    row = analyze.run(step.recording.open(tmp_path), "roles").table.row(0, named=True)
    assert (row["calls_count"], row["top_kernel"], row["top_kernel_calls_count"], row["top_kernel_ns"]) == (
        3,
        GEMM,
        2,
        7_000,
    )


def test_without_a_gpu(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="ProfilerActivity"):
        analyze.run(
            Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200"}])
            .op("aten::mm", 0, 10)
            .open(tmp_path),
            "roles",
        )
    with pytest.raises(MissingDataError, match="computes on the CPU"):
        analyze.run(Recording().op("aten::mm", 0, 10).open(tmp_path), "roles")


def test_shapes_that_are_no_shapes() -> None:
    for text in ("", "{}", "[", "null", '[["a"]]', "[[[1,2],[3,4]]]", "[1, 2]", "[[true, 1, 2]]"):
        assert attention_pieces.operands(text) == ()
        assert attention_pieces.product(text) is None
    for text in ("[[2,3,4],[2,4,5]]", "[[2,3,5],[2,3,4],[2,4,5],[],[]]"):
        multiplied = attention_pieces.product(text)
        assert multiplied
        assert multiplied.made == (2, 3, 5)
    assert attention_pieces.product("[[2,3,4],[2,5,5]]") is None


def brute_phase(
    trace: foretrace.Trace,
    row: dict[str, object],
    spans: list[dict[str, object]],
    ops: dict[int, dict[str, object]],
) -> str:
    """The phase by walking up one call after another."""
    at = row["op_id"] if row["op_id"] is not None else row["launch_id"]
    nearest, node, optimizer, linked = None, False, False, False
    while at is not None:
        span = spans[at]  # type: ignore[call-overload]
        name, op = str(span["name"]), ops.get(at, {})  # type: ignore[call-overload]
        linked |= span["kind"] == "op"
        optimizer |= name.startswith("Optimizer.") or "torch/optim/" in name
        back = (
            name.startswith("autograd::engine")
            or "AccumulateGrad" in name
            or (op.get("forward_thread") or 0) > 0
        )
        back |= name.rstrip("0123456789").endswith("Backward") or op.get("forward_id") is not None
        ahead = op.get("forward_thread") == 0 and op.get("sequence") is not None
        if nearest is None and (back or ahead):
            nearest = "back" if back else "ahead"
        node |= back
        at = span["parent_id"]
    if optimizer or ("multi_tensor_apply" in str(row["name"]) and not node):
        return "optimizer"
    if node:
        return "recompute" if nearest == "ahead" else "backward"
    return "forward" if linked else "unknown"


@needs_corpus
@pytest.mark.parametrize(
    "name",
    [
        "h200/naive_attention.slow.rich",
        "h200/gpt_healthy.fixed.lite",
        "h200/resnet50.slow.lite",
        "h200/decode_launch_bound.fixed.lite",
    ],
)
def test_phases_against_brute_force(name: str) -> None:
    trace = foretrace.open(CORPUS / f"{name}.json.gz")
    spans = trace.spans.to_dicts()
    ops = {
        row["span_id"]: row
        for row in trace.ops.select("span_id", "sequence", "forward_thread", "forward_id").to_dicts()
    }
    work = classified(trace).to_dicts()
    for row in random.Random(1).sample(work, min(len(work), 600)):
        assert PHASES[row["phase"]] == brute_phase(trace, row, spans, ops), row["name"]


@needs_corpus
@pytest.mark.parametrize("kind", ["lite", "rich"])
def test_naive_attention(kind: str) -> None:
    """The issue's: at least 60 % in pieces before the fix, none after it."""
    slow = analyze.run(foretrace.open(CORPUS / f"h200/naive_attention.slow.{kind}.json.gz"), "roles")
    fixed = analyze.run(foretrace.open(CORPUS / f"h200/naive_attention.fixed.{kind}.json.gz"), "roles")
    assert float(slow.values["attention_pieces_pct"] or 0) >= 60
    assert slow.values["fused_attention_pct"] == 0
    assert fixed.values["attention_pieces_pct"] == 0
    assert float(fixed.values["fused_attention_pct"] or 0) > 5


@needs_corpus
def test_parts_sum_to_the_whole_on_every_recording() -> None:
    for path in sorted(CORPUS.rglob("*.json*")):
        if "truth" in path.name or "expected" in path.name or "rocprof" in path.parts:
            continue
        trace = foretrace.open(path)
        try:
            result = analyze.run(trace, "roles")
        except MissingDataError:
            assert classified(trace).is_empty()
            continue
        linked = trace.device_spans["launch_id"].null_count() < trace.device_spans.height
        orphan = pl.col("launch_id").is_null() & pl.col("op_id").is_null() if linked else pl.lit(value=False)
        mine = trace.device_spans.filter(~orphan)
        assert int(result.table["total_ns"].sum()) == int(mine["dur_ns"].sum()) == result.values["total_ns"]
        assert int(result.table["calls_count"].sum()) == mine.height
        assert result.table["total_pct"].sum() == pytest.approx(100)
        assert set(result.table["role"]) <= set(ROLES)
        split = analyze.run(trace, "roles", attention_parts=True, per_step=True)
        assert int(split.table["total_ns"].sum()) == result.values["total_ns"]


# ../seeds/004: milliseconds of GPU kernels over 30 steps, as printed, and the printed shares.
CS336 = (
    ("aten::mm", "Kernel2", 1004.806, ("gemm", 37.04)),
    ("aten::add", ADD, 963.182, ("elementwise", 35.51)),
    ("aten::_fused_adamw_", "void at::native::multi_tensor_apply_kernel<x, FusedAdamMathFunctor<x>>", 602.932, ("optimizer", 22.23)),
    ("aten::_softmax_backward_data", "void cunn_SoftMaxBackward<x>", 72.982, ("softmax", 2.69 + 1.16)),
    ("aten::_softmax", "void cunn_SoftMaxForward<x>", 31.417, ("softmax", 2.69 + 1.16)),
    ("aten::sum", "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<x>>", 35.158, ("reduction", 1.30)),
    ("aten::cumsum", "void cub::DeviceScanKernel<x>", 2.243, ("other", 0.08)),
)  # fmt: skip


def test_the_categories_of_cs336(tmp_path: Path) -> None:
    step = Step()
    for op, kernel, length, _ in CS336:
        step.run(op, kernel, length * 1000)
    result = analyze.run(step.recording.open(tmp_path), "roles", by="role")
    assert result.values["total_ns"] == 2_712_720_000
    shares = {row["role"]: row["total_pct"] for row in result.table.iter_rows(named=True)}
    assert shares == {role: pytest.approx(share, abs=0.011) for *_, (role, share) in CS336}
    top = result.table.row(0, named=True)
    assert (top["top_kernel"], top["top_kernel_ns"]) == ("Kernel2", 1_004_806_000)


@pytest.mark.parametrize("thread", [AUTOGRAD, MAIN_THREAD])
def test_a_closure_in_an_optimizers_step_is_not_the_optimizers(tmp_path: Path, thread: int) -> None:
    """Forward and backward keep their phases; setting gradients to zero and what follows the backward are updates."""
    trace = closure_steps(thread=thread).open(tmp_path)
    table = analyze.run(trace, "roles").table.group_by("phase").agg(pl.col("total_ns").sum())
    assert rows(table, "phase") == {
        ("forward",): 10_000,
        ("backward",): 20_000,
        ("optimizer",): 40_000 + 80_000,
    }
