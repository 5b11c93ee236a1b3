"""A recording that ends too early does not spoil those of the other ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, simulate
from foretrace.ranks.reduce import reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import named, true_saving_us


@pytest.mark.slow
def test_a_rank_cut_off_before_its_marks_is_missing(tmp_path: Path) -> None:
    """Its steps are found by other marks than those of the others, or by none, and so have other numbers."""
    job = three_d(
        tensor=2, pipeline=1, data=4, per_node=4, steps=4, kernels=2, faults=(Fault("slow-rank", 5, 1.3),)
    )
    simulated = simulate(job)
    write(simulated, tmp_path)
    cut = tmp_path / "rank2.json"
    lines = cut.read_text().splitlines(keepends=True)
    events = sorted(lines[1:-1], key=lambda line: "ProfilerStep#" in line)
    text = "".join(line if line.endswith(",\n") else line.rstrip("\n") + ",\n" for line in events)
    cut.write_text(lines[0] + text[: len(text) * 3 // 4])
    ranks = reduce([summarise(path) for path in sorted(tmp_path.iterdir())])
    assert ranks.missing == (2,)
    assert list(ranks.unread) == ["rank2.json"]
    assert ranks.step_ns / 1e3 == pytest.approx(simulated.step_us, rel=1e-3)
    assert named(ranks) == {("slow-rank", "rank 5")}
    true_us = true_saving_us(simulated, "slow-rank")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
    assert ranks.findings[0].at_least
