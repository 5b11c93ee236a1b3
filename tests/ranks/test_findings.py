"""Planted faults are named, with what they cost, and nothing else is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel, experts, sharded, three_d
from benchmarks.ranks.recordings import Style, recording, write
from benchmarks.ranks.simulate import Fault, Job
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import (
    DATA,
    EXPERTS,
    PIPELINE,
    SHARDED,
    SMALL,
    made,
    named,
    simulate,
    summaries,
    true_saving_us,
)  # fmt: skip

WHO = {
    "slow-rank": "rank",
    "late-input": "rank",
    "imbalance": "rank",
    "slow-node": "node",
    "slow-stage": "stage",
}


JOBS = {
    "3d": three_d(
        tensor=2,
        pipeline=4,
        data=4,
        per_node=4,
        faults=(
            Fault("slow-rank", 13, 1.3),
            Fault("slow-node", 1, 3.0),
            Fault("slow-stage", 3, 1.15),
            Fault("late-input", 6, late_us=9_000, steps=(1, 3)),
        ),
        **SMALL,
    ),
    "1f1b": three_d(
        tensor=4,
        pipeline=3,
        data=2,
        order="tpd",
        schedule="1f1b",
        micro=5,
        per_node=4,
        faults=(Fault("slow-rank", 5, 1.25), Fault("slow-stage", 2, 1.12)),
        **SMALL,
    ),
    "overlapped buckets": data_parallel(
        world=8,
        faults=(Fault("slow-rank", 3, 1.3), Fault("late-input", 6, late_us=20_000, steps=(2,))),
        **SMALL,
    ),
    "sharded": sharded(world=16, shard=4, faults=(Fault("slow-rank", 5, 1.2),), **SMALL),
    "experts": experts(
        world=16, expert=4, faults=(Fault("imbalance", 5, 1.5), Fault("slow-rank", 11, 1.2)), **SMALL
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_planted_faults_are_named_and_no_others(name: str) -> None:
    job = JOBS[name]
    simulated, ranks = made(job)
    assert named(ranks) == {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in job.faults}
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
        assert not finding.at_least
    assert ranks.step_ns / 1e3 == pytest.approx(simulated.step_us, rel=1e-3)


UNNUMBERED = Style(numbered=False, on_kernels=False, shuffled_names=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "style"),
    [
        pytest.param(PIPELINE, Style(), id="3d"),
        pytest.param(DATA, Style(), id="ddp"),
        pytest.param(SHARDED, Style(), id="fsdp"),
        pytest.param(EXPERTS, Style(), id="moe"),
        pytest.param(PIPELINE, UNNUMBERED, id="3d, unnumbered"),
        pytest.param(EXPERTS, UNNUMBERED, id="moe, unnumbered"),
    ],
)
def test_nothing_is_found_in_a_healthy_job(job: Job, style: Style) -> None:
    _, ranks = made(job, style)
    assert ranks.findings == ()
    assert ranks.judged.combined_ns == 0
    assert ranks.matches.whole[ranks.matches.number][ranks.job.group >= 0].all()


@pytest.mark.slow
@pytest.mark.parametrize("style", [Style(launched=False, ends="both"), Style(numbered=False, ends="none")])
def test_faults_are_named_whatever_the_recording_leaves_out(style: Style) -> None:
    """Without launches work is in the step that it starts in; messages are paired by both ends, or by their group of two."""
    job = three_d(tensor=2, pipeline=4, data=2, per_node=4, faults=JOBS["3d"].faults, **SMALL)
    simulated, ranks = made(job, style)
    assert named(ranks) == {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in job.faults}
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_buckets_behind_a_late_one_were_ready_before_it_ended() -> None:
    """Without launches the others' buckets seem to be ready after the whole backward pass; the late rank's own tell better."""
    late = Fault("late-input", 6, late_us=9_000, steps=tuple(range(4)))
    simulated, ranks = made(data_parallel(world=8, faults=(late,), **SMALL), Style(launched=False))
    assert named(ranks) == {("late-input", "rank 6")}
    true_us = true_saving_us(simulated, "late-input")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_faults_are_named_where_some_ranks_have_no_steps(tmp_path: Path) -> None:
    """Ranks that load no data have no marks of steps: the whole recording is one step, and messages still find each other."""
    faults = (Fault("slow-rank", 9, 1.3), Fault("slow-stage", 3, 1.25))
    job = three_d(tensor=2, pipeline=4, data=2, faults=faults, **SMALL)
    simulated = simulate(job)
    write(simulated, tmp_path)
    for rank in range(4, 12):
        path = tmp_path / f"rank{rank}.json"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(line for line in lines if not re.search("ProfilerStep|DataLoader", line)))
    summaries = [summarise(path) for path in sorted(tmp_path.iterdir())]
    ranks = reduce(summaries, ranks_per_node=job.per_node)
    assert ranks.matches.whole[ranks.matches.number][ranks.job.group >= 0].all()
    assert ranks.job.steps.tolist() == [0]
    assert named(ranks) == {("slow-rank", "rank 9"), ("slow-stage", "stage 3")}
    total_us = SMALL["steps"] * simulated.step_us
    assert ranks.step_ns / 1e3 == pytest.approx(total_us, rel=0.001)
    for finding in ranks.findings:
        true_us = SMALL["steps"] * true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * total_us)


@pytest.mark.slow
@pytest.mark.parametrize(("job", "seed"), [(PIPELINE, 0), (DATA, 1), (DATA, 2)])
def test_steps_that_scatter_are_no_slow_ranks(job: Job, seed: int) -> None:
    """Each rank's steps differ by 4 %: of a few steps and ranks some are last more often than others, by chance."""
    _, ranks = made(replace(job, jitter=0.04, seed=seed))
    assert named(ranks) == set()


@pytest.mark.slow
def test_input_that_a_node_waits_for_is_one_finding() -> None:
    """Of four ranks that wait in the same steps none alone would save anything."""
    late = tuple(Fault("late-input", rank, late_us=9_000, steps=(1, 3)) for rank in (4, 5, 6, 7))
    job = three_d(tensor=2, pipeline=1, data=4, per_node=4, faults=late, **SMALL)
    simulated, ranks = made(job)
    assert named(ranks) == {("late-input", "node 1")}
    true_us = simulated.step_us - simulate(replace(job, faults=())).step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_a_node_whose_ranks_all_compute_slowly_is_one_finding() -> None:
    """And a rank of it that is slower still is another."""
    faults = (Fault("hot-node", 2, 1.1), Fault("slow-rank", 9, 1.2))
    job = three_d(tensor=2, pipeline=1, data=8, per_node=4, faults=faults, **SMALL)
    simulated, ranks = made(job)
    assert named(ranks) == {("slow-node", "node 2"), ("slow-rank", "rank 9")}
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, {"slow-node": "hot-node"}.get(finding.what, finding.what))
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


@pytest.mark.slow
def test_missing_and_cut_off_ranks_are_rebuilt_from_their_neighbours(tmp_path: Path) -> None:
    """3 of 32: waiting for them would look like transfer, and worths fall to less than half."""
    job = JOBS["3d"]
    faults = job.faults
    simulated, whole = simulate(job), summaries(job)
    true_us = {fault.what: true_saving_us(simulated, fault.what) for fault in faults}
    told = {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in faults}

    def agrees(ranks: Ranks) -> None:
        assert named(ranks) == told
        for finding in ranks.findings:
            assert finding.at_least
            assert finding.worth_ns / 1e3 == pytest.approx(
                true_us[finding.what], abs=0.005 * simulated.step_us
            )

    for missing in ((0, 17, 30), (3, 22, 29), (9, 10, 25)):
        _, ranks = made(job, missing=missing)
        agrees(ranks)
        assert ranks.to_dict()["missing"] == list(missing)
        assert ranks.to_dict()["ranks_read"] == 29
    cut = {}
    for rank in (9, 13, 26):  # the slow one too: its first steps are whole
        lines = recording(simulated, simulated.ranks[rank], Style()).splitlines(keepends=True)
        lines[1:-1] = sorted(lines[1:-1], key=lambda line: float(line.split('"ts": ')[1].split(",")[0]))
        text = "".join(line if line.endswith(",\n") else line.rstrip("\n") + ",\n" for line in lines[1:-1])
        (tmp_path / f"rank{rank}.json").write_text(lines[0] + text[: len(text) * 3 // 4])
        cut[rank] = summarise(tmp_path / f"rank{rank}.json")
    agrees(reduce([cut.get(each.rank, each) for each in whole], ranks_per_node=job.per_node))


@pytest.mark.slow
def test_missing_ranks_make_worths_lower_bounds() -> None:
    job: Job = JOBS["overlapped buckets"]
    _, ranks = made(job, missing=(1, 4))
    assert ranks.missing == (1, 4)
    document = ranks.to_dict()
    assert document["missing"] == [1, 4]
    assert document["ranks_read"] == 6
    assert all(finding["at_least"] for finding in document["findings"])
    assert ("slow-rank", "rank 3") in named(ranks)


@pytest.mark.slow
def test_the_document_has_the_documented_members() -> None:
    _, ranks = made(JOBS["sharded"])
    document = ranks.to_dict()
    assert list(document) == [
        "schema", "world", "ranks_read", "missing", "cut_off", "read_pct", "unused", "cycle", "steps", "steps_left_out",
        "clock_residual_us", "step_ms", "findings", "combined_ms", "exposed_transfer_pct", "exposed_transfer_ms",
        "input_ms", "pauses_ms",
    ]  # fmt: skip
    assert [list(finding) for finding in document["findings"]] == [
        ["what", "who", "worth_ms", "at_least", "hosts"]
    ]


@pytest.mark.slow
def test_stages_are_known_around_missing_ranks() -> None:
    """A pipeline of which a rank is missing still has its stages: no rank is compared with those of another."""
    _, ranks = made(PIPELINE, missing=(2, 9))
    assert ranks.roles.stage.tolist() == [PIPELINE.stage(rank) for rank in ranks.job.ranks.tolist()]
    assert ranks.findings == ()
