"""The Ranks page, the diagnosis and an agent's answer say what of a job was not read, and mix no profiling cycles."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import EPOCH_NS, write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.commands import main
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView

RANKS = 4
JOB = data_parallel(world=RANKS, steps=3, buckets=2, kernels=1)
PAUSE_NS = 60 * 10**9


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(simulate(JOB), tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A minute later: steps 13 to 15, in which rank 2 is slow."""
    job = replace(JOB, first_step=13, seed=2, faults=(Fault("slow-rank", 2, 1.3),))
    folder = write(simulate(job), tmp_path_factory.mktemp("slow"))
    for file in folder.iterdir():
        file.write_text(file.read_text().replace(str(EPOCH_NS), str(EPOCH_NS + PAUSE_NS)))
    return folder


def views(files: Iterable[Path]) -> list[RecordingView]:
    return [RecordingView(Case(open_trace(file)), run_id=str(file), group="job") for file in files]


@pytest.mark.slow
def test_the_page_compares_the_cycle_of_the_recording_that_is_looked_at(healthy: Path, slow: Path) -> None:
    """Peers lie in one list, those of the other cycle first: none of them is taken for a rank of this one."""
    first, second = (views(sorted(folder.iterdir())) for folder in (healthy, slow))
    found = payload.resource(second[0], "ranks", peers=(*first, *second))
    assert isinstance(found, dict)
    assert found["steps"] == [13, 14, 15]
    assert next(finding[:2] for finding in found["findings"]) == ["slow-rank", "rank 2"]
    assert found["says"].startswith(f"{RANKS} recordings of other cycles skipped. {RANKS} ranks, ")
    assert len(found["table"]["notes"]) == RANKS
    found = payload.resource(first[0], "ranks", peers=(*second, *first))
    assert isinstance(found, dict)
    assert (found["steps"], found["findings"]) == ([3, 4, 5], [])


@pytest.mark.slow
def test_a_folder_with_a_rank_that_cannot_be_read_is_diagnosed_in_part(
    healthy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first line says so, for people, in JSON and for agents; and `straggler` does not say that nobody is late."""
    for file in healthy.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "rank3.json").write_text("<html></html>")
    says = f"Read in part: 3 of {RANKS} ranks (rank3.json: not a recording of a rank)"
    assert main(["diagnose", str(tmp_path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["read_in_part"] == says
    assert "straggler" not in document["checked"]
    (unchecked,) = (each["says"] for each in document["findings"] if each["rule"] == "straggler")
    assert f"3 of {RANKS}" in unchecked
    assert main(["diagnose", str(tmp_path), "--format", "agent"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    (headline,) = (line["answer"] for line in lines if "answer" in line)
    assert headline.startswith("Read in part: 3 of 4 ranks")


@pytest.mark.slow
def test_a_whole_folder_is_diagnosed_without_a_word_of_parts(
    healthy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(healthy), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "read_in_part" not in document
    assert "straggler" in document["checked"]
