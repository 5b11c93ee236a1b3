"""Programs that misuse GPU memory, recorded on an H200: the fault is named with its line; healthy ones are silent."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from tests.corpus import ACCURACY, needs_accuracy

FOLDER = ACCURACY / "memory"
pytestmark = needs_accuracy


def faulty_lines(name: str, mark: str = "allocated here") -> set[int]:
    """The lines that a program marks by a comment."""
    lines = (FOLDER / "programs" / f"{name}.py").read_text(encoding="utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if mark in line.partition("#")[2]}


def memory_of(name: str, folder: Path) -> Any:
    """What `foretrace memory` says about the GPU of a recorded program."""
    from foretrace.analyze.snapshots.opening import open_findings

    rank = folder / "rank0"
    rank.mkdir()
    for packed in (FOLDER / "recordings" / name).glob("*.xz"):
        (rank / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    findings = open_findings(rank)
    assert findings is not None
    (device,) = (device for device in findings.devices if device.name == "cuda:0")
    return device


def line_of(where: str) -> int:
    return int(where.partition(":")[2].split()[0])


@pytest.mark.parametrize("name", ["kept_graph", "growing_list", "cached_in_closure"])
def test_a_recorded_leak_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    device = memory_of(name, tmp_path)
    (leak,) = device.leaks
    assert line_of(leak.where) in faulty_lines(name)
    assert leak.where.startswith(f"{name}.py:")
    assert len(leak.repetitions) == 6
    assert device.optimizer is None
    assert device.fragmentation.advice == ()


def test_the_recorded_optimizer_is_named_with_its_lines(tmp_path: Path) -> None:
    """bf16 parameters; copies and two moments in fp32: 6 times their bytes."""
    device = memory_of("surprising_optimizer", tmp_path)
    state = device.optimizer
    assert state.size_bytes == 6 * state.parameters_bytes
    lines = {line_of(line) for line, _ in state.lines}
    assert lines == faulty_lines("surprising_optimizer")
    assert device.leaks == []


def test_recorded_fragmentation_is_named_with_its_line(tmp_path: Path) -> None:
    device = memory_of("fragmentation", tmp_path)
    assert device.fragmentation.advice[0].setting == "expandable_segments:True"
    (where, _), *_ = device.fragmentation.beside
    assert line_of(where) in faulty_lines("fragmentation", "kept here")


def test_the_recorded_request_that_did_not_fit(tmp_path: Path) -> None:
    """A limit of 6 GiB: what is free would be enough, but in pieces."""
    (short, *_) = memory_of("out_of_memory", tmp_path).out_of_memory
    assert line_of(short.where) in faulty_lines("fragmentation")
    assert short.missing_bytes == 0 < short.largest_hole_bytes < short.asked_bytes < short.unused_bytes
    assert "expandable_segments:True" in short.would_fit


@pytest.mark.parametrize("name", ["plain_training", "accumulation", "ema", "kv_cache", "prefetch"])
def test_of_a_recorded_program_that_is_healthy_nothing_is_said(name: str, tmp_path: Path) -> None:
    device = memory_of(name, tmp_path)
    assert device.leaks == []
    assert len(device.steps) == 6  # so leaks were looked for
    assert device.optimizer is None
    assert device.fragmentation.advice == ()
    assert device.out_of_memory == []
    assert device.flushes == []
