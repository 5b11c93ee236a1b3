"""Planted faults are named, with what they cost, and nothing else is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ranks.layouts import data_parallel, experts, sharded, three_d
from benchmarks.ranks.recordings import Style, write
from benchmarks.ranks.simulate import Fault, Job, simulate
from foretrace.ranks.reduce import Ranks, reduce
from foretrace.ranks.summarise import summarise
from tests.ranks.jobs import made, named, true_saving_us

SMALL = {"steps": 4, "kernels": 2}
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


@pytest.mark.parametrize("name", JOBS)
def test_planted_faults_are_named_and_no_others(name: str, tmp_path: Path) -> None:
    job = JOBS[name]
    simulated, ranks = made(job, tmp_path)
    assert named(ranks) == {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in job.faults}
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)
        assert not finding.at_least
    assert ranks.step_ns / 1e3 == pytest.approx(simulated.step_us, rel=1e-3)


HEALTHY = {
    "3d": three_d(tensor=2, pipeline=2, data=4, **SMALL),
    "ddp": data_parallel(world=8, **SMALL),
    "fsdp": sharded(world=8, **SMALL),
    "moe": experts(world=8, expert=4, **SMALL),
}


@pytest.mark.parametrize("name", HEALTHY)
@pytest.mark.parametrize("numbered", [True, False])
def test_nothing_is_found_in_a_healthy_job(name: str, numbered: bool, tmp_path: Path) -> None:
    style = Style(numbered=numbered, on_kernels=numbered, shuffled_names=not numbered)
    _, ranks = made(HEALTHY[name], tmp_path, style)
    assert ranks.findings == ()
    assert ranks.judged.combined_ns == 0
    assert ranks.matches.whole[ranks.matches.number][ranks.job.group >= 0].all()


@pytest.mark.parametrize("style", [Style(launched=False, ends="both"), Style(numbered=False, ends="none")])
def test_faults_are_named_whatever_the_recording_leaves_out(style: Style, tmp_path: Path) -> None:
    """Without launches work is in the step that it starts in; messages are paired by both ends, or by their group of two."""
    job = JOBS["3d"]
    simulated, ranks = made(job, tmp_path, style)
    assert named(ranks) == {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in job.faults}
    for finding in ranks.findings:
        true_us = true_saving_us(simulated, finding.what)
        assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


def test_buckets_behind_a_late_one_were_ready_before_it_ended(tmp_path: Path) -> None:
    """Without launches the others' buckets seem to be ready after the whole backward pass; the late rank's own tell better."""
    late = Fault("late-input", 6, late_us=9_000, steps=tuple(range(4)))
    simulated, ranks = made(data_parallel(world=8, faults=(late,), **SMALL), tmp_path, Style(launched=False))
    assert named(ranks) == {("late-input", "rank 6")}
    true_us = true_saving_us(simulated, "late-input")
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


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


@pytest.mark.parametrize("name", ["3d", "ddp"])
def test_steps_that_scatter_are_no_slow_ranks(name: str, tmp_path: Path) -> None:
    """Each rank's steps differ by 4 %: of a few steps and ranks some are last more often than others, by chance."""
    for seed in range(3):
        job = replace(HEALTHY[name], jitter=0.04, seed=seed)
        _, ranks = made(job, tmp_path / str(seed))
        assert named(ranks) == set()


def test_input_that_a_node_waits_for_is_one_finding(tmp_path: Path) -> None:
    """Of four ranks that wait in the same steps none alone would save anything."""
    late = tuple(Fault("late-input", rank, late_us=9_000, steps=(1, 3)) for rank in (4, 5, 6, 7))
    job = three_d(tensor=2, pipeline=1, data=4, per_node=4, faults=late, **SMALL)
    simulated, ranks = made(job, tmp_path)
    assert named(ranks) == {("late-input", "node 1")}
    true_us = simulated.step_us - simulate(replace(job, faults=())).step_us
    assert ranks.findings[0].worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


def test_a_node_whose_ranks_all_compute_slowly_is_one_finding(tmp_path: Path) -> None:
    """And a rank of it that is slower still is another."""
    faults = (Fault("hot-node", 2, 1.1), Fault("slow-rank", 9, 1.2))
    for count in (1, 2):
        job = three_d(tensor=2, pipeline=1, data=8, per_node=4, faults=faults[:count], **SMALL)
        simulated, ranks = made(job, tmp_path / str(count))
        assert named(ranks) == set([("slow-node", "node 2"), ("slow-rank", "rank 9")][:count])
        for finding in ranks.findings:
            true_us = true_saving_us(simulated, {"slow-node": "hot-node"}.get(finding.what, finding.what))
            assert finding.worth_ns / 1e3 == pytest.approx(true_us, abs=0.005 * simulated.step_us)


def test_missing_and_cut_off_ranks_are_rebuilt_from_their_neighbours(tmp_path: Path) -> None:
    """3 of 64: waiting for them would look like transfer, and worths fall to less than half."""
    faults = (
        Fault("slow-rank", 41, 1.3),
        Fault("slow-node", 1, 3.0),
        Fault("slow-stage", 3, 1.15),
        Fault("late-input", 2, late_us=20_000, steps=(1, 3)),
    )
    job = three_d(tensor=4, pipeline=4, data=4, micro=2, layers=1, steps=4, kernels=1, faults=faults)
    simulated = simulate(job)
    write(simulated, tmp_path)
    whole = [summarise(path) for path in sorted(tmp_path.iterdir())]
    true_us = {fault.what: true_saving_us(simulated, fault.what) for fault in faults}
    told = {(fault.what, f"{WHO[fault.what]} {fault.who}") for fault in faults}

    def agrees(ranks: Ranks) -> None:
        assert named(ranks) == told
        for finding in ranks.findings:
            assert finding.at_least
            assert finding.worth_ns / 1e3 == pytest.approx(
                true_us[finding.what], abs=0.005 * simulated.step_us
            )

    for missing in ((0, 17, 40), (3, 22, 61), (9, 10, 35)):
        ranks = reduce([each for each in whole if each.rank not in missing], ranks_per_node=8)
        agrees(ranks)
        assert ranks.to_dict()["missing"] == list(missing)
        assert ranks.to_dict()["ranks_read"] == 61
    cut = {}
    for rank in (9, 41, 50):  # the slow one too: its first steps are whole
        lines = (tmp_path / f"rank{rank}.json").read_text().splitlines(keepends=True)
        lines[1:-1] = sorted(lines[1:-1], key=lambda line: float(line.split('"ts": ')[1].split(",")[0]))
        text = "".join(line if line.endswith(",\n") else line.rstrip("\n") + ",\n" for line in lines[1:-1])
        (tmp_path / f"rank{rank}.json").write_text(lines[0] + text[: len(text) * 3 // 4])
        cut[rank] = summarise(tmp_path / f"rank{rank}.json")
    agrees(reduce([cut.get(each.rank, each) for each in whole], ranks_per_node=8))


def test_missing_ranks_make_worths_lower_bounds(tmp_path: Path) -> None:
    job: Job = JOBS["overlapped buckets"]
    _, ranks = made(job, tmp_path, missing=(1, 4))
    assert ranks.missing == (1, 4)
    document = ranks.to_dict()
    assert document["missing"] == [1, 4]
    assert document["ranks_read"] == 6
    assert all(finding["at_least"] for finding in document["findings"])
    assert ("slow-rank", "rank 3") in named(ranks)


def test_the_document_has_the_documented_members(tmp_path: Path) -> None:
    _, ranks = made(JOBS["sharded"], tmp_path)
    document = ranks.to_dict()
    assert list(document) == [
        "schema", "world", "ranks_read", "missing", "cut_off", "read_pct", "unused", "cycle", "steps", "steps_left_out",
        "clock_residual_us", "step_ms", "findings", "combined_ms", "exposed_transfer_pct", "exposed_transfer_ms",
        "input_ms", "pauses_ms",
    ]  # fmt: skip
    assert [list(finding) for finding in document["findings"]] == [
        ["what", "who", "worth_ms", "at_least", "hosts"]
    ]


def test_stages_are_known_around_missing_ranks(tmp_path: Path) -> None:
    """A pipeline of which a rank is missing still has its stages: no rank is compared with those of another."""
    job = three_d(tensor=2, pipeline=4, data=2, **SMALL)
    _, ranks = made(job, tmp_path, missing=(2, 9))
    assert ranks.roles.stage.tolist() == [job.stage(rank) for rank in ranks.job.ranks.tolist()]
    assert ranks.findings == ()
