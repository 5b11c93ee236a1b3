"""What a clock of a GPU does, in which order, on a torch that is made up; and how its clock rate is watched."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretrace.bench.clocks import EventClock, HostClock
from foretrace.bench.memory import peak_of
from foretrace.bench.watch import Seen, Watch, look_once

DEVICE = SimpleNamespace(type="cuda", index=0)


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was asked of the made-up torch, in order. An event reads how many things were done before it, in ms."""
    asked: list[str] = []

    class Event:
        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            asked.append("event")
            self.at = len(asked)

        def elapsed_time(self, other: Event) -> float:
            assert asked[-1] == "wait", "read only after the device is done"
            return other.at - self.at - 1

    buffer = SimpleNamespace(zero_=lambda: asked.append("flush"))
    torch: Any = ModuleType("torch")
    torch.int32 = "int32"
    torch.empty = lambda size, *, dtype, device: asked.append(f"buffer {4 * size}") or buffer
    torch.cuda = SimpleNamespace(
        Event=Event,
        synchronize=lambda device: asked.append("wait"),
        get_device_properties=lambda device: SimpleNamespace(L2_cache_size=60 << 20),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return asked


def test_calls_in_a_row_stand_between_two_events(done: list[str]) -> None:
    clock = EventClock(DEVICE)
    for _ in range(2):
        samples = clock.samples(lambda: done.append("call"), calls=3, count=2)
        assert samples == [1.0, 1.0]
    made, taken = ["event"] * 4, ["event", "call", "call", "call", "event"] * 2 + ["wait"]
    assert (
        done == made + taken + taken
    )  # events are made by their first record, outside of what is timed, and once
    assert clock.least_sample_ms == 10


def test_the_flush_is_before_the_first_event_and_not_in_the_time(done: list[str]) -> None:
    clock = EventClock(DEVICE, flush=True)
    assert done == [f"buffer {240 << 20}"]
    assert clock.most_together > EventClock(DEVICE).most_together  # a short queue shortens what is timed
    assert clock.samples(lambda: done.append("call"), calls=1, count=2) == [1.0, 1.0]
    assert done[1:] == ["event"] * 4 + ["flush", "event", "call", "event"] * 2 + ["wait"]
    assert clock.least_sample_ms == 0
    assert "240 MiB" in clock.says


def test_one_call_at_a_time_waits_before_and_after() -> None:
    order: list[str] = []
    clock = HostClock(single=True, settle=lambda: order.append("wait"))
    (sample,) = clock.samples(lambda: order.append("call"), calls=1, count=1)
    assert order == ["wait", "call", "wait"]
    assert sample >= 0


class _NVMLError(Exception):
    pass


def made_up_nvml(readings: list[tuple[int, int]]) -> ModuleType:
    nvml: Any = ModuleType("pynvml")
    nvml.NVML_CLOCK_SM, nvml.NVMLError = 1, _NVMLError
    nvml.nvmlInit = lambda: None
    nvml.nvmlDeviceGetHandleByUUID = lambda uuid: uuid
    nvml.nvmlDeviceGetMaxClockInfo = lambda handle, kind: 1980
    nvml.nvmlDeviceGetClockInfo = lambda handle, kind: readings[0][0]
    nvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: readings.pop(0)[1]
    made: ModuleType = nvml
    return made


def test_pynvml_tells_the_lowest_clock_and_what_held_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", made_up_nvml([(1980, 0x1), (1700, 0x4 | 0x20), (1800, 0)]))
    monkeypatch.setattr("foretrace.bench.watch._LOOK_NS", 0)
    watch = Watch("GPU-1")
    for _ in range(3):
        watch.look()
    assert watch.seen.to_dict() == {
        "by": "pynvml",
        "low_mhz": 1700,
        "high_mhz": 1980,
        "most_mhz": 1980,
        "slowed_by": ["heat (software)", "power cap"],
    }


def test_nothing_is_watched_on_a_cpu() -> None:
    watch = Watch(None)
    watch.look()
    assert watch.seen.by is None
    assert watch.seen.low_mhz is None


SMI = """#!/bin/sh
case "$1" in
*reasons*) echo 0x0000000000000004 ;;
*) echo "0, NVIDIA H200, GPU-1, 570.86.15, 143771, 700.00, 31, 1410, 3201, 1980, 3201, Enabled" ;;
esac
"""


def test_nvidia_smi_is_asked_where_there_is_no_pynvml(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    seen = Seen()
    look_once("GPU-1", seen)
    assert (seen.by, seen.low_mhz, seen.most_mhz, seen.slowed_by) == ("nvidia-smi", 1410, 1980, {"power cap"})
    program.write_text(SMI.replace("1410", "[N/A]"))
    silent = Seen()
    look_once("GPU-1", silent)
    assert silent.by is None


def test_the_peak_is_of_the_second_call(done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call makes what stays; the counter begins anew after it."""
    cuda: Any = sys.modules["torch"].cuda
    cuda.reset_peak_memory_stats = lambda device: done.append("reset")
    cuda.max_memory_allocated = lambda device: 3 << 20
    cuda.max_memory_reserved = lambda device: 5 << 20
    assert peak_of(lambda: done.append("call"), DEVICE) == {"peak_alloc_MiB": 3, "peak_reserved_MiB": 5}
    assert done == ["call", "wait", "reset", "call", "wait"]


def test_the_memory_of_a_cpu_is_not_counted() -> None:
    assert peak_of(lambda: 1 / 0, SimpleNamespace(type="cpu")) == {
        "peak_alloc_MiB": None,
        "peak_reserved_MiB": None,
    }
