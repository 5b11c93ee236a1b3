"""What NVIDIA's driver says of its GPUs, with pynvml, with nvidia-smi and with neither."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretrace import nvidia
from foretrace.capture import environment, machine


class NVMLError(Exception):
    """As pynvml's."""


def not_supported(*_: object) -> None:
    raise NVMLError("Not Supported")


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver with one H200, whose temperature it does not tell, slowed by its power cap (0x4) while idle (0x1)."""
    module: Any = ModuleType("pynvml")
    module.NVMLError, module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM = NVMLError, 1, 2
    module.nvmlInit = lambda: None
    module.nvmlSystemGetDriverVersion = lambda: b"570.86.15"
    answers = {
        "HandleByIndex": lambda index: f"handle {index}",
        "HandleByUUID": lambda uuid: "handle 0" if uuid == "GPU-1" else not_supported(),
        "Count": lambda: 1,
        "Index": lambda handle: 0,
        "Name": lambda handle: "NVIDIA H200",
        "UUID": lambda handle: b"GPU-1",
        "MemoryInfo": lambda handle: SimpleNamespace(total=143_771 << 20),
        "PowerManagementLimit": lambda handle: 700_000,
        "Temperature": not_supported,
        "ClockInfo": lambda handle, kind: {1: 1410, 2: 3201}[kind],
        "MaxClockInfo": lambda handle, kind: {1: 1980, 2: 3201}[kind],
        "PersistenceMode": lambda handle: 1,
        "CurrentClocksEventReasons": lambda handle: 0x5,
    }
    for name, answer in answers.items():
        setattr(module, f"nvmlDeviceGet{name}", answer)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


H200 = nvidia.Gpu(
    by="pynvml", index=0, name="NVIDIA H200", uuid="GPU-1", driver="570.86.15", memory_mib=143_771, power_limit_w=700.0,
    sm_mhz=1410, memory_mhz=3201, max_sm_mhz=1980, max_memory_mhz=3201, persistence=True, slowed_by=frozenset({"power cap"}),
)  # fmt: skip


@pytest.mark.parametrize("device", [None, 0, "0", "GPU-1"])
def test_nvml_is_asked_without_a_process(
    device: str | int | None, pynvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    assert nvidia.gpus(device) == [H200]


def test_an_older_driver_s_name_of_the_reasons(pynvml: Any) -> None:
    del pynvml.nvmlDeviceGetCurrentClocksEventReasons
    pynvml.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: 0x40
    assert nvidia.gpus()[0].slowed_by == {"heat (hardware)"}


def test_all_three_askers_take_nvml_s_answer(pynvml: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert environment.clocks("GPU-1") == {
        "sm_mhz": 1410, "memory_mhz": 3201, "max_sm_mhz": 1980, "max_memory_mhz": 3201, "power_limit_w": 700.0,
    }  # fmt: skip
    check = machine.clocks_check(nvidia.gpus(reasons=True))
    assert check.found == "1410 of 1980 MHz, persistence enabled; slowed by power cap"
    read = nvidia.clock_reader("GPU-1")
    assert read is not None
    assert read() == nvidia.Clock(1410, 1980, frozenset({"power cap"}))


def test_a_clock_that_is_not_supported_is_not_watched(pynvml: Any) -> None:
    pynvml.nvmlDeviceGetMaxClockInfo = not_supported
    assert nvidia.clock_reader("GPU-1") is None


@pytest.mark.parametrize("problem", ["absent", "no driver"])
def test_with_neither_nothing_is_known(
    problem: str, pynvml: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pynvml.nvmlInit = not_supported
    if problem == "absent":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.gpus(reasons=True) == []
    assert nvidia.clock_reader("GPU-1") is None
    assert environment.devices() == []
    assert environment.clocks(0) is None
    monkeypatch.setattr(
        machine, "_try_torch", lambda: machine.Trial("2.11.0", "13.0", None, ["H200"], [], 8, 2)
    )
    checks = {check.what: check for check in machine.checks()}
    assert checks["clocks"].found == "not known"
    assert "foretrace[nvml]" in checks["clocks"].fix
