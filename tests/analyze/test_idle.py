"""Idle time: every gap has causes that sum to it, and the host's work behind them."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.analyze.concepts.host.idle_causes import CAUSES
from foretrace.errors import ForetraceError, MissingDataError, UsageError
from tests.builders import MAIN_THREAD, Recording
from tests.corpus import CORPUS, needs_corpus

US = 1_000
AUTOGRAD = 7
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def causes(trace: foretrace.Trace, **options: object) -> dict[str, float]:
    """Microseconds by cause."""
    table = analyze.run(trace, "idle", **options).table
    return {cause: ns / US for cause, ns in zip(table["cause"], table["total_ns"], strict=True)}


def two_kernels(launch: float, start: float, *, call: float = 1) -> Recording:
    """A gap from 10 to `start`, ended by a kernel that was launched at `launch`."""
    return (
        Recording().launch(0, "before", 1, 10, call=0.5).launch(launch, "after", start, start + 5, call=call)
    )


def test_work_launched_before_the_gap_is_not_the_hosts_fault(tmp_path: Path) -> None:
    assert causes(two_kernels(3, 12).open(tmp_path)) == {"kernel-to-kernel": 2}
    # Long after its launch: it waited for something on the device.
    assert causes(two_kernels(3, 60).open(tmp_path)) == {"queued": 50}


def test_the_host_is_followed_until_its_launch(tmp_path: Path) -> None:
    recording = two_kernels(100, 107, call=4)
    recording.python("train.py(5): step", 0, 200).op("aten::linear", 40, 110).op("aten::addmm", 60, 108)
    recording.runtime("cudaStreamSynchronize", 2, 15).runtime("cudaMalloc", 70, 78)
    recording.runtime("cudaFuncGetAttributes", 80, 81).runtime("cudaMemcpyAsync", 30, 36)
    assert causes(recording.open(tmp_path)) == {
        "host: operator": 51, "host: Python": 19, "allocator": 8, "copy": 6, "sync": 5, "launch call": 4,
        "launch latency": 3, "host: runtime call": 1,
    }  # fmt: skip


def test_what_happens_in_a_dataloader_is_input(tmp_path: Path) -> None:
    recording = two_kernels(100, 105, call=2).op("aten::mm", 90, 104)
    recording.annotation(LOADER, 20, 80).op("aten::stack", 30, 50).runtime("cudaHostAlloc", 60, 70)
    assert causes(recording.open(tmp_path)) == {
        "input": 60, "host: not recorded": 20, "host: operator": 10, "launch latency": 3, "launch call": 2,
    }  # fmt: skip


def test_the_profilers_own_time_is_set_apart(tmp_path: Path) -> None:
    recording = two_kernels(50, 80, call=20).step(1, 0, 30).step(2, 34, 90)
    recording.add("overhead", "Activity Buffer Request", 52, 8, -1, 0)
    recording.add("overhead", "Lazy Function Loading", 60, 7, -1, 0)
    recording.add("overhead", "Command Buffer Full", 12, 3, -1, 0)
    # 4 between the steps' marks and 8 of buffers; a full queue is not the profiler's. The step begins at 0, and the
    # first kernel at 1: half of that is its launch call.
    assert causes(recording.open(tmp_path)) == {
        "host: not recorded": 36, "profiler": 12, "launch latency": 10.5, "code loading": 7,
        "launch call": 5.5,
    }  # fmt: skip


def test_python_frames_of_the_profiler(tmp_path: Path) -> None:
    recording = two_kernels(40, 41, call=1).python("train.py(1): <module>", 0, 60)
    recording.python("torch/profiler/profiler.py(884): step", 12, 32).python("torch/x.py(3): f", 15, 20)
    assert causes(recording.open(tmp_path)) == {"profiler": 20, "host: Python": 10, "launch call": 1}


def test_gaps_are_those_of_the_device_not_of_a_stream(tmp_path: Path) -> None:
    recording = Recording()
    recording.launch(0, "a", 10, 20, stream=7).launch(1, "b", 20, 30, stream=8).launch(
        2, "c", 30, 40, stream=7
    )
    result = analyze.run(recording.open(tmp_path), "idle")
    assert result.values["idle_ns"] == 0
    assert result.table.is_empty()
    assert "no gap" in result.says


def test_control_passes_from_the_main_thread_to_autograds(tmp_path: Path) -> None:
    # The gap [10, 100): the main thread ends the forward pass until 60, autograd's thread begins at 70.
    recording = Recording().op("aten::loss", 0, 60).launch(0, "forward", 1, 10)
    recording.op("MulBackward0", 70, 98, thread=AUTOGRAD).launch(
        95, "backward", 100, 101, thread=AUTOGRAD, call=5
    )
    table = analyze.run(recording.open(tmp_path), "idle", view="places").table
    rows = {(row["cause"], row["doing"]): row["total_ns"] // US for row in table.iter_rows(named=True)}
    assert rows == {
        ("host: operator", "aten::loss"): 50, ("host: not recorded", None): 10, ("host: operator", "MulBackward0"): 25,
        ("launch call", "cudaLaunchKernel"): 5,
    }  # fmt: skip


def test_a_launch_known_by_its_operator_only(tmp_path: Path) -> None:
    recording = Recording().launch(0, "before", 1, 10).op("aten::mm", 30, 50, **{"External id": 9})
    recording.kernel("after", 40, 45, **{"External id": 9})
    assert causes(recording.open(tmp_path)) == {"host: not recorded": 20, "launch latency": 10}


def test_work_without_any_launch_is_unexplained(tmp_path: Path) -> None:
    recording = Recording().kernel("a", 0, 10).kernel("b", 50, 60)
    result = analyze.run(recording.open(tmp_path), "idle")
    assert result.table["cause"].to_list() == ["unexplained"]
    assert any("of idle time is unexplained" in note for note in result.notes)


def test_work_of_before_the_recording_ends_gaps_too(tmp_path: Path) -> None:
    recording = Recording().step(1, 0, 100).kernel("old", 20, 40, correlation=999)
    recording.launch(5, "new", 45, 50)
    # The step's window begins when earlier work is done.
    assert causes(recording.open(tmp_path)) == {"kernel-to-kernel": 5}


def test_short_gaps_are_not_explained(tmp_path: Path) -> None:
    recording = two_kernels(10.3, 10.8, call=0.25)
    assert causes(recording.open(tmp_path)) == {"kernel-to-kernel": 0.8}
    assert causes(recording.open(tmp_path), min_gap_ns=100) == {
        "host: not recorded": 0.3, "launch call": 0.25, "launch latency": 0.25,
    }  # fmt: skip


def test_a_cause_is_as_long_as_all_its_parts_in_a_gap(tmp_path: Path) -> None:
    """One gap of 95 us with two operators in it: their parts are one stretch of the same cause."""
    recording = Recording().step(0, 0, 120).launch(0, "first", 1, 10)
    recording.op("aten::cat", 20, 50).op("aten::stack", 60, 90).launch(100, "second", 105, 110)
    table = analyze.run(recording.open(tmp_path), "idle").table
    row = table.row(by_predicate=pl.col("cause") == "host: operator", named=True)
    assert (row["gaps_count"], row["total_ns"], row["longest_ns"]) == (1, 60 * US, 60 * US)


def test_the_longest_gaps_tell_what_was_around_them(tmp_path: Path) -> None:
    recording = Recording().step(3, 0, 300).python("train.py(7): step", 0, 300)
    recording.python("nn.Module: Net_0", 90, 160).python("torch/nn/modules/linear.py(1): forward", 95, 155)
    recording.op("aten::linear", 100, 150)
    recording.launch(0, "first", 1, 50).launch(149, "second", 152, 160).launch(151, "third", 170, 171)
    recording.runtime("cudaStreamSynchronize", 2, 55)
    result = analyze.run(recording.open(tmp_path), "idle", view="gaps", gaps_count=1)
    row = result.table.row(0, named=True)
    assert (row["idle_ns"], row["step"], row["before"], row["after"]) == (102 * US, 3, "first", "second")
    assert (row["cause"], row["doing"], row["where"]) == (
        "host: operator",
        "aten::linear",
        "train.py: step",
    )
    assert (row["cause_ns"], row["module"], row["sync_before"]) == (49 * US, "Net_0", "cudaStreamSynchronize")
    assert row["cause_pct"] == pytest.approx(100 * 49 / 102)
    assert result.values["after_sync_ns"] == 102 * US


def test_the_backward_pass_has_the_line_of_its_forward(tmp_path: Path) -> None:
    recording = Recording().python("net.py(4): forward", 0, 20)
    recording.op("aten::mul", 5, 15, **{"Sequence number": 3, "Fwd thread id": 0})
    recording.launch(6, "forward", 10, 20)
    numbers = {"Sequence number": 3, "Fwd thread id": 1}
    recording.op("MulBackward0", 30, 60, thread=AUTOGRAD, **numbers)
    recording.op("aten::mul", 40, 59, thread=AUTOGRAD).launch(58, "backward", 62, 63, thread=AUTOGRAD)
    table = analyze.run(recording.open(tmp_path), "idle", view="places").table
    lines = {row["doing"]: row["where"] for row in table.iter_rows(named=True)}
    assert lines["aten::mul"] == "backward of net.py: forward"


@pytest.mark.parametrize(("begin", "matmul"), [(138.736, 366.493), (517.926, 523.447), (610.039, 614.527)])
def test_the_dead_window_of_the_tutorial(tmp_path: Path, begin: float, matmul: float) -> None:
    # Between entering the label and aten::matmul: 227.757, 5.521 and 4.488 us in the tutorial's three steps.
    recording = Recording().launch(begin - 20, "add", begin - 10, begin)
    recording.annotation("matmul_add", begin, matmul + 60).op("aten::matmul", matmul, matmul + 30)
    recording.launch(matmul + 10, "gemm", matmul + 16, matmul + 20, call=5)
    table = analyze.run(recording.open(tmp_path), "idle", view="places").table
    row = table.filter(pl.col("doing") == "matmul_add").row(0, named=True)
    assert row["total_ns"] == round((matmul - begin) * US)


def test_the_idle_share_of_the_tutorial(tmp_path: Path) -> None:
    # 26 us of kernels in 1.78 ms: 98 % idle.
    recording = Recording().step(2, 0, 1780).launch(100, "gemm", 150, 165).launch(1700, "add", 1769, 1780)
    assert analyze.run(recording.open(tmp_path), "idle").values["idle_pct"] == pytest.approx(98.5, abs=0.05)


def test_options_and_missing_data(tmp_path: Path) -> None:
    trace = two_kernels(3, 12).open(tmp_path)
    for options in ({"min_gap_ns": -1}, {"gaps_count": 0}):
        with pytest.raises(UsageError):
            analyze.run(trace, "idle", **options)
    with pytest.raises(MissingDataError):
        analyze.run(Recording().op("aten::mm", 0, 1).open(tmp_path, "cpu.json"), "idle")


class Simulated:
    """A random program in whole microseconds on two threads, and what its idle time must be, counted one by one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.recording = Recording()
        self.open_at: dict[int, dict[int, list[str]]] = {MAIN_THREAD: {}, AUTOGRAD: {}}
        self.work: list[tuple[int, int, int, int, int]] = []  # start, end, launch start, launch end, thread
        ready = 0
        for thread in (MAIN_THREAD, AUTOGRAD):
            at = self.random.randint(0, 40) + (150 if thread == AUTOGRAD else 0)
            for _ in range(6):
                at, ready = self._operator(thread, at + self.random.randint(0, 12), ready)

    def _mark(self, thread: int, what: str, start: int, end: int) -> None:
        for moment in range(start, end):
            self.open_at[thread].setdefault(moment, []).append(what)

    def _operator(self, thread: int, at: int, ready: int) -> tuple[int, int]:
        """An operator, perhaps in a DataLoader, with calls and a launch in it."""
        calls = self.random.choices(
            ("cudaMalloc", "cudaStreamSynchronize", "cudaEventQuery", "cudaMemcpyAsync"), k=2
        )
        lengths = [self.random.randint(1, 9) for _ in range(6)]
        end = at + sum(lengths) + 3
        loading = self.random.random() < 0.2
        if loading:
            self.recording.annotation(LOADER, at, end, thread=thread)
            self._mark(thread, "input", at, end)
        self.recording.op("aten::mm", at, end, thread=thread)
        self._mark(thread, "host: operator", at, end)
        moment = at + lengths[0]
        meaning = {"cudaMalloc": "allocator", "cudaStreamSynchronize": "sync", "cudaMemcpyAsync": "copy"}
        for call, length in zip(calls, lengths[1:3], strict=True):
            self.recording.runtime(call, moment, moment + length, thread=thread)
            self._mark(thread, meaning.get(call, "host: runtime call"), moment, moment + length)
            moment += length + 1
        call_end = moment + lengths[3]
        self._mark(thread, "host: runtime call", moment, call_end)
        start = max(ready, moment + self.random.randint(1, 50))
        self.recording.launch(
            moment, f"k{len(self.work)}", start, start + lengths[4], thread=thread, call=lengths[3]
        )
        self.work.append((start, start + lengths[4], moment, call_end, thread))
        return end, start + lengths[4]

    def expected(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        ordered = sorted(self.work)
        for (_, begin, _, _, previous), (end, _, call, done, thread) in pairwise(ordered):
            for moment in range(begin, end):
                cause = self._cause(moment, begin, end, call, done, (thread, previous))
                counts[cause] = counts.get(cause, 0) + 1
        return counts

    def _cause(
        self, moment: int, begin: int, end: int, call: int, done: int, threads: tuple[int, int]
    ) -> str:
        long = end - max(begin, done) >= 30
        if done <= begin:
            return "queued" if long else "kernel-to-kernel"
        if moment >= done:
            return "queued" if long else "launch latency"
        if moment >= call:
            return "launch call"
        for thread in threads:
            told = self.open_at[thread].get(moment)
            if told:
                return "input" if "input" in told else told[-1]
        return "host: not recorded"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_against_counting_every_microsecond(tmp_path: Path, seed: int) -> None:
    simulated = Simulated(seed)
    counted = {cause: us for cause, us in simulated.expected().items() if us}
    trace = simulated.recording.open(tmp_path)
    trace.meta = {**trace.meta, "steps": []}  # its batches are no steps: idle time is counted over all of it
    assert causes(trace, min_gap_ns=0) == counted


def recordings() -> list[Path]:
    folders = ((CORPUS / "h200", "*.gz"), (CORPUS / "peers", "*/*.json.gz"), (CORPUS / "other", "*/*.json*"))
    return [path for folder, pattern in folders for path in sorted(folder.glob(pattern))]


@needs_corpus
def test_parts_sum_to_the_timelines_idle_time_in_every_recording() -> None:
    seen = 0
    for path in recordings():
        try:
            trace = foretrace.open(path)
            result = analyze.run(trace, "idle")
        except ForetraceError:
            continue
        seen += 1
        assert result.values["idle_ns"] == analyze.run(trace, "timeline").values["idle_ns"], path.name
        assert result.table["total_ns"].sum() == result.values["idle_ns"], path.name
        assert set(result.table["cause"]) <= set(CAUSES)
        assert (result.table["total_ns"] > 0).all()
        if path.parent.name == "h200" and ".slow.rich." not in path.name:
            continue
        assert analyze.run(trace, "idle", view="places").table["total_ns"].sum() == result.values["idle_ns"]
        gaps = analyze.run(trace, "idle", view="gaps").table
        assert (gaps["cause_ns"] <= gaps["idle_ns"]).all(), path.name
    assert seen > 60


def share(name: str, cause: str) -> float:
    table = analyze.run(foretrace.open(CORPUS / "h200" / f"{name}.json.gz"), "idle").table
    return sum(table.filter(pl.col("cause").str.starts_with(cause))["span_pct"])


@needs_corpus
@pytest.mark.parametrize("detail", ["lite", "rich"])
def test_known_faults_show(detail: str) -> None:
    assert share(f"slow_dataloader.slow.{detail}", "input") > 85
    assert share(f"slow_dataloader.fixed.{detail}", "input") < 1
    assert share(f"decode_launch_bound.slow.{detail}", "host") > 60
    assert share(f"naive_attention.slow.{detail}", "host") < 1
    stalled = "host: Python" if detail == "rich" else "host: not recorded"
    assert share(f"host_stall.slow.{detail}", stalled) > 35


@needs_corpus
def test_the_line_of_the_stall_is_found() -> None:
    trace = foretrace.open(CORPUS / "h200" / "host_stall.slow.rich.json.gz")
    top = analyze.run(trace, "idle", view="places").table.row(0, named=True)
    assert top["cause"] == "host: Python"
    assert str(top["where"]).startswith("workloads.py")


@needs_corpus
def test_agrees_with_hta_where_there_is_one_stream() -> None:
    """HTA 0.6.1, get_idle_time_breakdown: 212 us, all of it waiting for the host; its sums are per stream."""
    name = "critical_path_cuda_event_sync__event_sync_trace.json.gz"
    result = analyze.run(foretrace.open(CORPUS / "peers" / "hta" / name), "idle", over="launched")
    assert result.values["idle_ns"] == 212 * US
    assert (result.values["kernel_to_kernel_ns"], result.values["queued_ns"]) == (0, 0)
