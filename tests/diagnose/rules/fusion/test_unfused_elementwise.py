"""torch.compile as a finding: what it would fuse, what that takes, what the host saves, and what stands in its way."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.fusion.unfused_elementwise import unfused_elementwise
from foretrace.errors import MissingDataError
from foretrace.trace import Trace
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import ADD, CAST, Op, device_bound, recorded
from tests.diagnose.loops import findings

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
COUNT = 1 << 26
BYTES = 4 * COUNT
BANDWIDTH = 4.8e12 * 0.78  # of fused pointwise kernels
SIDE = 8192  # of a square of COUNT elements


def unary(name: str = "aten::relu", dur: float = 140, count: int = COUNT) -> Op:
    return Op(name, ADD, dur, [[count]], ["float"])


def matmul(dur: float = 500) -> Op:
    return Op("aten::mm", GEMM, dur, [[SIDE, SIDE], [SIDE, SIDE]], ["float", "float"])


def test_a_chain_moves_its_first_operand_and_its_last_result(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary() for _ in range(6)] + [matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=6 * 140 + 500)
    fused_us = 2 * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us + 500, rel=0.02)
    assert found.evidence["operators_before_count"] == 7
    assert found.evidence["operators_after_count"] == 2
    assert found.evidence["fusable_ns"] == pytest.approx(6 * 140_000, rel=0.01)
    assert found.evidence["fused_ns"] == pytest.approx(fused_us * 1_000, rel=0.01)
    assert found.evidence["most_saving"] == ["aten::relu"] * 6
    assert (found.label, found.alternatives) == ("default", ())
    assert found.general


def test_costly_functions_are_bound_by_their_instructions(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary("aten::gelu") for _ in range(12)])
    (found,) = findings(unfused_elementwise, trace, step_us=12 * 140)
    fused_us = 12 * 30 * COUNT / (66.9e12 / 2) * 1e6 + 1
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us, rel=0.03)


def test_an_operand_from_outside_is_read_too(tmp_path: Path) -> None:
    add = Op("aten::add", ADD, 210, [[COUNT], [COUNT], []], ["float", "float", "Scalar"])
    trace = device_bound(tmp_path, [unary(), add, unary(), matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=2 * 140 + 210 + 500)
    fused_us = 3 * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us + 500, rel=0.02)


def test_between_products_single_operators_leave_nothing_to_fuse(tmp_path: Path) -> None:
    ops = [unary(), matmul(), unary(), matmul(), unary(), matmul()]
    assert findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=1920) == []


def log_softmax(dur: float = 300) -> Op:
    shapes, dtypes = [[4096, COUNT // 4096], [], []], ["float", "Scalar", "Scalar"]
    return Op("aten::_log_softmax", "void cunn_SoftMaxForward<4, float>", dur, shapes, dtypes)


BACKWARD = ("autograd::engine::evaluate_function: Backward0",)


def test_the_optimizer_is_left_out(tmp_path: Path) -> None:
    updates = [Op("aten::_foreach_add_", "multi_tensor_apply_kernel", 300, [[], []], ["TensorList", ""])] * 4
    trace = device_bound(tmp_path, [unary(), matmul(), *updates])
    assert findings(unfused_elementwise, trace, step_us=1840) == []


def test_a_loss_that_may_lie_outside_widens_the_range(tmp_path: Path) -> None:
    """A light recording does not tell: fused at best, and half of that is in the range."""
    losses = [log_softmax(), unary("aten::neg"), unary("aten::abs")]
    gradient = Op("aten::mm", GEMM, 500, [[SIDE, SIDE], [SIDE, SIDE]], ["float", "float"], outer=BACKWARD)
    trace = device_bound(tmp_path, [matmul(), *losses, gradient])
    (found,) = findings(unfused_elementwise, trace, step_us=1000 + 300 + 280)
    fused_us = 3 * BYTES / (4.8e12 * 0.60) * 1e6 + 1  # rows of 16,384 values are read twice
    assert found.predicted
    assert found.change
    assert "loss_in_model" not in found.evidence
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1000 + fused_us, rel=0.02)
    assert found.predicted.after_ns.high / 1e3 >= 1000 + (fused_us + 580) / 2


def test_a_gate_takes_the_product_in_between_as_its_other_operand(tmp_path: Path) -> None:
    """silu(x @ a) * (x @ b): the first product's result and the second's are read once, the chain's result written."""
    wide = [8192, COUNT // 8192]

    def product(dur: float = 500) -> Op:
        return Op("aten::mm", GEMM, dur, [[8192, 512], [512, COUNT // 8192]], ["float", "float"])

    gate = Op("aten::mul", ADD, 210, [wide, wide], ["float", "float"])
    ops = [product(), Op("aten::sigmoid", ADD, 140, [wide], ["float"]), product(), gate, matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=3 * 500 + 350)
    fused_us = 3 * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.evidence["most_saving"] == ["aten::sigmoid", "aten::mul"]
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(3 * 500 + fused_us, rel=0.02)


def test_copies_that_follow_one_another_are_one(tmp_path: Path) -> None:
    """The compiler does not make the first at all: one kernel reads and writes."""
    copy = Op("aten::copy_", ADD, 200, [[COUNT], [COUNT], []], ["float", "float", "Scalar"])
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, [copy, copy, matmul()]), step_us=900)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(2 * BYTES / BANDWIDTH * 1e6 + 501, rel=0.02)


def host_bound(folder: Path, count: int = 100) -> Trace:
    """Small operators in front of a product, of 20 µs of host each."""
    small = [unary(dur=5, count=1 << 16) for _ in range(count)]
    return device_bound(folder, [*small, matmul(5)])


def test_where_the_step_follows_the_host_fewer_operators_are_launched(tmp_path: Path) -> None:
    """100 operators and a product, of 16 µs and a call of 4 each: two kernels of 64 and 36 and one product are left.

    To enter the graph costs 80 µs, and to check the product's guards 0.3 of what an operator costs.
    """
    (found,) = findings(unfused_elementwise, host_bound(tmp_path), step_us=101 * 20)
    assert found.evidence["operators_after_count"] == 3
    assert found.predicted
    after_us = 3 * (0.8 * 16 + 4) + 80 + 0.3 * 16
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(after_us, rel=0.05)
    assert found.predicted.verdict == "gain"


def test_cuda_graphs_of_compiled_code_are_alternatives(tmp_path: Path) -> None:
    """No host but the replay: 50 µs through the compiler's guards, 15 for the step as a whole."""
    (found,) = findings(unfused_elementwise, host_bound(tmp_path), step_us=101 * 20)
    after = {
        other.label: other.predicted.after_ns.point / 1e3 for other in found.alternatives if other.predicted
    }
    assert set(after) == {"reduce-overhead", "whole-step"}
    assert found.predicted
    assert after["whole-step"] < after["reduce-overhead"] < found.predicted.after_ns.point / 1e3
    assert after["reduce-overhead"] >= 50
    assert after["whole-step"] >= 15
    assert all(not other.may_lead for other in found.alternatives)


def test_graphs_are_alternatives_where_only_the_compiled_step_follows_the_host(tmp_path: Path) -> None:
    """A resize of 6 ms by few blocks becomes a pointwise kernel of a few µs; 60 products of 5 µs then wait for the host."""
    resize = Op(
        "aten::upsample_bicubic2d", ADD, 6_000, [[1, 1024, 37, 37], [], [], [], []],
        ["float", "ScalarList", "Scalar", "", ""], inputs=["", "[37, 66]", "False", "", ""],
    )  # fmt: skip
    trace = device_bound(tmp_path, [resize, *(matmul(5) for _ in range(60)), matmul(5)])
    (found,) = findings(unfused_elementwise, trace, step_us=6_000 + 61 * 5)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 < 2_000
    assert [other.label for other in found.alternatives] == ["reduce-overhead", "whole-step"]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["transformers", "site-packages/transformers"])
def test_transformers_makes_masks_where_it_is_compiled(tmp_path: Path, version: str) -> None:
    """8,192 tokens, causal: 340 µs without a mask, and 3.5 times that with one."""
    heads = [1, 16, 8192, 64]
    inputs = ["", "", "", "", "", "", "8192", "8192", "True", "0.", "True", "False", "0.125"]
    attention = Op(
        "aten::_cudnn_attention_forward", "cudnn_generated_fort_native_sdpa", 340, [heads] * 3 + [[]] * 10,
        ["c10::BFloat16"] * 3 + [""] * 10, inputs=inputs,
    )  # fmt: skip
    ops = [attention, *(unary() for _ in range(8)), matmul()]
    plain = device_bound(tmp_path, ops)
    step_us = 340 + 8 * 140 + 500
    (before,) = findings(unfused_elementwise, plain, step_us=step_us)
    assert "mask" not in before.says
    looks = recorded(ops)
    looks.python(f"{version}/masking_utils.py(236): _ignore_causal_mask_sdpa", 1, 2)
    (found,) = findings(unfused_elementwise, looks.open(tmp_path, "looks.json"), step_us=step_us)
    assert "transformers leaves out its mask only where it is not compiled" in found.says
    assert before.predicted
    assert found.predicted
    longer_us = (found.predicted.after_ns.point - before.predicted.after_ns.point) / 1e3
    assert longer_us == pytest.approx(340 * (1213.3 / 343.6 - 1), rel=0.2)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "aten::nonzero",
            "breaks its graph 1 times a step, where values are read or sizes depend on them (aten::nonzero)",
        ),
        ("aten::_local_scalar_dense", "or sizes depend on them (aten::_local_scalar_dense)"),
        ("aten::_cudnn_rnn", "recurrent layers"),
    ],
)
def test_what_breaks_the_compilers_graph_takes_the_promise_back(tmp_path: Path, name: str, why: str) -> None:
    ops = [*(unary() for _ in range(6)), Op(name, ADD, 10, [[COUNT]], ["float"]), matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=6 * 140 + 510)
    assert why in found.says
    assert found.predicted
    assert found.predicted.verdict == "uncertain"


@pytest.mark.parametrize(
    ("breaks", "operators", "verdict"),
    [
        (("aten::nonzero",), 30, "gain"),
        (("aten::nonzero",), 29, "uncertain"),
        (("aten::_local_scalar_dense",), 30, "gain"),
        (("aten::nonzero", "aten::_local_scalar_dense"), 60, "gain"),
        (("aten::nonzero", "aten::_local_scalar_dense"), 59, "uncertain"),  # sizes and reads together
    ],
)
def test_breaks_are_borne_where_thirty_operators_lie_between_them(
    tmp_path: Path, breaks: tuple[str, ...], operators: int, verdict: str
) -> None:
    ops = [
        *(unary() for _ in range(operators - len(breaks))),
        *(Op(name, ADD, 10, [[COUNT]], ["float"]) for name in breaks),
    ]
    step_us = sum(op.dur for op in ops)
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=step_us)
    assert found.predicted
    assert found.predicted.verdict == verdict
    assert ("In its way" in found.says) == (verdict == "uncertain")


def test_compiled_kernels_are_fused_already(tmp_path: Path) -> None:
    ops = [
        Op("triton_poi_fused_add_0", "triton_poi_fused_add_0", 200, [[COUNT]], ["float"]) for _ in range(5)
    ]
    assert findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=1000) == []


def test_without_shapes_it_could_not_look(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [Op("aten::relu", ADD, 140) for _ in range(6)])
    with pytest.raises(MissingDataError, match="record_shapes"):
        list(unfused_elementwise(Case(trace)))


def test_a_cast_in_the_chain_changes_what_is_written(tmp_path: Path) -> None:
    half = Op("aten::copy_", CAST, 100, [[COUNT], [COUNT], []], ["c10::BFloat16", "float", "Scalar"])
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, [unary(), unary(), half]), step_us=380)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(1.5 * BYTES / BANDWIDTH * 1e6 + 1, rel=0.03)


@needs_corpus
@pytest.mark.parametrize("kind", ["lite", "rich"])
def test_the_measured_pair_and_the_healthy_program(kind: str) -> None:
    trace = foretrace.open(CORPUS / "h200" / f"elementwise_chain.slow.{kind}.json.gz", cache=False)
    (found,) = findings(unfused_elementwise, trace, step_us=2560)
    assert found.predicted
    assert found.predicted.speedup.point == pytest.approx(6.908, rel=0.10)
    healthy = foretrace.open(CORPUS / "h200" / f"gpt_healthy.slow.{kind}.json.gz", cache=False)
    (found,) = findings(unfused_elementwise, healthy, step_us=85554.6)
    assert found.predicted
    assert found.predicted.speedup.low <= 1.183 <= found.predicted.speedup.high
    if kind == "rich":  # it tells that the loss is computed outside of the model
        assert found.evidence["loss_in_model"] is False
        assert found.predicted.speedup.point == pytest.approx(1.183, rel=0.05)
    compiled = foretrace.open(CORPUS / "h200" / f"gpt_healthy.fixed.{kind}.json.gz", cache=False)
    assert findings(unfused_elementwise, compiled, step_us=72305.8) == []


@pytest.mark.parametrize(
    ("dimensions", "after"), [("[]", 1 + 2 + 1 + 1), ("[1]", 1 + 1)], ids=["all", "rows"]
)
def test_a_reduction_over_everything_parts_a_kernel(tmp_path: Path, dimensions: str, after: int) -> None:
    """What divides by the maximum of a whole tensor has to wait for it; the maximum of a row it can keep."""
    whole, made = [4096, COUNT // 4096], [1, 1] if dimensions == "[]" else [4096, 1]
    amax = Op("aten::amax", ADD, 100, [whole, [], []], ["float", "ScalarList", "Scalar"],
              inputs=["", dimensions, "True"])  # fmt: skip
    divided = Op("aten::div", ADD, 140, [whole, made], ["float", "float"])
    relu = Op("aten::relu", ADD, 140, [whole], ["float"])
    trace = device_bound(tmp_path, [relu, relu, amax, divided, relu, relu, relu, matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=6 * 140 + 100 + 500)
    assert found.evidence["operators_after_count"] == after
