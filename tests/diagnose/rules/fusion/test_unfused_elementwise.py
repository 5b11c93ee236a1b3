"""Chains of pointwise kernels: what lies between two kernels that cannot be fused, and what one kernel would take."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus import CORPUS, needs_corpus
from diagnose.kernels import ADD, CAST, Op, device_bound

import foretrace
from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.fusion.unfused_elementwise import unfused_elementwise
from foretrace.errors import MissingDataError
from tests.diagnose.loops import findings

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
COUNT = 1 << 26
BYTES = 4 * COUNT
BANDWIDTH = 4.8e12 * 0.8


def unary(name: str = "aten::relu", dur: float = 140, count: int = COUNT) -> Op:
    return Op(name, ADD, dur, [[count]], ["float"])


def matmul(dur: float = 500) -> Op:
    sides = [[4096, 4096], [4096, 4096]]
    return Op("aten::mm", GEMM, dur, sides, ["c10::BFloat16", "c10::BFloat16"])


def test_a_chain_moves_its_first_operand_and_its_last_result(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary() for _ in range(6)] + [matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=6 * 140 + 500)
    fused_us = 2 * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.predicted.verdict == "gain"
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us + 500, rel=0.02)
    assert found.evidence["longest_chain_count"] == 6


def test_costly_functions_are_bound_by_their_instructions(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [unary("aten::gelu") for _ in range(12)])
    (found,) = findings(unfused_elementwise, trace, step_us=12 * 140)
    fused_us = 12 * 30 * COUNT / (66.9e12 / 2) * 1e6 + 1
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us, rel=0.03)


def test_an_operand_that_may_come_from_outside_counts_half(tmp_path: Path) -> None:
    add = Op("aten::add", ADD, 210, [[COUNT], [COUNT], []], ["float", "float", "Scalar"])
    trace = device_bound(tmp_path, [unary(), add, unary(), matmul()])
    (found,) = findings(unfused_elementwise, trace, step_us=2 * 140 + 210 + 500)
    fused_us = 2.5 * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us + 500, rel=0.02)


def test_matrix_products_and_other_sizes_part_chains(tmp_path: Path) -> None:
    ops = [unary(), matmul(), unary(), matmul(), unary(count=COUNT // 2, dur=70), matmul()]
    assert findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=1850) == []


def log_softmax(dur: float = 300) -> Op:
    shapes, dtypes = [[4096, COUNT // 4096], [], []], ["float", "Scalar", "Scalar"]
    return Op("aten::_log_softmax", "void cunn_SoftMaxForward<4, float>", dur, shapes, dtypes)


def test_the_loss_and_the_optimizer_are_left_out(tmp_path: Path) -> None:
    picked = Op("aten::nll_loss_forward", "nll_loss_forward_reduce_cuda_kernel_2d", 10, [[4096, COUNT // 4096], [4096]],
                ["float", "long int"])  # fmt: skip
    updates = [Op("aten::_foreach_add_", "multi_tensor_apply_kernel", 300, [[], []], ["TensorList", ""])] * 4
    ops = [unary(), log_softmax(), picked, *updates]
    assert findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=1650) == []


def test_a_loss_of_the_programs_own_is_a_chain_like_any_other(tmp_path: Path) -> None:
    """The slowest reduction in it stays as it was."""
    ops = [unary(), log_softmax(), unary(), unary(), matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=3 * 140 + 300 + 500)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(301 + 500, rel=0.02)


def test_a_gate_takes_the_product_in_between_as_its_other_operand(tmp_path: Path) -> None:
    """silu(x @ a) * (x @ b): the first product's result and the second's are read once, the chain's result written."""
    wide = [8192, COUNT // 8192]

    def product(dur: float = 500) -> Op:
        return Op(
            "aten::mm", GEMM, dur, [[8192, 512], [512, COUNT // 8192]], ["c10::BFloat16", "c10::BFloat16"]
        )

    gate = Op("aten::mul", ADD, 210, [wide, wide], ["float", "float"])
    square = Op("aten::mul", ADD, 210, [wide, wide], ["float", "float"])
    ops = [product(), Op("aten::sigmoid", ADD, 140, [wide], ["float"]), square, product(), gate, matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=3 * 500 + 560)
    fused_us = (1 + 0.5 + 0.5 + 1) * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.evidence["chains_per_step_count"] == 1
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(3 * 500 + fused_us, rel=0.02)


def test_copies_alone_are_no_chain(tmp_path: Path) -> None:
    """Each has to read and write all of its tensor, in one kernel or in two."""
    copy = Op("aten::copy_", ADD, 200, [[COUNT], [COUNT], []], ["float", "float", "Scalar"])
    assert findings(unfused_elementwise, device_bound(tmp_path, [copy, copy, matmul()]), step_us=900) == []


def test_what_is_changed_in_place_may_live_on(tmp_path: Path) -> None:
    """Half of reading and writing it; a copy into a tensor is written, and what follows begins anew."""
    changed = Op("aten::sub_", ADD, 210, [[COUNT], [COUNT], []], ["float", "float", "Scalar"])
    stored = Op("aten::copy_", CAST, 110, [[COUNT], [COUNT], []], ["c10::BFloat16", "float", "Scalar"])
    ops = [unary(), changed, stored, unary(), unary(), matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=3 * 140 + 320 + 500)
    # First operand; the other of sub_ and its own there and back; the copy in half precision; operand and result again.
    fused_us = (1 + 0.5 + 1 + 0.5 + 1 + 1) * BYTES / BANDWIDTH * 1e6 + 1
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(fused_us + 500, rel=0.02)


def test_where_the_step_follows_the_host_compiled_code_launches_less(tmp_path: Path) -> None:
    """20 operators of 20 µs each and one product: one launch of 36 µs, and 16 µs more for the product."""
    ops = [unary(dur=5, count=1 << 16) for _ in range(20)] + [matmul(5)]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=21 * 20)
    assert found.predicted
    assert found.predicted.after_ns.point / 1e3 == pytest.approx(36 + 36, rel=0.25)
    assert found.predicted.speedup.low < 1.5


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
    assert found.predicted.speedup.point == pytest.approx(1.183, rel=0.10)
    assert found.predicted.speedup.point <= 1.183 * 1.05
    compiled = foretrace.open(CORPUS / "h200" / f"gpt_healthy.fixed.{kind}.json.gz", cache=False)
    assert findings(unfused_elementwise, compiled, step_us=72305.8) == []


@pytest.mark.parametrize(("dimensions", "lengths"), [("[]", (3, 4)), ("[1]", (7,))], ids=["all", "one"])
def test_a_reduction_over_everything_parts_a_chain(
    tmp_path: Path, dimensions: str, lengths: tuple[int, ...]
) -> None:
    """What divides by the maximum of a whole tensor has to wait for it; the maximum of a row it can keep."""
    amax = Op("aten::amax", ADD, 100, [[COUNT], [], []], ["float", "ScalarList", "Scalar"],
              inputs=["", dimensions, "False"])  # fmt: skip
    ops = [*(unary() for _ in range(2)), amax, *(unary() for _ in range(4)), matmul()]
    (found,) = findings(unfused_elementwise, device_bound(tmp_path, ops), step_us=6 * 140 + 100 + 500)
    assert found.evidence["chains_per_step_count"] == len(lengths)
    assert found.evidence["longest_chain_count"] in lengths


@pytest.mark.parametrize(
    ("names", "call"),
    [
        ("div erf add mul mul", "F.gelu(x)"),
        ("mean sub pow mean sub div mul add", "F.layer_norm"),
        ("var mean sub div", "F.layer_norm"),
        ("pow mean mul mul", "F.rms_norm"),
        ("mul add sigmoid", None),
        ("mean sub pow mean exp", None),
    ],
)
def test_formulas_are_known_by_their_operators(tmp_path: Path, names: str, call: str | None) -> None:
    ops = [
        Op(f"aten::{name}", ADD, 140, [[COUNT], []], ["float", "Scalar"], inputs=["", "[1]"])
        for name in names.split()
    ]
    (found,) = findings(
        unfused_elementwise, device_bound(tmp_path, [*ops, matmul()]), step_us=140 * len(ops) + 500
    )
    assert (call in found.fix.code) if call else "F." not in found.fix.code
