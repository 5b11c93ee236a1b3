"""What Kineto and torch call things, read from the headers that torch brings along."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from foretrace.ingest.kineto_memory import DEVICE_TYPES
from foretrace.ingest.kineto_python import CATEGORIES, KERNEL, RUNTIME

# Points, counters, and ranges of metrics: no work of its own.
_NO_SPANS_OF_WORK = {
    "external_correlation", "cpu_instant_event", "mtia_insight", "mtia_counters", "cuda_profiler_range",
    "xpu_scope_profiler",
}  # fmt: skip


def header(*paths: str) -> str:
    """The first of these headers that there is; skips where there is none."""
    found = importlib.util.find_spec("torch")
    for folder in found.submodule_search_locations or () if found else ():
        for path in paths:
            file = Path(folder, "include", path)
            if file.is_file():
                return file.read_text(encoding="utf-8")
    pytest.skip(f"torch is not installed, or without {paths[0]}")


def test_every_category_of_kineto_is_known() -> None:
    text = header("kineto/ActivityType.h")
    named = set(re.findall(r'\{"(\w+)", ActivityType::(?!ENUM_COUNT)\w+\}', text))
    if not named:
        pytest.skip("this version of torch does not name the categories in a header")
    assert named - set(CATEGORIES) <= _NO_SPANS_OF_WORK
    on_device = {
        name.lower() for name in re.findall(r"(\w+) = \d+, // .*on-?device", text) if name.lower() in named
    }
    assert {name: CATEGORIES[name] for name in on_device} == dict.fromkeys(on_device, KERNEL)
    on_host = {name.lower() for name in re.findall(r"(\w+_(?:RUNTIME|DRIVER)) = \d+", text)}
    assert {CATEGORIES[name] for name in on_host & named} == {RUNTIME}


def test_device_types_are_torchs() -> None:
    text = header("torch/headeronly/core/DeviceType.h", "c10/core/DeviceType.h")
    numbers = {int(number): name.lower() for name, number in re.findall(r"^\s+(\w+) = (\d+), //", text, re.M)}
    if not numbers:
        pytest.skip("this version of torch numbers its devices elsewhere")
    numbers = {number: {"privateuse1": "privateuseone"}.get(name, name) for number, name in numbers.items()}
    known = {number: name for number, name in DEVICE_TYPES.items() if number in numbers}
    assert known == {number: numbers[number] for number in known}
    assert {"cuda", "hip", "xpu", "mtia"} <= set(known.values())
