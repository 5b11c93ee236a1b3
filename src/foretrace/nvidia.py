"""What NVIDIA's driver says of its GPUs: names, memory, power, temperature, clocks and what holds them back.

Asked through NVML where `pynvml` is installed (`pip install foretrace[nvml]`), else by one call of nvidia-smi. Both are optional, and
nothing here raises: what is not known is None, and without both there are no GPUs. Standard library only, for the user's program.
"""

from __future__ import annotations

import csv
import importlib
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

NOT_KNOWN = "not known: install foretrace[nvml], or put nvidia-smi on PATH"
# Bits of nvmlClocksEventReasons (nvml.h). Idle (1), the application's own setting (2), sync boost (0x10) and the
# display's (0x100) do not hold a running program back.
SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
_LIMIT_S = 15.0
_FIELDS = {
    "index": "index", "name": "name", "uuid": "uuid", "driver_version": "driver", "memory.total": "memory_mib",
    "power.limit": "power_limit_w", "temperature.gpu": "temperature_c", "clocks.sm": "sm_mhz", "clocks.mem": "memory_mhz",
    "clocks.max.sm": "max_sm_mhz", "clocks.max.mem": "max_memory_mhz", "persistence_mode": "persistence",
}  # fmt: skip
# Renamed with driver 535; older ones know only the second.
_REASONS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")


@dataclass(frozen=True)
class Gpu:
    """The present state of one GPU; None where unknown."""

    by: Literal["pynvml", "nvidia-smi"]
    index: int | None = None
    name: str | None = None
    uuid: str | None = None
    driver: str | None = None
    memory_mib: int | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    max_sm_mhz: int | None = None
    max_memory_mhz: int | None = None
    persistence: bool | None = None
    slowed_by: frozenset[str] | None = None


@dataclass(frozen=True)
class Clock:
    """One look at a clock."""

    mhz: int
    max_mhz: int | None
    slowed_by: frozenset[str] = field(default_factory=frozenset)


def gpus(
    device: str | int | None = None, *, reasons: bool = False, environ: Mapping[str, str] | None = None
) -> list[Gpu]:
    """All GPUs, or one by its index or UUID; empty where neither NVML nor nvidia-smi answers.

    `reasons`: also what holds the clocks back, for which nvidia-smi is called a second time.
    """
    if nvml := _nvml():
        with suppress(nvml.NVMLError):
            return [_through_nvml(nvml, handle) for handle in _handles(nvml, device)]
    return _by_smi(device, dict(os.environ if environ is None else environ), reasons=reasons)


def clock_reader(uuid: str) -> Callable[[], Clock | None] | None:
    """A function that reads one GPU's clock within microseconds; None without NVML, or where it does not know that GPU."""
    nvml = _nvml()
    if nvml is None:
        return None
    try:
        (handle,) = _handles(nvml, uuid)
        max_mhz = int(nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    except nvml.NVMLError:  # no driver for it here, as in some containers
        return None

    def read() -> Clock | None:
        mhz = _asked(nvml, "nvmlDeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM)
        slowed_by = _slowed_by(_reasons(nvml, handle))
        return None if mhz is None or slowed_by is None else Clock(int(mhz), max_mhz, slowed_by)

    return read


def _nvml() -> Any:
    """The module pynvml, ready to answer; None where it or the driver is absent."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # absent, another package of that name, or no driver: each says so in its own way
        return None
    return nvml


def _handles(nvml: Any, device: str | int | None) -> list[Any]:
    if device is None:
        return [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    if isinstance(device, int) or device.isdecimal():
        return [nvml.nvmlDeviceGetHandleByIndex(int(device))]
    return [nvml.nvmlDeviceGetHandleByUUID(device)]


def _through_nvml(nvml: Any, handle: Any) -> Gpu:
    def ask(name: str, *arguments: Any) -> Any:
        return _asked(nvml, f"nvmlDeviceGet{name}", handle, *arguments)

    memory, power_mw, persistence = ask("MemoryInfo"), ask("PowerManagementLimit"), ask("PersistenceMode")
    return Gpu(
        by="pynvml",
        index=ask("Index"),
        name=_text(ask("Name")),
        uuid=_text(ask("UUID")),
        driver=_text(_asked(nvml, "nvmlSystemGetDriverVersion")),
        memory_mib=None if memory is None else int(memory.total) >> 20,
        power_limit_w=None if power_mw is None else power_mw / 1000,
        temperature_c=ask("Temperature", 0),  # NVML_TEMPERATURE_GPU
        sm_mhz=ask("ClockInfo", nvml.NVML_CLOCK_SM),
        memory_mhz=ask("ClockInfo", nvml.NVML_CLOCK_MEM),
        max_sm_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_SM),
        max_memory_mhz=ask("MaxClockInfo", nvml.NVML_CLOCK_MEM),
        persistence=None if persistence is None else bool(persistence),
        slowed_by=_slowed_by(_reasons(nvml, handle)),
    )


def _reasons(nvml: Any, handle: Any) -> int | None:
    names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    answers = (_asked(nvml, name, handle) for name in names)  # renamed with driver 535
    return next((int(bits) for bits in answers if bits is not None), None)


def _asked(nvml: Any, name: str, *arguments: Any) -> Any:
    """The answer of one function; None where this package or this device has none."""
    try:
        return getattr(nvml, name)(*arguments)
    except (nvml.NVMLError, AttributeError):
        return None


def _text(text: str | bytes | None) -> str | None:
    return text.decode(errors="replace") if isinstance(text, bytes) else text  # bytes up to pynvml 11


def _slowed_by(bits: int | None) -> frozenset[str] | None:
    return None if bits is None else frozenset(text for bit, text in SLOWED_BY.items() if bits & bit)


def _by_smi(device: str | int | None, environ: dict[str, str], *, reasons: bool) -> list[Gpu]:
    rows = _smi(list(_FIELDS), device, environ)
    if not rows:
        return []
    names = _REASONS if reasons else ()
    answers = next((answer for name in names if (answer := _smi([name], device, environ))), [])
    masks = [row[0] for row in answers] if len(answers) == len(rows) else [""] * len(rows)
    return [
        Gpu(by="nvidia-smi", slowed_by=_slowed_by(_mask(mask)), **_typed(row))
        for row, mask in zip(rows, masks, strict=True)
    ]


def _smi(fields: list[str], device: str | int | None, environ: dict[str, str]) -> list[list[str]]:
    """One row per GPU; none where nvidia-smi is missing, fails or takes too long."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    command += [f"--id={device}"] if device is not None else []
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_LIMIT_S,
            env=environ, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [[cell.strip() for cell in row] for row in rows if len(row) == len(fields)]


def _typed(row: list[str]) -> dict[str, Any]:
    """The fields that this driver knows; for the others it has a word in brackets."""
    named = dict(zip(_FIELDS.values(), row, strict=True))
    numbers = {name: text for name, text in named.items() if name in _NUMBERS}
    facts: dict[str, Any] = {
        name: _NUMBERS[name](text) for name, text in numbers.items() if re.fullmatch(r"\d+(\.\d+)?", text)
    }
    texts = {name: named[name] for name in ("name", "uuid", "driver")}
    facts |= {name: text for name, text in texts.items() if text and text.strip("[]").lower() not in _UNKNOWN}
    switched = {"enabled": True, "disabled": False}
    return facts | {"persistence": switched.get(named["persistence"].lower())}


def _whole(text: str) -> int:
    return int(float(text))


_NUMBERS: Mapping[str, Callable[[str], float]] = {
    "index": _whole, "memory_mib": _whole, "power_limit_w": float, "temperature_c": _whole, "sm_mhz": _whole,
    "memory_mhz": _whole, "max_sm_mhz": _whole, "max_memory_mhz": _whole,
}  # fmt: skip
_UNKNOWN = ("n/a", "not supported", "unknown error", "insufficient permissions")


def _mask(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
