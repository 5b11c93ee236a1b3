"""Several processes in one file: one is read, its ids and steps apart from the others'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze
from foretrace.errors import UsageError
from tests.builders import Recording
from tests.ingest.comparison import READERS, assert_same_trace, needs_native

STEPS, KERNELS = 6, 8


def add_rank(
    recording: Recording,
    pid: Any,
    *,
    device_pid: Any,
    offset: float,
    first_id: int = 0,
    name: str = "gemm",
    first_step: int = 2,
    kernel: float = 100,
) -> Recording:
    """Steps of 1,000 us, each with 8 kernels, `offset` us late."""
    number = first_id
    for step in range(STEPS):
        start = offset + 1000 * step
        recording.add("user_annotation", f"ProfilerStep#{first_step + step}", start, 999, pid, 1)
        for place in range(KERNELS):
            number += 1
            at = start + 20 + 120 * place
            recording.add("cpu_op", "aten::mm", at - 2, 15, pid, 1, **{"External id": number})
            recording.add("cuda_runtime", "cudaLaunchKernel", at, 5, pid, 1, correlation=number)
            recording.add(
                "kernel", name, at + 10, kernel, device_pid, 7, correlation=number, device=0, stream=7
            )
    return recording


def two_ranks(
    *, devices: tuple[Any, Any] = (0, 1), pids: tuple[Any, Any] = (100, 200), **second: Any
) -> Recording:
    recording = add_rank(Recording(), pids[0], device_pid=devices[0], offset=0, name="of_first")
    return add_rank(recording, pids[1], device_pid=devices[1], offset=500, **{"name": "of_second", **second})


CASES = {
    "a device each, the same ids": two_ranks(),
    "one device, the same ids": two_ranks(devices=(0, 0)),
    "one device, other ids": two_ranks(devices=(0, 0), first_id=1000),
    "other step numbers": two_ranks(first_step=40),
    "labelled pids": two_ranks(pids=("[TP00] 100", "[TP01] 200"), devices=("[TP00] 0", "[TP01] 0")),
    "the rank as pid of all": two_ranks(pids=(0, 1)),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("case", CASES)
def test_each_process_has_its_own_steps_and_kernels(case: str, reader: str, tmp_path: Path) -> None:
    path = CASES[case].write(tmp_path)
    pids = [process["pid"] for process in foretrace.open(path, cache=False, reader=reader).meta["processes"]]
    assert len(pids) == 2
    for pid in pids:
        trace = foretrace.open(path, cache=False, reader=reader, pid=pid)
        steps = analyze.run(trace, "steps")
        assert steps.values["step_count"] == STEPS
        assert steps.values["step_host_ns"] == 999_000
        assert steps.values["step_gpu_ns"] == 1_000_000
        assert steps.table["launched_count"].to_list() == [KERNELS] * STEPS
        assert trace.device_spans["name"].n_unique() == 1, "kernels of the other process"
        assert trace.device_spans["launch_id"].null_count() == 0


@needs_native
@pytest.mark.parametrize("case", CASES)
def test_both_readers_choose_the_same(case: str, tmp_path: Path) -> None:
    path = CASES[case].write(tmp_path)
    native, python = (foretrace.open(path, cache=False, reader=reader) for reader in ("native", "python"))
    assert_same_trace(native, python)


def test_the_one_with_most_device_work_is_read(tmp_path: Path) -> None:
    trace = two_ranks(kernel=105).open(tmp_path)
    assert trace.device_spans["name"].unique().to_list() == ["of_second"]
    first, second = trace.meta["processes"]
    assert (first["pid"], first["chosen"], first["device_count"]) == (200, True, STEPS * KERNELS)
    assert (second["pid"], second["chosen"], second["device_ns"]) == (100, False, STEPS * KERNELS * 100_000)
    assert [(repair.code, repair.count) for repair in trace.repairs] == [
        ("other-processes", STEPS * (3 * KERNELS + 1))
    ]


def test_the_trust_report_names_what_is_left_out(tmp_path: Path) -> None:
    result = analyze.run(two_ranks().open(tmp_path), "trust")
    assert result.values["verdict"] == "with care"
    note = result.table.filter(pl.col("code") == "several-processes").row(0, named=True)
    assert note["says"] == (
        "The file holds the events of 2 processes: process 100 is read (4.80 ms of GPU time), process 200 "
        "(4.80 ms of GPU time) left out; --pid reads another."
    )
    assert note["affected_count"] == STEPS * 3 * KERNELS


def test_a_pid_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no process 300 in it; there are: 100, 200"):
        foretrace.open(two_ranks().write(tmp_path), cache=False, pid=300)


@pytest.mark.slow
def test_the_cache_keeps_processes_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("foretrace.cache.MIN_SPANS", 0)
    path = two_ranks().write(tmp_path)
    for _ in range(2):
        names = [
            foretrace.open(path, pid=pid).device_spans["name"].unique().to_list() for pid in (None, 100, 200)
        ]
        assert names == [["of_first"], ["of_first"], ["of_second"]]


@pytest.mark.parametrize("reader", READERS)
def test_python_frames_without_a_pid_are_no_process(reader: str, tmp_path: Path) -> None:
    """torch writes Python frames of threads that it does not know under pid 0, which is a device's."""
    recording = add_rank(Recording(), 100, device_pid=0, offset=0)
    recording.add("python_function", "threading.py(1032): _bootstrap", 0, 5000, 0, 0)
    trace = foretrace.open(recording.write(tmp_path), cache=False, reader=reader)
    assert trace.meta["processes"] == []
    assert trace.device_spans.height == STEPS * KERNELS


@pytest.mark.parametrize("reader", READERS)
def test_calls_under_another_pid_are_of_the_one_process(reader: str, tmp_path: Path) -> None:
    """In a container, CUPTI may write another pid than torch does."""
    recording = add_rank(Recording(), 100, device_pid=0, offset=0)
    for event in recording.events:
        event["pid"] = 5100 if event["cat"] == "cuda_runtime" else event["pid"]
    trace = foretrace.open(recording.write(tmp_path), cache=False, reader=reader)
    assert trace.meta["processes"] == []
    assert trace.device_spans["launch_id"].null_count() == 0
