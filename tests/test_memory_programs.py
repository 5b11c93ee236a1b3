"""The programs of `benchmarks/memory`: they run, small, without a GPU; what is recorded of them is packed."""

from __future__ import annotations

import importlib.util
import lzma
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
FOLDER = Path(__file__).parents[1] / "benchmarks" / "memory"


def module(name: str) -> Any:
    """A module of benchmarks/memory."""
    spec = importlib.util.spec_from_file_location(f"memory_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("program", sorted(FOLDER.glob("programs/*.py")), ids=lambda path: path.stem)
def test_a_program_takes_its_steps(
    program: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [str(program), "3"])
    state = torch.get_rng_state()
    runpy.run_path(str(program), run_name="__main__")
    torch.set_rng_state(state)
    assert capsys.readouterr().out.split("\n") == ["step 0", "step 1", "step 2", ""]


@pytest.mark.slow
def test_programs_at_fault_name_their_lines() -> None:
    faults = module("program_faults")
    programs = {path.stem for path in FOLDER.glob("programs/*.py")}
    assert programs == {*faults.FAULTY, *faults.HEALTHY}
    assert len(faults.FAULTY) == len(faults.HEALTHY) == 5
    for name in faults.FAULTY:
        assert faults.lines_of(name), name
    assert not any(faults.lines_of(name) + faults.lines_of(name, "kept here") for name in faults.HEALTHY)
    (line,) = faults.lines_of("kept_graph")
    assert "model(validation)" in faults.path_of("kept_graph").read_text().splitlines()[line - 1]


@pytest.mark.slow
def test_snapshots_are_packed(tmp_path: Path) -> None:
    rank = tmp_path / "run" / "rank0"
    rank.mkdir(parents=True)
    (rank / "rank.json").write_text("{}")
    (rank / "memory.pickle").write_bytes(b"snapshot " * 1000)
    sizes = module("record").pack(tmp_path / "run", tmp_path / "out")
    assert set(sizes) == {"memory.pickle.xz"}
    assert 0 < sizes["memory.pickle.xz"] < 200
    assert lzma.decompress((tmp_path / "out" / "memory.pickle.xz").read_bytes()) == b"snapshot " * 1000
    assert (tmp_path / "out" / "rank.json").read_text() == "{}"


RECORDINGS = FOLDER / "recordings"  # from an H200, by record.py


def told(name: str, folder: Path) -> Any:
    """What `foretrace memory` tells of a recorded program."""
    from foretrace.analyze.snapshots.opening import open_findings

    rank = folder / "rank0"
    rank.mkdir()
    for packed in (RECORDINGS / name).glob("*.xz"):
        (rank / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    found = open_findings(rank)
    assert found is not None
    (device,) = (each for each in found.devices if each.name == "cuda:0")
    return device


@pytest.mark.parametrize("name", ["kept_graph", "growing_list", "cached_in_closure"])
def test_a_recorded_leak_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    faults = module("program_faults")
    device = told(name, tmp_path)
    (leak,) = device.leaks
    assert int(leak.where.partition(":")[2].split()[0]) in faults.lines_of(name)
    assert leak.where.startswith(f"{name}.py:")
    assert leak.steps == 6
    assert device.optimizer is None
    assert device.fragmentation.advice == ()


def test_the_recorded_optimizer_is_named_with_its_lines(tmp_path: Path) -> None:
    """bf16 parameters; copies and two moments in fp32: 6 times their bytes."""
    faults = module("program_faults")
    device = told("surprising_optimizer", tmp_path)
    state = device.optimizer
    assert state.size_bytes == 6 * state.parameters_bytes
    lines = {int(line.partition(":")[2].split()[0]) for line, _ in state.lines}
    assert lines == set(faults.lines_of("surprising_optimizer"))
    assert device.leaks == []


def test_recorded_fragmentation_is_named_with_its_line(tmp_path: Path) -> None:
    faults = module("program_faults")
    device = told("fragmentation", tmp_path)
    assert device.fragmentation.advice[0].setting == "expandable_segments:True"
    (where, _), *_ = device.fragmentation.beside
    assert int(where.partition(":")[2].split()[0]) in faults.lines_of("fragmentation", "kept here")


def test_the_recorded_request_that_did_not_fit(tmp_path: Path) -> None:
    """A limit of 6 GiB: what is free would be enough, but in pieces."""
    faults = module("program_faults")
    (short, *_) = told("out_of_memory", tmp_path).out_of_memory
    assert int(short.where.partition(":")[2].split()[0]) in faults.lines_of("fragmentation")
    assert short.missing_bytes == 0 < short.largest_hole_bytes < short.asked_bytes < short.unused_bytes
    assert "expandable_segments:True" in short.would_fit


@pytest.mark.parametrize("name", ["plain_training", "accumulation", "ema", "kv_cache", "prefetch"])
def test_of_a_recorded_program_that_is_healthy_nothing_is_said(name: str, tmp_path: Path) -> None:
    device = told(name, tmp_path)
    assert device.leaks == []
    assert len(device.steps) == 6  # so leaks were looked for
    assert device.optimizer is None
    assert device.fragmentation.advice == ()
    assert device.out_of_memory == []
    assert device.flushes == []
