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
