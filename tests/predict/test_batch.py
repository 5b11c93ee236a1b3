"""`scale batch N`: how much longer each task takes, what stays as it is, and the time per item."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrace
from foretrace.commands import main
from foretrace.errors import MissingDataError, UsageError
from foretrace.predict.batch import growth
from foretrace.predict.builder import build
from foretrace.predict.calibrate import calibrate
from foretrace.predict.changes import Change, apply, parse
from foretrace.predict.prediction import Prediction, predict, to_dict
from foretrace.predict.steady import step_ns
from foretrace.trace import Trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import ADD, H200, Op, device_bound
from tests.diagnose.loops import launches, loop

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
FLASH = "flash_fwd_kernel"
SGD = "multi_tensor_apply_kernel"
ROWS, WIDTH = 8192, 4096
HALF = "c10::BFloat16"
PEAK, BANDWIDTH = 989.4e12 * 0.65, 4.8e12 * 0.8
PRODUCT_US = 2 * ROWS * WIDTH * WIDTH / PEAK * 1e6  # 427 µs at 65 % of the peak


def matmul(dur: float, **args: float) -> Op:
    return Op("aten::mm", GEMM, dur, [[ROWS, WIDTH], [WIDTH, WIDTH]], [HALF, HALF], args=dict(args))


def relu(dur: float, shape: tuple[int, ...] = (ROWS, WIDTH), *, args: dict[str, float] | None = None) -> Op:
    return Op("aten::relu", ADD, dur, [list(shape)], ["float"], args=dict(args or {}))


def grown(trace: Trace, times: float = 2) -> Change:
    return parse(f"scale batch {times}", trace, build(trace))


def factors(trace: Trace, times: float = 2) -> list[float]:
    """Of the tasks of the first step."""
    count = len(build(trace).task_span) // max(len(trace.steps), 1)
    change = grown(trace, times)
    return [change.edit.stretched[task] for task in range(count)]


def predicted(trace: Trace, step_us: float, *texts: str) -> Prediction:
    fitted = calibrate(trace, build(trace), step_ns=step_us * 1e3)
    return predict(fitted, tuple(parse(text, trace, fitted.program) for text in texts))


def test_a_product_below_its_peak_takes_the_larger_batch_for_nothing(tmp_path: Path) -> None:
    """1000 µs for what takes 427 at 65 % of the peak: twice the rows fit in, four times take 1708 µs."""
    trace = device_bound(tmp_path, [matmul(1000)])
    assert factors(trace, 2) == [1.0]
    assert factors(trace, 4) == [pytest.approx(4 * PRODUCT_US / 1000, rel=0.01)]


def test_nothing_takes_more_than_n_times_as_long(tmp_path: Path) -> None:
    """At more than 65 % of the peak, the formula alone would say so."""
    trace = device_bound(tmp_path, [matmul(380), relu(20)])
    assert factors(trace, 2) == [2.0, 2.0]


def test_pointwise_work_takes_what_it_moves(tmp_path: Path) -> None:
    """8192 x 4096 numbers of 4 bytes, read and written: 70 µs of bandwidth, recorded with 100 by half a device."""
    trace = device_bound(tmp_path, [relu(100, args={"warps per SM": 32.0})])
    assert factors(trace, 2) == [pytest.approx(2 * 8 * ROWS * WIDTH / BANDWIDTH * 1e6 / 100, rel=0.01)]


def test_weights_that_are_read_do_not_grow(tmp_path: Path) -> None:
    """One row by 8192 x 8192 weights: the weights' 35 µs of bandwidth are there once, whatever the batch."""
    row = Op("aten::mm", GEMM, 40, [[1, 8192], [8192, 8192]], [HALF, HALF], args={"blocks per SM": 4.0})
    change = grown(device_bound(tmp_path, [row]), 8)
    assert change.edit.stretched[0] == 1.0
    assert change.others[1].stretched[0] == pytest.approx(1.2)


def test_weights_of_each_ones_own_grow(tmp_path: Path) -> None:
    """Eight experts with a row each read 8192 x 8192 weights each: eight times as much."""
    row = Op("aten::mm", GEMM, 40, [[1, 8192], [8192, 8192]], [HALF, HALF], args={"blocks per SM": 4.0})
    trace = device_bound(tmp_path, [row])
    stretched = growth(trace, build(trace), 8, weights=True).edit.stretched
    assert stretched[0] == pytest.approx(8 * 2 * 8192 * 8194 / BANDWIDTH * 1e6 / 40, rel=0.01)


def test_attention_reaches_a_third_of_the_peak(tmp_path: Path) -> None:
    shape = [8, 16, 2048, 128]
    op = Op("aten::_scaled_dot_product_flash_attention", FLASH, 1000, [shape] * 3, [HALF] * 3,
            args={"blocks per SM": 0.5}, inputs=["", "", "", "0.", "False", "False", ""])  # fmt: skip
    flops = 4 * 8 * 16 * 2048 * 2048 * 128
    (factor,) = factors(device_bound(tmp_path, [op]), 2)
    assert factor == pytest.approx(2 * flops / (989.4e12 * 0.33) * 1e6 / 1000, rel=0.01)


def test_work_of_the_weights_size_stays(tmp_path: Path) -> None:
    """A cast of the weights moves as much for any batch; the same of activations grows."""
    trace = device_bound(tmp_path, [matmul(450), relu(35, (WIDTH, WIDTH)), relu(71)])
    assert factors(trace, 2)[1:] == [1.0, pytest.approx(140 / 71, rel=0.01)]


def test_shapes_of_weights_and_of_items_alike_may_be_either(tmp_path: Path) -> None:
    square = Op("aten::mm", GEMM, 450, [[WIDTH, WIDTH], [WIDTH, WIDTH]], [HALF, HALF])
    change = grown(device_bound(tmp_path, [square, relu(36, (WIDTH, WIDTH))]))
    assert change.edit.stretched[1] == pytest.approx(1.94, rel=0.01)
    assert change.others[0].stretched[1] == 1.0


def test_what_is_not_known_lies_between_nothing_and_all(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [Op("mylib::op", "my_kernel", 500)])
    change = grown(trace, 4)
    assert (change.others[0].stretched[0], change.edit.stretched[0], change.others[1].stretched[0]) == (
        1,
        2.5,
        4,
    )
    assert (
        "of 0 % of the device's time the growth is known, the rest takes 1 to 4 times as long" in change.says
    )
    assert "record_shapes" in change.says
    result = predicted(trace, 500, "scale batch 4")
    assert result.verdict == "uncertain"
    assert result.speedup.point == pytest.approx(4 / 2.5, rel=0.01)
    assert result.speedup.high == 4


def test_kernels_that_fill_the_device_keep_their_rate(tmp_path: Path) -> None:
    """Both run at a fifth of what the memory gives; the one that leaves multiprocessors empty has room for more."""
    few, many = ({"blocks per SM": blocks, "warps per SM": 4 * blocks} for blocks in (1.0, 62.0))
    change = grown(device_bound(tmp_path, [relu(350, args=few), relu(350, args=many)]))
    full = (2 + 2 * 348) / 350  # all but the start of 2 µs
    assert [change.edit.stretched[task] for task in (0, 1)] == [1.0, pytest.approx(full)]
    assert [change.others[1].stretched[task] for task in (0, 1)] == [1.2, 2.0]


def test_products_choose_other_tiles_for_more_rows(tmp_path: Path) -> None:
    """A product at less than its peak is not held to its rate, but it may be: the pessimistic end."""
    change = grown(device_bound(tmp_path, [matmul(1000, **{"blocks per SM": 2.0})]))
    assert change.edit.stretched[0] == 1.0
    assert change.others[1].stretched[0] == 2.0


def step_with(folder: Path, category: str, name: str, **args: object) -> Trace:
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        recording.launch(at + 10, name, at + 20, at + 120, category=category, **args)
    return recording.open(folder)


@pytest.mark.parametrize(
    ("name", "size", "factor"),
    [
        ("Memcpy HtoD (Pinned -> Device)", 4_000_000, 2.0),
        ("Memcpy DtoH (Device -> Pageable)", 4_000_000, 2.0),
        ("Memcpy DtoH (Device -> Pageable)", 4, 1.0),
        ("Memcpy DtoD (Device -> Device)", 192_000_000, 2.0),  # 100 µs at 80 % of the bandwidth
    ],
)
def test_copies_between_host_and_device_grow(tmp_path: Path, name: str, size: int, factor: float) -> None:
    assert factors(step_with(tmp_path, "gpu_memcpy", name, bytes=size)) == [factor]


@pytest.mark.slow
def test_collectives_of_gradients_stay_and_items_passed_on_grow(tmp_path: Path) -> None:
    assert factors(step_with(tmp_path, "kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")) == [1.0]
    assert factors(step_with(tmp_path, "kernel", "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL")) == [1.0]
    assert factors(step_with(tmp_path, "kernel", "ncclDevKernel_SendRecv")) == [2.0]


def test_the_optimizer_stays(tmp_path: Path) -> None:
    recording = Recording(deviceProperties=[H200])
    for number in range(3):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        recording.annotation("Optimizer.step#SGD.step", at, at + 200)
        recording.op("aten::add_", at + 5, at + 100)
        recording.launch(at + 10, "my_update", at + 20, at + 120)
    assert factors(recording.open(tmp_path)) == [1.0]


def test_loading_takes_n_times_as_long(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 500)
        launches(recording, at + 500, 10, every=50)

    trace = loop(tmp_path, 1_000, body)
    assert grown(trace, 3).edit.added_host_ns == dict.fromkeys((0, 10, 20), 1_000_000)


def test_a_host_bound_step_holds_more_items_in_the_same_time(tmp_path: Path) -> None:
    """A product of 50 µs at a tenth of what it could reach, behind a host of 1 ms: twice the items are free."""
    small = Op("aten::mm", GEMM, 50, [[512, 512], [512, 512]], [HALF, HALF])
    recording = Recording(deviceProperties=[H200])
    for number in range(4):
        at = 1_000.0 * number
        recording.step(number, at, at + 1_000)
        told = {"Input Dims": small.shapes, "Input type": small.dtypes}
        recording.op(small.name, at + 100, at + 900, **told)
        recording.launch(at + 500, GEMM, at + 510, at + 560)
    result = predicted(recording.open(tmp_path), 1_000, "scale batch 2")
    assert result.after_ns.point / 1e3 == pytest.approx(1_000, rel=0.01)
    assert result.speedup.point == pytest.approx(2, rel=0.01)
    assert result.items == 2
    assert result.verdict == "gain"


def test_a_full_device_gains_nothing_from_more_items(tmp_path: Path) -> None:
    """Both at the assumed shares of their peaks: twice the items take twice as long."""
    trace = device_bound(tmp_path, [matmul(PRODUCT_US), relu(69.9)])
    result = predicted(trace, PRODUCT_US + 69.9, "scale batch 2")
    assert result.after_ns.point / 1e3 == pytest.approx(2 * (PRODUCT_US + 69.9), rel=0.01)
    assert result.speedup.point == pytest.approx(1, rel=0.01)
    assert result.verdict != "gain"
    assert "2 times the items: the speed-up and the verdict are per item" in result.basis
    assert set(to_dict(result)) == {"verdict", "step_ms", "after_ms", "speedup", "basis", "not_promised"}


def test_more_items_and_shorter_kernels_are_simulated_together(tmp_path: Path) -> None:
    """Half as long and twice the items is as long as before, not half: neither change hides the other."""
    trace = device_bound(tmp_path, [relu(69.9)])
    program = build(trace)
    both = tuple(parse(text, trace, program) for text in ("scale kernel:~. 0.5", "scale batch 2"))
    assert step_ns(apply(program, both)) / 1e3 == pytest.approx(69.9, rel=0.01)


def test_one_times_the_items_is_exactly_no_gain(tmp_path: Path) -> None:
    result = predicted(device_bound(tmp_path, [relu(69.9)]), 69.9, "scale batch 1")
    assert (result.speedup.point, result.speedup.low, result.speedup.high) == (1.0, 1.0, 1.0)


@pytest.mark.slow
def test_the_command_prints_the_time_per_item(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = device_bound(tmp_path, [relu(69.9)]).path
    assert main(["predict", str(path), "--change", "scale batch 2", "--no-cache"]) == 0
    assert "per item" in capsys.readouterr().out
    assert main(["predict", str(path), "--change", "scale batch 2", "--no-cache", "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {
        "schema",
        "foretrace",
        "path",
        "changes",
        "verdict",
        "step_ms",
        "after_ms",
        "speedup",
        "basis",
        "not_promised",
    }
    assert printed["speedup"]["point"] == pytest.approx(2 * printed["step_ms"] / printed["after_ms"]["point"])
    assert main(["predict", str(path), "--change", "scale batch 0.5", "--no-cache"]) == 2
    assert (
        main(["predict", str(path), "--change", "graph step", "--change", "scale batch 2", "--no-cache"]) == 0
    )


@pytest.mark.parametrize(
    "text", ["scale batch", "scale batch two", "scale batch 0.5", "scale batch nan", "scale batch inf",
             "scale batch 2 3", "scale batch -1", "scale batch 2 under:x", "set batch 2", "remove batch"],
)  # fmt: skip
def test_a_batch_that_cannot_be_read_is_a_usage_error(tmp_path: Path, text: str) -> None:
    trace = device_bound(tmp_path, [relu(70)])
    with pytest.raises(UsageError):
        parse(text, trace, build(trace))


def test_steps_without_device_work_have_no_batch(tmp_path: Path) -> None:
    trace = loop(
        tmp_path, 100, lambda recording, at: recording.runtime("cudaMalloc", at + 5, at + 9) and None
    )
    with pytest.raises(MissingDataError, match="no launched GPU work"):
        grown(trace)


@needs_corpus
def test_a_launch_bound_step_takes_64_times_the_rows_for_nothing() -> None:
    """matmul_add: 64 x 64 behind a host of 27 µs. Its fix, 4096 x 4096, is other work: no truth for a batch."""
    trace = foretrace.open(CORPUS / "h200" / "matmul_add.slow.lite.json.gz")
    result = predicted(trace, 27.3, "scale batch 64")
    assert result.speedup.point == pytest.approx(64, rel=0.02)
    assert result.verdict == "gain"
