"""What findings are worth: nothing is named that costs nothing, nor communication unless it takes most of the step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.simulate import Fault
from benchmarks.ranks.tiles import tiled
from foretrace.ranks import findings
from foretrace.ranks.reduce import reduce
from foretrace.ranks.relief import Relief
from tests.ranks.jobs import SMALL, made, named, simulate, summaries

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize(("bucket_mib", "is_named"), [(128, False), (256, True)])
def test_communication_that_nothing_hides_is_told_and_named_where_it_takes_most(
    bucket_mib: int, *, is_named: bool
) -> None:
    """Gradients take longer than the backward pass on every rank alike; what hiding them is worth, a run without them tells."""
    job = data_parallel(world=8, bucket_bytes=bucket_mib * MIB, per_node=4, **SMALL)
    simulated, ranks = made(job)
    fast = simulate(replace(job, inter_bytes_per_us=1e12, intra_bytes_per_us=1e12))
    saved_us = simulated.step_us - fast.step_us
    document = ranks.to_dict()
    assert document["exposed_transfer_ms"] == pytest.approx(saved_us / 1e3, rel=0.02, abs=0.02)
    assert document["exposed_transfer_pct"] == pytest.approx(100 * saved_us / simulated.step_us, abs=2)
    assert bool(saved_us / simulated.step_us > findings.MOST_EXPOSED) == is_named
    assert named(ranks) == ({("exposed-communication", "all ranks")} if is_named else set())
    assert document["combined_ms"] == 0


def test_of_communication_that_is_not_matched_nothing_is_told() -> None:
    """A job of one rank, whose collectives nobody else is in."""
    _, ranks = made(data_parallel(world=1, **SMALL))
    document = ranks.to_dict()
    assert document["exposed_transfer_pct"] is None
    assert document["exposed_transfer_ms"] is None


@pytest.mark.slow
def test_causes_that_hide_behind_each_other_say_so() -> None:
    """Two jobs that do not communicate, each with a slow rank: mending one saves nothing until the other is mended."""
    job = data_parallel(world=8, faults=(Fault("slow-rank", 3, 1.3),), **SMALL)
    _, one = made(job)
    ranks = reduce(tiled(summaries(job), 16), ranks_per_node=8)
    assert named(ranks) == {("slow-rank", "rank 3"), ("slow-rank", "rank 11")}
    for finding in ranks.findings:
        assert finding.worth_ns < findings.LEAST_WORTH * ranks.step_ns
        assert finding.says.endswith("alone that costs nothing, since others hold the job up as much")
    assert ranks.judged.combined_ns == pytest.approx(one.judged.combined_ns, rel=1e-6)


def _cause(who: int, *, if_costly: bool = False) -> findings._Cause:
    left = np.ones((4, 1))
    left[who] = 0.5
    return findings._Cause(
        "slow-rank", f"rank {who}", (who,), "", Relief({"computation": left}), if_costly=if_costly
    )


def test_what_saves_nothing_alone_nor_beside_others_is_not_named() -> None:
    """A step of 100: ranks take 60, 50, 50 and 1, and the longest counts. The last one is never it."""
    takes = np.array([60.0, 50.0, 50.0, 1.0])

    def saved_ns(relief: Relief) -> float:
        left = relief.parts["computation"][:, 0] if relief.parts else np.ones(4)
        return float(takes.max() - (takes * left).max())

    kept = findings._costly([_cause(0), _cause(1), _cause(2), _cause(3)], saved_ns, 100.0)
    assert [(cause.who, worth) for cause, worth in kept] == [
        ("rank 0", 10.0),
        ("rank 1", 0.0),
        ("rank 2", 0.0),
    ]
    assert findings._costly([_cause(1), _cause(3)], saved_ns, 100.0) == []
