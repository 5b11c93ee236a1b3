"""`foretrace ranks`: its JSON, its tables and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.commands import main
from tests.corpus import CORPUS


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Summaries of six ranks, of which rank 4 is slow."""
    job = data_parallel(world=6, steps=3, buckets=2, kernels=1, faults=(Fault("slow-rank", 4, 1.3),))
    folder = write(simulate(job), tmp_path_factory.mktemp("ranks") / "job")
    out = folder.parent / "kept"
    assert main(["ranks", str(folder), "--out", str(out), "--format", "json"]) == 0
    return out


@pytest.mark.slow
def test_json(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(kept), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["world"], document["ranks_read"], document["missing"]) == (
        1,
        6,
        6,
        [],
    )
    (finding,) = document["findings"]
    assert (finding["what"], finding["who"], finding["at_least"]) == ("slow-rank", "rank 4", False)
    assert 0 < finding["worth_ms"] == document["combined_ms"] < document["step_ms"]


@pytest.mark.slow
@pytest.mark.parametrize("table", ["clocks", "collectives", "waits", "late", "links", "path", "held"])
def test_tables(table: str, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(kept), "--table", table, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)


def test_the_first_line_names_the_rank(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(kept)]) == 0
    assert "rank 4 computes" in " ".join(capsys.readouterr().out.split())


def test_missing_input_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ranks", str(tmp_path / "none")]) == 3
    (tmp_path / "rank0.json").write_text("{}")
    assert main(["ranks", str(tmp_path), "--on", "spark"]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_late_rank_of_a_real_job(capsys: pytest.CaptureFixture[str]) -> None:
    """Four DDP ranks over gloo, of which rank 2 sleeps 8 ms a step."""
    folder = CORPUS / "other" / "multirank_gloo"
    if not folder.is_dir():
        pytest.skip("no corpus")
    assert main(["ranks", str(folder), "--format", "json"]) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert [(each["what"], each["who"]) for each in findings if each["what"] != "exposed-communication"] == [
        ("slow-rank", "rank 2")
    ]
    assert main(["ranks", str(folder)]) == 0
    assert "rank 2 arrives 7." in " ".join(capsys.readouterr().out.split())
