"""The rank by the name of a file, where the recording does not tell it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.errors import MissingDataError
from foretrace.ranks.reduce import reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import named

JOB = data_parallel(world=4, steps=4, kernels=2, faults=(Fault("slow-rank", 2, 1.3),))
NAMES = (
    "rank_{}.json",
    "trace.{}.json",
    "worker{}.pt.trace.json",
    "{}.json",
    "run7_step10_worker-{}_x.json",
    "{}-trace.json",
    "trace_run7_{}.json",
)


@pytest.fixture(scope="module")
def nameless(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """Recordings that do not say which rank they are of."""
    folder = write(simulate(JOB), tmp_path_factory.mktemp("job"))
    texts = {rank: (folder / f"rank{rank}.json").read_text() for rank in range(JOB.world)}
    return {rank: re.sub(r'"rank": \d+, ', "", text) for rank, text in texts.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_name_tells_the_rank(name: str, nameless: dict[int, str], tmp_path: Path) -> None:
    (tmp_path / name.format(2)).write_text(nameless[2])
    assert summarise(tmp_path / name.format(2)).rank == 2


@pytest.mark.slow
def test_a_job_whose_ranks_only_names_tell_is_read(nameless: dict[int, str], tmp_path: Path) -> None:
    for rank, text in nameless.items():
        (tmp_path / NAMES[0].format(rank)).write_text(text)
    ranks = reduce([summarise(path) for path in sorted(tmp_path.iterdir())])
    assert ranks.job.ranks.tolist() == [0, 1, 2, 3]
    assert named(ranks) == {("slow-rank", "rank 2")}


@pytest.mark.parametrize("name", ["host_31337.1790000000000.pt.trace.json", "trace.json"])
def test_numbers_of_processes_and_times_are_no_ranks(
    name: str, nameless: dict[int, str], tmp_path: Path
) -> None:
    (tmp_path / name).write_text(nameless[0])
    with pytest.raises(MissingDataError, match="no rank in it, nor in its name"):
        summarise(tmp_path / name)
