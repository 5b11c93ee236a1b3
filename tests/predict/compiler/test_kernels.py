"""Which operators become one kernel, and what it reads and writes."""

from __future__ import annotations

from foretrace.predict.compiler.kernels import MOST_NODES, Flow, Kernel
from foretrace.predict.compiler.prices import launches
from tests.predict.compiler.operators import FLOAT, HALF, LONG, Step

ROWS, WIDTH = 64, 96
COUNT = ROWS * WIDTH
X, H = ([ROWS, WIDTH], FLOAT), ([ROWS, WIDTH], HALF)
WEIGHT = ([WIDTH], FLOAT)


def kernels(step: Step) -> list[Kernel]:
    return list(Flow(step.nodes).kernels.values())


def names(step: Step) -> list[list[str]]:
    return [[node.op.removeprefix("aten::") for node in kernel.nodes] for kernel in kernels(step)]


def norm(step: Step) -> Step:
    return step.add("native_layer_norm", X, f"[{WIDTH}]", WEIGHT, WEIGHT, "1e-5")


def product(step: Step, *, width: int = WIDTH) -> Step:
    return step.add("mm", H, ([WIDTH, width], HALF))


def test_sum_norm_and_cast_are_one_kernel() -> None:
    step = norm(Step().add("add", X, X, "1")).add("copy_", H, X, "False")
    assert names(step) == [["add", "native_layer_norm", "copy_"]]
    (kernel,) = kernels(step)
    assert kernel.read_bytes == 2 * 4 * COUNT + 2 * 4 * WIDTH  # both sides of the sum, weight and bias
    assert [token.made.bytes for token in kernel.written] == [2 * COUNT]
    assert kernel.moved_bytes == kernel.read_bytes + 2 * COUNT


def test_a_sum_that_is_read_again_is_written_too() -> None:
    """x + h goes into the norm, and beside the product's result into the next sum."""
    step = product(norm(Step().add("add", X, X, "1")).add("copy_", H, X, "False"))
    step.add("add", X, H, "1")
    first, second = kernels(step)
    assert [node.op for node in second.nodes] == ["aten::add"]
    assert sorted(token.made.bytes for token in first.written) == [2 * COUNT, 4 * COUNT]


def test_a_product_separates_what_is_before_and_behind_it() -> None:
    step = product(Step().add("relu", H)).add("relu", H)
    assert names(step) == [["relu"], ["relu"]]


def test_a_sum_with_what_was_before_a_product_waits_for_it() -> None:
    """The last sum reads the first kernel's result and the product's: in the first kernel it would wait for itself."""
    step = product(Step().add("relu", H).add("mul", H, "2")).add("add", H, H, "1").add("relu", H)
    assert names(step) == [["relu", "mul"], ["add", "relu"]]


def test_a_gate_joins_across_the_other_product() -> None:
    """silu(x @ a) * (x @ b): the second product needs nothing of silu."""
    gate = ([ROWS, 4 * WIDTH], HALF)
    step = product(product(Step(), width=4 * WIDTH).add("silu", gate), width=4 * WIDTH).add("mul", gate, gate)
    assert names(step) == [["silu", "mul"]]
    assert kernels(step)[0].moved_bytes == 3 * 2 * 4 * COUNT  # both products' results, and the gate


def test_gradients_flow_through_a_norm_to_the_next_product() -> None:
    """The cast before the norm's backward, that itself, the residual's gradient added, and the cast behind."""
    step = product(Step().back()).add("copy_", X, H, "False")
    step.add(
        "native_layer_norm_backward",
        X,
        X,
        f"[{WIDTH}]",
        ([ROWS, 1], FLOAT),
        ([ROWS, 1], FLOAT),
        WEIGHT,
        WEIGHT,
        "",
    )
    step.add("add_", X, X, "1").add("copy_", H, X, "False")
    assert names(step) == [["copy_", "native_layer_norm_backward", "add_", "copy_"]]


def test_sums_of_columns_stand_alone_with_what_is_small() -> None:
    step = Step().add("mul", X, X).add("sum", X, "[0]", "False", None).add("mul", ([WIDTH], FLOAT), "0.5")
    assert names(step) == [["mul"], ["sum", "mul"]]
    assert [launches(kernel) for kernel in kernels(step)] == [1, 2]


def test_what_needs_the_sum_of_columns_in_full_waits_for_it() -> None:
    step = Step().add("sum", X, "[0]", "False", None).add("sub", X, ([WIDTH], FLOAT))
    assert names(step) == [["sum"], ["sub"]]


def test_a_mean_of_rows_goes_on_in_its_kernel() -> None:
    small = ([ROWS, 1], FLOAT)
    step = (
        Step()
        .add("pow", X, "2")
        .add("mean", X, "[-1]", "True", None)
        .add("rsqrt", small)
        .add("mul", X, small)
    )
    assert names(step) == [["pow", "mean", "rsqrt", "mul"]]


def test_halves_of_a_norms_result_are_read_from_memory() -> None:
    """A rotation turns one half of each row into the other's place: its kernel begins when the norm's has ended."""
    half = ([ROWS, WIDTH // 2], FLOAT)
    step = norm(Step()).add("neg", half, strides=[[WIDTH, 1]])
    assert names(step) == [["native_layer_norm"], ["neg"]]
    first, second = kernels(step)
    assert [token.made.bytes for token in first.written] == [4 * COUNT]
    assert second.read_bytes == 4 * COUNT // 2


def test_constants_alone_cost_no_kernel() -> None:
    step = Step().add("zero_", X)
    (kernel,) = kernels(step)
    assert launches(kernel) == 0
    assert kernel.read_bytes == 0


def test_forward_and_backward_are_compiled_apart() -> None:
    step = Step().add("relu", X).back().add("add", X, X, "1")
    assert names(step) == [["relu"], ["add"]]


def test_a_kernel_ends_where_the_compilers_do() -> None:
    step = Step()
    for _ in range(MOST_NODES + 1):
        step.add("relu", X)
    assert [len(kernel.nodes) for kernel in kernels(step)] == [MOST_NODES, 1]


def test_two_equal_operands_are_two_tensors() -> None:
    """relu(x) + y: y is none of this step's results."""
    (kernel,) = kernels(Step().add("relu", X).add("add", X, X, "1"))
    assert kernel.read_bytes == 2 * 4 * COUNT


def test_where_older_results_fit_too_the_other_operand_counts_half() -> None:
    """x + relu(relu(x)) or y + it: the recording does not tell."""
    (kernel,) = kernels(Step().add("relu", X).add("relu", X).add("add", X, X, "1"))
    assert kernel.read_bytes == 1.5 * 4 * COUNT


def test_results_of_one_operator_may_be_several() -> None:
    """The gradients of queries, keys and values are one token: an attention's backward makes all three."""
    attention = Step().back().add("_flash_attention_backward", H, H, H, H)
    attention.add("cat", ([[ROWS, WIDTH]] * 3, "TensorList"), "-1")
    (kernel,) = kernels(attention)
    assert kernel.outside == []
    assert kernel.read_bytes == 3 * 2 * COUNT


MESSAGES = 10 * ROWS


def scattered(step: Step, op: str = "index_add_", *, messages: int = MESSAGES) -> Step:
    """Rows weighed, and added to those of X."""
    rows, index = ([messages, WIDTH], FLOAT), ([messages], LONG)
    return step.add("mul", rows, ([messages, 1], FLOAT)).add(op, X, "0", index, rows, "1")


def test_scattering_is_fused_with_what_makes_its_source() -> None:
    """The zeros that are added to are the second launch; weighed messages are not written."""
    step = scattered(Step())
    assert names(step) == [["mul", "index_add_"]]
    (kernel,) = kernels(step)
    assert launches(kernel) == 2
    assert kernel.read_bytes == 4 * MESSAGES * (WIDTH + 1)
    assert [token.made.bytes for token in kernel.written] == [4 * COUNT]


def test_what_is_scattered_is_ready_only_at_the_end() -> None:
    """Any message may add to any row: what reads a row waits for all of them, of whatever size it is."""
    step = scattered(Step()).add("relu", X).add("mul", X, "2")
    assert names(step) == [["mul", "index_add_"], ["relu", "mul"]]
    assert [launches(kernel) for kernel in kernels(step)] == [2, 1]


def test_scattering_as_many_rows_as_there_are_leaves_its_source_as_it_was() -> None:
    """Its target changes in place, not its source: the other operand of a sum may be that, and half of it is counted."""
    step = scattered(Step(), messages=ROWS).add("add", X, X, "1")
    _, second = kernels(step)
    assert [node.op for node in second.nodes] == ["aten::add"]
    assert [made.count for made in second.outside] == [COUNT // 2]
    assert second.read_bytes == 4 * COUNT + 4 * COUNT // 2
