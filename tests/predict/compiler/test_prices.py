"""What fused kernels take: bytes and instructions counted by hand, on an H200 of 4.8 TB/s and 67 TFLOP/s."""

from __future__ import annotations

import pytest

from foretrace.hardware import Device, match
from foretrace.predict.compiler.kernels import Flow, Kernel
from foretrace.predict.compiler.prices import launches, price_ns
from foretrace.predict.costs import compiled
from tests.predict.compiler.operators import FLOAT, HALF, Step

BANDWIDTH = 4.8  # TB/s: bytes in a picosecond
ROWS, WIDTH = 8192, 4096
COUNT = ROWS * WIDTH
X = ([ROWS, WIDTH], FLOAT)


@pytest.fixture
def h200() -> Device:
    device = match("NVIDIA H200")
    assert device
    return device


def only(step: Step) -> Kernel:
    (kernel,) = Flow(step.nodes).kernels.values()
    return kernel


def moving_ns(moved: int, share: float) -> float:
    return moved / (BANDWIDTH * 1e3 * share) + compiled.START_NS


def test_a_pointwise_kernel_takes_what_it_moves(h200: Device) -> None:
    """Two tensors in, one out, whatever lies between."""
    kernel = only(Step().add("add", X, X, "1").add("relu", X).add("mul", X, "2"))
    assert kernel.moved_bytes == 3 * 4 * COUNT
    assert price_ns(h200, kernel) == pytest.approx(moving_ns(3 * 4 * COUNT, compiled.POINTWISE_SHARE), abs=1)


def test_functions_are_bound_by_their_instructions(h200: Device) -> None:
    step = Step()
    for _ in range(12):
        step.add("gelu", X, "none")
    computing = 12 * 30 * COUNT / (66.9e12 / 2) * 1e9
    assert price_ns(h200, only(step)) == pytest.approx(computing + compiled.START_NS, rel=0.01)


def test_half_precision_costs_its_conversions(h200: Device) -> None:
    """Two tensors of halves are read and written: 10 instructions an element each, and 3 of the operator."""
    half = ([ROWS, WIDTH], HALF)
    kernel = only(Step().add("relu", half))
    assert kernel.half_elements == 2 * COUNT
    computing = (2 * compiled.HALF + compiled.OTHER_INSTRUCTIONS) * COUNT / (66.9e12 / 2) * 1e9
    moving = moving_ns(2 * 2 * COUNT, compiled.POINTWISE_SHARE) - compiled.START_NS
    assert price_ns(h200, kernel) == pytest.approx(max(computing, moving) + compiled.START_NS, rel=0.01)


@pytest.mark.parametrize(("width", "passes"), [(4096, 1), (16384, 2)])
def test_long_rows_are_read_twice(h200: Device, width: int, passes: int) -> None:
    rows = COUNT // width
    kernel = only(Step().add("_softmax", ([rows, width], FLOAT), "-1", "False"))
    moved = (passes + 1) * 4 * COUNT
    assert price_ns(h200, kernel) == pytest.approx(moving_ns(moved, compiled.ROWS_SHARE), abs=1)


def test_a_sum_of_columns_is_launched_twice(h200: Device) -> None:
    kernel = only(Step().add("sum", X, "[0]", "False", None))
    assert launches(kernel) == 2
    moving = moving_ns(4 * COUNT + 4 * WIDTH, compiled.COLUMNS_SHARE) + compiled.START_NS
    assert price_ns(h200, kernel) == pytest.approx(moving, abs=1)


def test_a_batch_norm_reads_once_for_its_statistics(h200: Device) -> None:
    planes = ([32, 64, 128, 128], FLOAT)
    count = 32 * 64 * 128 * 128
    few = ([64], FLOAT)
    step = (
        Step()
        .add("cudnn_batch_norm", planes, few, few, None, None, "True", "0.1", "1e-5")
        .add("relu", planes)
    )
    kernel = only(step)
    assert launches(kernel) == 2
    small = 2 * 4 * 64
    statistics = max(
        moving_ns(4 * count + small, compiled.PLANES_SHARE) - compiled.START_NS,
        compiled.STATISTICS * count / (66.9e12 / 2) * 1e9,
    )
    applied = moving_ns(2 * 4 * count + small, compiled.POINTWISE_SHARE) - compiled.START_NS
    expected = statistics + applied + 2 * compiled.START_NS
    assert price_ns(h200, kernel) == pytest.approx(expected, rel=0.01)


def test_dropout_writes_its_mask_too(h200: Device) -> None:
    kernel = only(Step().add("native_dropout", X, "0.1", "True"))
    assert kernel.moved_bytes == 2 * 4 * COUNT + COUNT


def test_never_longer_than_what_it_replaces(h200: Device) -> None:
    kernel = only(Step(dur_ns=2_000).add("add", X, X, "1").add("relu", X))
    assert price_ns(h200, kernel) == 4_000


def test_constants_take_nothing(h200: Device) -> None:
    assert price_ns(h200, only(Step().add("zero_", X))) == 0


@pytest.mark.parametrize(("nodes", "share"), [(100_000, 0.55), (1_000_000, 1.0)])
def test_atomic_additions_are_faster_where_the_cache_holds_what_they_add_to(
    h200: Device, nodes: int, share: float
) -> None:
    """26 and 256 MB, beside a cache of 63: 117 instructions for each of 64 Mi elements."""
    count = 1 << 20
    step = Step().add(
        "index_add_", ([nodes, 64], FLOAT), "0", ([count], "long int"), ([count, 64], FLOAT), "1"
    )
    adding_ns = 117 * share * 64 * count / (66.9e12 / 2) * 1e9
    assert price_ns(h200, only(step)) == pytest.approx(adding_ns + 2 * 1_200, rel=0.02)
