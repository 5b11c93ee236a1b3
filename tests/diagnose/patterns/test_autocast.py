"""What autocast would make of a program: products in half precision, casts where the types meet."""

from __future__ import annotations

from pathlib import Path

from foretrace.diagnose.case import Case
from foretrace.diagnose.patterns.autocast import Cast, under_autocast
from tests.diagnose.kernels import ADD, Op, device_bound

SGEMM = "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4"
ROWS, WIDE = 512, 256
STREAM = ROWS * WIDE


def linear(out: int = WIDE, given: int = WIDE, told: dict[str, int] | None = None) -> Op:
    shapes = [[out], [ROWS, given], [given, out], [], []]
    dtypes = ["float", "float", "float", "Scalar", "Scalar"]
    return Op("aten::addmm", SGEMM, 100, shapes, dtypes, outer=("aten::linear",), told=told or {})


def norm() -> Op:
    shapes = [[ROWS, WIDE], [], [WIDE], [WIDE], []]
    dtypes = ["float", "ScalarList", "float", "float", "Scalar"]
    return Op("aten::native_layer_norm", "norm_kernel", 10, shapes, dtypes, outer=("aten::layer_norm",))


def pointwise(name: str, *shapes: list[int], told: dict[str, int] | None = None) -> Op:
    return Op(name, ADD, 10, list(shapes), ["float"] * len(shapes), told=told or {})


def casts_of(folder: Path, ops: list[Op]) -> list[tuple[Cast, ...]]:
    """What is cast before each operator of the second step."""
    told = under_autocast(Case(device_bound(folder, ops)))
    return [told.casts.get(len(ops) + place, ()) for place in range(len(ops))]


def narrow(*counts: int) -> tuple[Cast, ...]:
    return tuple(Cast(count, widens=False) for count in counts)


def test_a_product_casts_its_parameters_and_what_is_not_in_half_precision_yet(tmp_path: Path) -> None:
    ops = [norm(), linear(4 * WIDE), pointwise("aten::gelu", [ROWS, 4 * WIDE]), linear(WIDE, 4 * WIDE)]
    weight = 4 * WIDE * WIDE
    first, second = narrow(4 * WIDE, STREAM, weight), narrow(WIDE, weight)
    assert casts_of(tmp_path, ops) == [(), first, (), second]


def test_a_norm_takes_fp32(tmp_path: Path) -> None:
    assert casts_of(tmp_path, [linear(), norm()]) == [
        narrow(WIDE, STREAM, WIDE * WIDE),
        (Cast(STREAM, widens=True),),
    ]


def test_a_block_is_added_to_its_input_in_fp32(tmp_path: Path) -> None:
    """The sum is in fp32, and so the norm behind it casts nothing."""
    add = pointwise("aten::add", [ROWS, WIDE], [ROWS, WIDE])
    assert casts_of(tmp_path, [norm(), linear(), add, norm()])[2:] == [(), ()]


def test_queries_keys_and_values_take_the_same_input(tmp_path: Path) -> None:
    """Their results are as large as it: each product casts it anew, as autocast does."""
    casts = casts_of(tmp_path, [norm(), linear(), linear(), linear()])
    assert casts[1:] == [narrow(WIDE, STREAM, WIDE * WIDE)] * 3


def test_operators_on_half_precision_move_half_the_bytes(tmp_path: Path) -> None:
    ops = [norm(), linear(), pointwise("aten::gelu", [ROWS, WIDE]), pointwise("aten::tanh", [64])]
    told = under_autocast(Case(device_bound(tmp_path, ops)))
    assert {task % len(ops): share for task, share in told.shares.items()} == {2: 0.5}
    assert {task % len(ops) for task in told.products} == {1}


def test_without_shapes_nothing_is_said(tmp_path: Path) -> None:
    told = under_autocast(Case(device_bound(tmp_path, [Op("aten::addmm", SGEMM, 100)])))
    assert (told.products, told.casts, told.cast_count) == (set(), {}, 0)
