"""A slow network card of one rank is named, although the links inside its node are fast."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.ranks.layouts import three_d
from benchmarks.ranks.simulate import Fault
from tests.ranks.jobs import made, named, true_saving_us


def test_a_slow_network_card_is_named_beside_fast_links_in_the_node(tmp_path: Path) -> None:
    """Tensor parallel inside the node, pipeline and data parallel between nodes: only rank 5 takes part in all slow transfers."""
    job = three_d(
        tensor=2,
        pipeline=2,
        data=2,
        per_node=2,
        steps=4,
        kernels=1,
        faults=(Fault("slow-nic", 5, 4.0),),
    )
    simulated, ranks = made(job, tmp_path)
    assert named(ranks) == {("slow-link", "rank 5")}
    true_us = true_saving_us(simulated, "slow-nic")
    assert true_us > 0.02 * simulated.step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
