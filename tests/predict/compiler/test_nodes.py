"""How the compiler's model sees single operators: what they read, make and run over, worked out by hand."""

from __future__ import annotations

import pytest

from foretrace.predict.compiler.nodes import (
    BARRIER,
    COLUMNS,
    FREE,
    NOTHING,
    PLANES,
    POINTWISE,
    ROWS,
    SCATTERS,
    Made,
    Node,
    columns_of,
    shape_of,
)
from tests.predict.compiler.operators import FLOAT, HALF, LONG, seen

WIDE = [64, 96]
COUNT = 64 * 96


def test_a_pointwise_operator_reads_its_operands_and_makes_the_wider_type() -> None:
    shape = seen("add", (WIDE, FLOAT), ([96], HALF), "1")
    assert (shape.kind, shape.count) == (POINTWISE, COUNT)
    assert shape.reads == (Made(COUNT, 4), Made(96, 2))
    assert shape.makes == Made(COUNT, 4)


def test_in_place_the_first_operand_keeps_its_type() -> None:
    assert seen("mul_", (WIDE, HALF), (WIDE, FLOAT)).makes == Made(COUNT, 2)


def test_a_copy_reads_its_source_and_makes_its_target() -> None:
    shape = seen("copy_", (WIDE, HALF), (WIDE, FLOAT), "False")
    assert shape.reads == (Made(COUNT, 4),)
    assert shape.makes == Made(COUNT, 2)


def test_an_empty_tensor_is_where_the_result_goes() -> None:
    """`out=` of a size that is not set yet is recorded as a tensor without elements."""
    shape = seen("mul", (WIDE, FLOAT), (WIDE, FLOAT), ([0], FLOAT))
    assert shape.reads == (Made(COUNT, 4), Made(COUNT, 4))
    assert shape.makes == Made(COUNT, 4)


def test_dropout_writes_a_mask_beside_its_result() -> None:
    assert seen("native_dropout", (WIDE, HALF), "0.1", "True").saved_bytes == COUNT


def test_a_gate_makes_half_of_what_it_reads() -> None:
    assert seen("glu", (WIDE, FLOAT), "-1").makes == Made(COUNT // 2, 4)


def test_layer_norm_reduces_rows() -> None:
    shape = seen("native_layer_norm", (WIDE, HALF), "[96]", ([96], HALF), ([96], HALF), "1e-5")
    assert (shape.kind, shape.count, shape.row) == (ROWS, COUNT, 96)
    assert shape.makes == Made(COUNT, 2)


def backward_of_layer_norm() -> tuple[tuple[list[int], str] | str, ...]:
    return ((WIDE, HALF), (WIDE, HALF), "[96]", ([64, 1], FLOAT), ([64, 1], FLOAT), ([96], HALF), ([96], HALF), "[True, True, True]")  # fmt: skip


def test_the_backward_of_a_layer_norm_reads_gradient_and_input() -> None:
    shape = seen("native_layer_norm_backward", *backward_of_layer_norm())
    assert (shape.kind, shape.count, shape.row) == (ROWS, COUNT, 96)
    assert shape.reads[:2] == (Made(COUNT, 2), Made(COUNT, 2))
    assert shape.makes == Made(COUNT, 2)


def test_its_other_kernel_reduces_columns_to_two_gradients_of_a_row() -> None:
    shape = columns_of(seen("native_layer_norm_backward", *backward_of_layer_norm()))
    assert shape.kind == COLUMNS
    assert shape.makes == Made(2 * 96, 4)
    assert (shape.count, shape.row) == (COUNT, 64)


def test_a_batch_norm_reads_a_plane_before_it_writes() -> None:
    planes = ([8, 32, 16, 16], FLOAT)
    shape = seen("cudnn_batch_norm", planes, ([32], FLOAT), ([32], FLOAT), None, None, "True", "0.1", "1e-5")
    assert (shape.kind, shape.row) == (PLANES, 8 * 16 * 16)


@pytest.mark.parametrize(
    ("dim", "to_float", "kind", "width"),
    [("-1", "False", ROWS, 2), ("1", "False", ROWS, 2), ("0", "False", PLANES, 2), ("-1", "True", ROWS, 4)],
)
def test_softmax_reduces_rows_along_the_last_dimension(
    dim: str, to_float: str, kind: str, width: int
) -> None:
    shape = seen("_softmax", (WIDE, HALF), dim, to_float)
    assert (shape.kind, shape.makes) == (kind, Made(COUNT, width))


@pytest.mark.parametrize(
    ("dims", "kind", "made"), [("[1]", ROWS, 64), ("[-1]", ROWS, 64), ("[0]", COLUMNS, 96), ("[]", COLUMNS, 1), ("[0, 1]", COLUMNS, 1)]
)  # fmt: skip
def test_sums_along_rows_and_across_them(dims: str, kind: str, made: int) -> None:
    shape = seen("sum", (WIDE, FLOAT), dims, "False", None)
    assert (shape.kind, shape.makes, shape.count) == (kind, Made(made, 4), COUNT)
    assert shape.row == COUNT // made


def test_the_larger_of_two_tensors_is_no_reduction() -> None:
    assert seen("max", (WIDE, FLOAT), (WIDE, FLOAT)).kind == POINTWISE


def test_scans_stay() -> None:
    assert seen("cumsum", (WIDE, FLOAT), "0", None).kind == BARRIER


@pytest.mark.parametrize(
    ("kernel", "width"),
    [
        (None, 2),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int>", 4),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::(anonymous namespace)::OpaqueType<2u>, unsigned int>", 2),
    ],
)  # fmt: skip
def test_a_concatenation_is_as_wide_as_its_kernel_says(kernel: str | None, width: int) -> None:
    shape = seen("cat", ([WIDE, [32, 96]], "TensorList"), "0", kernel=kernel)
    assert shape.kind == POINTWISE
    assert shape.reads == (Made(COUNT, width), Made(COUNT // 2, width))
    assert shape.makes == Made(COUNT + COUNT // 2, width)


def test_strides_tell_a_part_of_a_larger_tensor() -> None:
    """A half of each row of 192: as many elements as a whole tensor of 96, and 192 from row to row."""
    half = seen("silu", (WIDE, FLOAT), strides=[[192, 1]])
    assert half.reads == (Made(COUNT, 4, whole=2 * COUNT),)
    assert half.makes == Made(COUNT, 4)
    assert seen("silu", (WIDE, FLOAT), strides=[[96, 1]]).reads == (Made(COUNT, 4),)
    assert seen("silu", (WIDE, FLOAT), strides=[[1, 64]]).reads == (Made(COUNT, 4),)  # transposed: a whole
    copied = seen("copy_", (WIDE, HALF), (WIDE, FLOAT), "False", strides=[[96, 1], [192, 1], []])
    assert copied.reads == (Made(COUNT, 4, whole=2 * COUNT),)


def test_what_is_expanded_is_no_part() -> None:
    """Stride 0: each row is the same one in memory."""
    assert seen("mul", (WIDE, FLOAT), (WIDE, FLOAT), strides=[[96, 1], [0, 1]]).reads[1].whole == 0


def test_constants_are_free_and_a_lookup_reads_what_it_is_asked_for() -> None:
    assert seen("zero_", (WIDE, FLOAT)).kind == FREE
    table = seen("embedding", ([50_000, 96], HALF), ([64], LONG), "-1", "False", "False")
    assert table.reads == (Made(COUNT, 2),)
    assert table.makes == Made(COUNT, 2)


def test_products_stay_and_make_rows_times_columns() -> None:
    product = seen("addmm", ([128], HALF), (WIDE, HALF), ([96, 128], HALF), "1", "1")
    assert (product.kind, product.makes) == (BARRIER, Made(64 * 128, 2))


def test_a_convolution_tells_its_weight_groups_and_result() -> None:
    shape = seen(
        "cudnn_convolution", ([8, 32, 17, 17], HALF), ([64, 16, 3, 3], HALF), "[1, 1]", "[2, 2]", "[1, 1]", "2", "False"
    )  # fmt: skip
    assert shape.kind == BARRIER
    assert shape.weight == (64, 16, 3, 3, 2)
    assert shape.makes == Made(8 * 64 * 9 * 9, 2)


def test_what_was_not_recorded_stays_as_it_is() -> None:
    assert shape_of("aten::add", None, None, None, None) is NOTHING
    assert seen("native_layer_norm", (WIDE, HALF), None, None, None, None) is NOTHING
    assert seen("somebodys_own", (WIDE, FLOAT)).kind == BARRIER


def test_the_backward_reads_one_gradient_and_what_the_forward_saved() -> None:
    shape = seen("gelu_backward", (WIDE, FLOAT), (WIDE, FLOAT), "none")
    node = Node(0, "aten::gelu_backward", (0,), 1, shape, backward=True)
    assert [node.saved(number) for number in range(2)] == [False, True]
    joining = Node(0, "aten::add", (0,), 1, shape, backward=True)
    assert not joining.saved(1)


@pytest.mark.parametrize("op", ["scatter_add_", "scatter_add", "index_add_", "index_add"])
def test_what_scatters_runs_over_its_source_and_makes_its_target(op: str) -> None:
    """640 messages of 96 values are added to 64 nodes; an index for each value, or for each message."""
    index = [640, 96] if op.startswith("scatter") else [640]
    shape = seen(op, (WIDE, FLOAT), "0", (index, LONG), ([640, 96], FLOAT), "1")
    assert (shape.kind, shape.count) == (SCATTERS, 640 * 96)
    assert shape.reads == (Made(640 * 96, 4),)
    assert shape.makes == Made(COUNT, 4)


@pytest.mark.parametrize("op", ["upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"])
def test_a_resized_image_is_made_where_it_is_read(op: str) -> None:
    shape = seen(op, ([2, 3, 10, 20], HALF), "[40, 60]", "False", None, None)
    assert (shape.kind, shape.count) == (POINTWISE, 2 * 3 * 40 * 60)
    assert shape.reads == (Made(2 * 3 * 10 * 20, 2),)
    assert shape.makes == Made(2 * 3 * 40 * 60, 2)
