"""Steps on two clocks, and what their time went to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import foretrace
from foretrace import analyze
from foretrace.analyze.steps import ROLES
from foretrace.errors import MissingDataError
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000


def parts(table: pl.DataFrame, row: int = 0) -> dict[str, int]:
    """The roles of one step that are not zero, in microseconds."""
    return {role: ns // US for role in ROLES if (ns := table[f"{role}_ns"][row])}


def test_earlier_roles_win(tmp_path: Path) -> None:
    # Step [0, 8]: kernels cover 5, the copy is below one; of the operator, 1 is left; 2 are free.
    recording = Recording().step(1, 0, 8).op("aten::mm", 0, 4)
    recording.launch(0.5, "gemm", 1, 4, call=0.25).launch(4.0, "relu", 4.5, 6.5, call=0)
    recording.copy("Memcpy HtoD (Pageable -> Device)", 2, 3, stream=8)
    table = analyze.run(recording.open(tmp_path), "steps").table
    row = table.row(0, named=True)
    assert row["kernel_ns"] == 5 * US
    assert row["memcpy_ns"] == 0
    assert row["runtime_ns"] + row["cpu_exec_ns"] == 1 * US
    assert row["other_ns"] == 2 * US
    assert row["wall_ns"] == 8 * US


def test_a_role_that_fills_the_step_leaves_nothing_to_the_rest(tmp_path: Path) -> None:
    # The TensorBoard plugin made 200 % of this one.
    recording = Recording().step(1, 0, 100).launch(0, "gemm", 0, 100, call=30)
    recording.copy("Memcpy DtoH (Device -> Pinned)", 10, 30, stream=8).op("aten::mm", 40, 80)
    result = analyze.run(recording.open(tmp_path), "steps")
    assert parts(result.table) == {"kernel": 100}
    assert result.values["kernel_pct"] == 100
    assert result.values["cpu_exec_pct"] == 0


def test_every_role(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100)
    recording.launch(0, "gemm", 10, 20, call=2)
    recording.launch(2, "Memcpy HtoD (Pinned -> Device)", 20, 26, call=1, category="gpu_memcpy")
    recording.launch(3, "Memset (Device)", 26, 29, call=1, category="gpu_memset")
    recording.launch(4, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 28, 40, call=1)
    recording.annotation("nccl:all_reduce", 40, 42)
    recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 50, 65)
    recording.op("aten::add", 60, 70).annotation("forward", 70, 75)
    recording.python("train.py(3): loop", 0, 100)
    expected = {
        "kernel": 10, "memcpy": 6, "memset": 3, "communication": 13, "runtime": 5, "dataloader": 15,
        "cpu_exec": 10, "other": 38,
    }  # fmt: skip
    assert parts(analyze.run(recording.open(tmp_path), "steps").table) == expected


def test_gpu_bound_steps_are_timed_by_their_completions(tmp_path: Path) -> None:
    # The host enqueues a step in 10; the GPU needs 100, and is still at a step from before the recording.
    recording = Recording().kernel("gemm", 0, 90, correlation=999)
    for number in range(3):
        host, gpu = 10 * number, 91 + 100 * number
        recording.step(number + 5, host, host + 10)
        recording.launch(host + 1, "gemm", gpu, gpu + 60).launch(host + 4, "gemm", gpu + 60, gpu + 99)
    result = analyze.run(recording.open(tmp_path), "steps")
    assert result.table["host_ns"].to_list() == [10 * US] * 3
    assert result.table["gpu_ns"].to_list() == [100 * US] * 3
    assert result.table["start_ns"].to_list() == [90 * US, 190 * US, 290 * US]
    assert result.values["step_gpu_ns"] == 100 * US
    assert result.values["step_host_ns"] == 10 * US


def test_host_bound_steps_have_the_period_of_the_host(tmp_path: Path) -> None:
    recording = Recording()
    for number in range(4):
        host = 100 * number
        recording.step(number, host, host + 95).launch(host + 50, "relu", host + 60, host + 65)
    table = analyze.run(recording.open(tmp_path), "steps").table
    # The first is measured from its start on the host, not from its first kernel.
    assert table["gpu_ns"].to_list() == [65 * US, 100 * US, 100 * US, 100 * US]


def test_one_slow_step_does_not_move_the_step_time(tmp_path: Path) -> None:
    recording = Recording()
    at = 0
    for number, length in enumerate((500, 100, 100)):
        recording.step(number, at, at + length).launch(at + 1, "gemm", at + 2, at + length)
        at += length
    assert analyze.run(recording.open(tmp_path), "steps").values["step_gpu_ns"] == 100 * US


def test_left_over_work_may_end_after_a_copy_of_the_first_step(tmp_path: Path) -> None:
    # The first step's prefetch runs on a stream of its own while the queue of earlier steps is worked off.
    recording = Recording().kernel("gemm", 0, 50, correlation=998).kernel("gemm", 50, 400, correlation=999)
    recording.step(1, 10, 60)
    recording.launch(11, "Memcpy HtoD (Pinned -> Device)", 20, 45, category="gpu_memcpy", stream=8)
    recording.launch(15, "gemm", 400, 450)
    assert analyze.run(recording.open(tmp_path), "steps").table["gpu_ns"].to_list() == [50 * US]


def test_work_that_ends_before_the_previous_step_is_done_takes_no_time(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 10).step(2, 10, 20)
    recording.launch(1, "allreduce", 5, 100, stream=9).launch(12, "relu", 20, 30)
    assert analyze.run(recording.open(tmp_path), "steps").table["gpu_ns"].to_list() == [100 * US, 0]


def test_a_tail_without_its_gpu_work_is_left_out_aloud(tmp_path: Path) -> None:
    recording = Recording()
    for number, count in enumerate((5, 5, 3)):
        start = 100 * number
        recording.step(number, start, start + 100)
        for index in range(count):
            at = start + 10 * index
            recording.launch(at, "gemm", at + 1, at + 9)
    result = analyze.run(recording.open(tmp_path), "steps")
    assert result.table["whole"].to_list() == [True, True, False]
    assert result.values["step_count"] == 2
    assert any("step 2" in note for note in result.notes)


def test_without_gpu_work_only_the_host_is_known(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 10).op("aten::mm", 2, 6)
    result = analyze.run(recording.open(tmp_path), "steps")
    row = result.table.row(0, named=True)
    assert (row["gpu_ns"], row["kernel_ns"], row["cpu_exec_ns"], row["other_ns"]) == (
        None,
        None,
        4 * US,
        6 * US,
    )
    assert result.values["step_gpu_ns"] is None
    assert result.values["kernel_pct"] is None
    assert any("no GPU work" in note for note in result.notes)


def test_without_steps_there_is_nothing_to_show(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"profiler\.step\(\)"):
        analyze.run(Recording().op("aten::mm", 0, 5).open(tmp_path), "steps")


def test_impossible_durations_count_for_nothing(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 10).launch(0, "gemm", 2, 5, call=1)
    recording.op("aten::mm", 6, 3).kernel("broken", 6, 4, stream=9)
    assert parts(analyze.run(recording.open(tmp_path), "steps").table) == {
        "kernel": 3,
        "runtime": 1,
        "other": 6,
    }


MAKERS = ("kernel", "gpu_memcpy", "gpu_memset", "nccl", "runtime", "dataloader", "op")
RANGES = st.tuples(st.sampled_from(MAKERS), st.integers(0, 60), st.integers(1, 25))


def paint(events: list[tuple[str, int, int]], steps: list[tuple[int, int]]) -> list[list[int]]:
    """For each step, how many of its microseconds each role has: one microsecond at a time."""
    found = []
    for start, end in steps:
        counts = [0] * len(ROLES)
        for at in range(start, end):
            here = [MAKERS.index(kind) for kind, begin, length in events if begin <= at < begin + length]
            counts[min(here, default=len(ROLES) - 1)] += 1
        found.append(counts)
    return found


@settings(max_examples=60)
@given(events=st.lists(RANGES, max_size=12))
def test_roles_are_what_painting_each_microsecond_gives(
    events: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    recording = Recording().step(1, 0, 40).step(2, 40, 100)
    for lane, (kind, start, length) in enumerate(events):
        end = start + length
        match kind:
            case "kernel" | "gpu_memcpy" | "gpu_memset":
                recording.device(kind, kind, start, end, stream=10 + lane)
            case "nccl":
                recording.kernel("ncclDevKernel_Broadcast", start, end, stream=10 + lane)
            case "runtime":
                recording.runtime("cudaStreamSynchronize", start, end, thread=200 + lane)
            case "dataloader":
                recording.op("enumerate(DataPipe)#Shuffler", start, end, thread=200 + lane)
            case "op":
                recording.op("aten::mm", start, end, thread=200 + lane)
    # Nothing is linked to a step here, so that the steps stay where the host put them.
    table = analyze.run(recording.open(tmp_path_factory.mktemp("steps")), "steps").table
    found = table.select(pl.col(f"{role}_ns").fill_null(0) // US for role in ROLES).rows()
    assert [list(row) for row in found] == paint(events, [(0, 40), (40, 100)])
    assert (
        table.select(pl.sum_horizontal(*(f"{role}_ns" for role in ROLES)))
        .to_series()
        .equals(table["wall_ns"])
    )


@needs_corpus
@pytest.mark.parametrize(
    ("name", "step_us", "dataloader_pct"),
    [("resnet50_workers0", 177_592, 33.37), ("resnet50_workers4", 141_068, 0.84)],
)
def test_agrees_with_the_tensorboard_plugin(name: str, step_us: int, dataloader_pct: float) -> None:
    steps = all_steps(foretrace.open(CORPUS / "peers" / "kineto" / f"{name}.pt.trace.json.gz"))
    assert round(steps["wall_ns"].mean() / 1e3) == step_us
    assert 100 * steps["dataloader_ns"].sum() / steps["wall_ns"].sum() == pytest.approx(
        dataloader_pct, abs=0.005
    )


@needs_corpus
def test_agrees_with_the_tensorboard_plugin_on_the_tutorial() -> None:
    path = CORPUS / "peers" / "tutorial_h100" / "dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz"
    steps = all_steps(foretrace.open(path))
    assert steps["wall_ns"].mean() / 1e3 == pytest.approx(975.3, abs=0.05)
    assert 100 * steps["kernel_ns"].sum() / steps["wall_ns"].sum() == pytest.approx(13.43, abs=0.005)


def all_steps(trace: foretrace.Trace) -> Any:
    """The complete steps, as the plugin averages them: with warm-up."""
    table = analyze.run(trace, "steps").table
    return table.filter("whole")


GPU_BOUND = ("naive_attention", "fp32_gemm", "gpt_healthy", "nchw_conv", "elementwise_chain")


@needs_corpus
@pytest.mark.parametrize("name", GPU_BOUND)
@pytest.mark.parametrize("variant", ["slow", "fixed"])
@pytest.mark.parametrize("detail", ["lite", "rich"])
def test_gpu_clock_is_what_was_measured_without_a_profiler(name: str, variant: str, detail: str) -> None:
    truth = json.loads((CORPUS / "h200" / f"{name}.truth.json").read_text())[variant]["step_ms"]
    trace = foretrace.open(CORPUS / "h200" / f"{name}.{variant}.{detail}.json.gz")
    values = analyze.run(trace, "steps").values
    assert int(values["step_gpu_ns"] or 0) / 1e6 == pytest.approx(truth, rel=0.04)


@needs_corpus
def test_parts_sum_to_the_step_in_every_recording() -> None:
    for path in sorted((CORPUS / "h200").glob("*.lite.json.gz")):
        table = analyze.run(foretrace.open(path), "steps").table
        total = table.select(pl.sum_horizontal(*(f"{role}_ns" for role in ROLES))).to_series()
        assert total.equals(table["wall_ns"]), path.name
        assert (table["other_ns"] >= 0).all(), path.name
