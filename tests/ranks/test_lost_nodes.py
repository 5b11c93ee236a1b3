"""A worker or a Ray node that dies: its recordings are listed as lost, and all others survive."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import simulate
from foretrace.commands import main
from foretrace.ranks import job as reading
from foretrace.ranks.engines import on_ray
from foretrace.ranks.engines.outcome import summary_of


class RayError(Exception):
    """As in ray.exceptions."""


class RayTaskError(RayError):
    """An exception in the task itself."""


class WorkerCrashedError(RayError):
    """A worker that died too often."""


class FakeRay:
    """A cluster whose tasks end in the order in which they were submitted, until its head dies."""

    exceptions = SimpleNamespace(
        RayError=RayError, RayTaskError=RayTaskError, WorkerCrashedError=WorkerCrashedError
    )

    def __init__(self, fates: dict[str, Exception], *, dies_after: int = 1_000) -> None:
        self.fates, self.left = fates, dies_after

    def remote(self, **options: Any) -> Any:
        return lambda function: SimpleNamespace(remote=lambda path: path)

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def wait(self, references: list[str], *, num_returns: int) -> tuple[list[str], list[str]]:
        if not self.left:
            raise ConnectionError("the head node went away")
        self.left -= 1
        return references[:num_returns], references[num_returns:]

    def get(self, reference: str) -> tuple[bytes | None, str]:
        if reference in self.fates:
            raise self.fates[reference]
        return reference.encode(), ""


PATHS = [f"/job/rank{rank}.json" for rank in range(8)]


def test_recordings_of_a_dead_node_are_lost_and_the_others_are_read() -> None:
    fates: dict[str, Exception] = {
        PATHS[1]: RayError("node died"),
        PATHS[2]: WorkerCrashedError(),
        PATHS[3]: RayTaskError("bad recording"),
    }
    outcomes = {outcome.path: outcome for outcome in on_ray._tasks(FakeRay(fates), PATHS)}
    assert list(outcomes) == PATHS
    assert {path for path, outcome in outcomes.items() if outcome.lost} == {PATHS[1], PATHS[2]}
    assert {path for path, outcome in outcomes.items() if outcome.summary is None} == set(PATHS[1:4])
    assert "node" in outcomes[PATHS[1]].reason
    assert all(path in outcomes[path].reason for path in PATHS[1:4])


@pytest.mark.parametrize("read", [0, 3, 7])
def test_what_was_read_before_the_cluster_was_lost_is_kept(read: int) -> None:
    outcomes = list(on_ray._tasks(FakeRay({}, dies_after=read), PATHS))
    assert sorted(outcome.path for outcome in outcomes) == PATHS
    assert [outcome.summary is not None for outcome in outcomes] == [True] * read + [False] * (8 - read)
    assert all(outcome.lost and "head node went away" in outcome.reason for outcome in outcomes[read:])


@pytest.mark.slow
def test_a_job_that_lost_ranks_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node dies with half of a healthy job: that half may hold the straggler, and the exit code says so."""
    folder = write(simulate(data_parallel(world=4, steps=2, buckets=2, kernels=1)), tmp_path / "job")
    ray = FakeRay({str(folder / f"rank{rank}.json"): RayError("node died") for rank in (1, 3)})
    monkeypatch.setattr(ray, "get", _read(ray.get))
    monkeypatch.setattr(reading, "engine", lambda on: lambda paths: on_ray._tasks(ray, paths))
    assert main(["ranks", str(folder), "--on", "ray", "--format", "json"]) == 4
    output = capsys.readouterr()
    document = json.loads(output.out)
    assert (document["missing"], document["read_pct"]) == ([1, 3], 50.0)
    assert [(each["why"], each["rank"]) for each in document["unused"]] == [("lost", 1), ("lost", 3)]
    assert all(f"{folder}/rank{rank}.json: the Ray node" in output.err for rank in (1, 3))
    assert main(["ranks", str(folder), "--on", "ray"]) == 4
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith(
        "Read in part: 2 of 4 ranks read, without ranks 1, 3; 2 recordings lost with a worker or node."
    )


def _read(get: Any) -> Any:
    """The fake cluster's answer, but for the summary of the recording in place of its path."""

    def answer(path: str) -> tuple[bytes | None, str]:
        get(path)
        outcome = summary_of(path)
        return outcome.summary, outcome.reason

    return answer
