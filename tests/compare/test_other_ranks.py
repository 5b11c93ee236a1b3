"""A comparison of one rank of each job says that the others are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.compare.traces import compare
from foretrace.ingest import open_trace


@pytest.mark.slow
def test_a_slower_rank_that_is_not_compared_is_pointed_to(tmp_path: Path) -> None:
    """Rank 1 gets slow, rank 0 waits for it: its communication grows, and nothing in its own recording says why."""
    traces = []
    for name, faults in (("before", ()), ("after", (Fault("slow-rank", 1, 1.5),))):
        job = data_parallel(world=2, steps=2, buckets=2, kernels=1, faults=faults)
        folder = write(simulate(job), tmp_path / name)
        traces.append(open_trace(folder / "rank0.json"))
    (note,) = (note for note in compare(*traces).notes if "foretrace ranks" in note)
    assert note.startswith("only rank 0 of 2 and rank 0 of 2 are compared")
