"""A job read in part: every recording that is not compared is listed, and none of another profiling cycle is mixed in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks.ranks.layouts import data_parallel
from benchmarks.ranks.recordings import write
from benchmarks.ranks.simulate import Fault, Job, simulate
from foretrace.commands import main
from foretrace.ranks.cycles import Recording, choose
from foretrace.ranks.summarise import summarise
from foretrace.ranks.summary import SUFFIX, Summary
from tests.ranks.jobs import true_saving_us

RANKS = 4
PAUSE_NS = 60 * 10**9  # from the start of one cycle to that of the next
JOB = data_parallel(world=RANKS, steps=3, buckets=2, kernels=1)
SLOW = Fault("slow-rank", 2, 1.3)


def of_job(job: Job, folder: Path) -> list[Summary]:
    write(simulate(job), folder)
    return [summarise(path) for path in sorted(folder.iterdir())]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """Steps 3 to 5 of four ranks that nothing holds up."""
    return of_job(JOB, tmp_path_factory.mktemp("healthy"))


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> list[Summary]:
    """A later cycle of the same ranks, steps 13 to 15, in which rank 2 computes 30 % longer."""
    job = replace(JOB, faults=(SLOW,), first_step=13, seed=2)
    return [later(summary) for summary in of_job(job, tmp_path_factory.mktemp("slow"))]


def later(summary: Summary, cycles: int = 1) -> Summary:
    return replace(summary, epoch_ns=summary.epoch_ns + cycles * PAUSE_NS)


def keep(folder: Path, summaries: Iterable[Summary], name: str = "rank") -> Path:
    """A folder with these summaries, which need no worker to be read."""
    folder.mkdir(exist_ok=True)
    for summary in summaries:
        (folder / f"{name}{summary.rank}{SUFFIX}").write_bytes(summary.to_bytes())
    return folder


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["ranks", *map(str, arguments)])
    output = capsys.readouterr()
    return code, " ".join(output.out.split()), output.err


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    main(["ranks", *map(str, arguments), "--format", "json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def numbered(summaries: Sequence[Summary], name: str = "rank") -> list[Recording]:
    return [Recording(f"{name}{summary.rank}", summary) for summary in summaries]


@pytest.mark.slow
def test_the_latest_whole_cycle_is_compared_and_the_other_one_listed(
    healthy: list[Summary], slow: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(keep(tmp_path / "job", healthy, "first"), slow, "second")
    code, out, err = ask(capsys, folder)
    assert code == 0
    assert "Cycle 2 of 2 (steps 13 to 15); 4 recordings of other cycles skipped." in out
    assert "rank 2 computes" in out
    for rank in range(RANKS):
        assert f"first{rank}{SUFFIX}: rank {rank} of cycle 1 of 2 (steps 3 to 5)" in err
    answer = document(capsys, folder)
    assert answer["cycle"] == {"number": 2, "count": 2, "steps": [13, 15], "ranks": RANKS}
    assert answer["steps"] == [13, 14, 15]
    assert [(unused["why"], unused["rank"]) for unused in answer["unused"]] == [
        ("other-cycle", rank) for rank in range(RANKS)
    ]


def test_another_cycle_can_be_chosen(
    healthy: list[Summary], slow: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(keep(tmp_path / "job", healthy, "first"), slow, "second")
    answer = document(capsys, folder, "--cycle", 1)
    assert (answer["steps"], answer["findings"]) == ([3, 4, 5], [])
    code, _, err = ask(capsys, folder, "--cycle", 3)
    assert code == 2
    assert "no cycle 3" in err
    assert "cycle 2 of 2 (steps 13 to 15): 4 ranks" in err


def test_cycles_are_not_mixed_where_one_rank_has_more_steps_in_another(
    healthy: list[Summary], slow: list[Summary]
) -> None:
    """Rank 3 recorded a step fewer in the last cycle: its longer recording of the first is of another time all the same."""
    short = replace(slow[3], steps=slow[3].steps.filter(pl.col("step") > 13))
    chosen = choose(numbered(healthy, "first") + numbered([*slow[:3], short], "second"))
    assert {recording.path for recording in chosen.recordings} == {f"second{rank}" for rank in range(RANKS)}


def test_a_cycle_that_most_ranks_recorded_comes_before_a_later_one(
    healthy: list[Summary], slow: list[Summary]
) -> None:
    chosen = choose(numbered(healthy, "first") + numbered(slow[:2], "second"))
    assert {recording.path for recording in chosen.recordings} == {f"first{rank}" for rank in range(RANKS)}
    assert [unused.path for unused in chosen.unused] == ["second0", "second1"]


def test_a_rank_with_one_recording_of_another_cycle_is_missing(
    healthy: list[Summary], slow: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No rank has two recordings, and one is still of another time."""
    folder = keep(keep(tmp_path / "job", healthy[:3]), slow[3:])
    code, out, err = ask(capsys, folder)
    assert code == 4
    assert "3 of 4 ranks read, without rank 3" in out
    assert "rank 3 of cycle 2 of 2" in err


@pytest.mark.parametrize("marks", ["profiler", "optimizer"])
def test_runs_that_count_alike_are_told_apart_by_time(healthy: list[Summary], marks: str) -> None:
    """Steps 3 to 5 twice, a minute apart; the second rank's first recording is gone, and so is the last one's second."""
    first = [replace(summary, marks=marks) for summary in healthy]
    second = [later(summary) for summary in first]
    chosen = choose(numbered([first[0], *first[2:]], "first") + numbered(second[:3], "second"))
    times = {recording.start_ns // PAUSE_NS for recording in chosen.recordings}
    assert len({recording.path.rstrip("0123") for recording in chosen.recordings}) == 1, times
    assert len(chosen.recordings) == 3
    assert chosen.cycle is not None
    assert (chosen.cycle.number, chosen.cycle.count) == (2, 2)


def test_hosts_with_clocks_apart_are_one_cycle(healthy: list[Summary]) -> None:
    """Without a second recording nothing tells that five seconds are more than two clocks that differ."""
    apart = [
        replace(
            summary, host=f"host{summary.rank % 2}", epoch_ns=summary.epoch_ns + summary.rank % 2 * 5 * 10**9
        )
        for summary in healthy
    ]
    chosen = choose(numbered(apart))
    assert (len(chosen.recordings), chosen.unused, chosen.cycle) == (RANKS, (), None)


def test_jobs_of_other_sizes_are_not_mixed(healthy: list[Summary]) -> None:
    larger = [replace(summary, world=8, rank=summary.rank + 4) for summary in healthy]
    chosen = choose(numbered(healthy) + numbered(larger))
    assert len({recording.summary.world for recording in chosen.recordings}) == 1
    assert len(chosen.unused) == RANKS


def test_of_duplicates_the_whole_one_is_used(
    healthy: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(tmp_path / "job", healthy)
    cut = replace(healthy[1], repairs=(("truncated", 1),))
    (folder / f"a_copy{SUFFIX}").write_bytes(cut.to_bytes())
    code, out, err = ask(capsys, folder)
    assert code == 0
    assert "1 recording skipped as duplicates" in out
    assert f"a_copy{SUFFIX}: rank 1 again; {folder}/rank1{SUFFIX} is used" in err
    assert "cut off" not in out
    (unused,) = document(capsys, folder)["unused"]
    assert (unused["why"], unused["rank"], unused["path"]) == ("duplicate", 1, f"{folder}/a_copy{SUFFIX}")


def test_unreadable_recordings_are_listed_and_the_job_is_read_in_part(
    healthy: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(tmp_path / "job", healthy)
    (folder / f"rank3{SUFFIX}").write_bytes(b"nothing")
    code, out, err = ask(capsys, folder)
    assert code == 4
    assert "Read in part: 3 of 4 ranks read, without rank 3; 1 recording could not be read. 3 ranks," in out
    assert "no rank, node, stage or input holds the others up" not in out
    assert f"rank3{SUFFIX}: not a summary of a rank" in err
    assert "3 of 4 ranks read whole, fewer than 90 % (--min-read)" in err
    assert ask(capsys, folder, "--min-read", 75)[0] == 0
    assert ask(capsys, folder, "--table", "clocks")[0] == 4
    answer = document(capsys, folder)
    assert (answer["missing"], answer["read_pct"]) == ([3], 75.0)
    assert [unused["why"] for unused in answer["unused"]] == ["unreadable"]


def test_a_bad_file_beside_a_whole_job_is_listed(
    healthy: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(tmp_path / "job", healthy)
    (folder / f"bad_9{SUFFIX}").write_bytes(b"nothing")
    code, out, err = ask(capsys, folder)
    assert code == 0
    assert "1 recording could not be read. 4 ranks," in out
    assert "Read in part" not in out
    assert f"bad_9{SUFFIX}" in err
    assert document(capsys, folder)["missing"] == []


def test_names_tell_the_ranks_that_could_not_be_read_where_nothing_tells_their_number(
    healthy: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the number of ranks in the recordings, a job without its last ranks would look whole."""
    named = [replace(summary, world=None, source=f"rank{summary.rank}.json") for summary in healthy]
    folder = keep(tmp_path / "job", named[:3])
    (folder / f"rank3{SUFFIX}").write_bytes(b"nothing")
    answer = document(capsys, folder)
    assert (answer["world"], answer["missing"]) == (4, [3])


def test_a_truncated_recording_is_listed(
    healthy: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = replace(healthy[1], repairs=(("truncated", 1),))
    folder = keep(tmp_path / "job", [healthy[0], cut, *healthy[2:]])
    code, out, err = ask(capsys, folder)
    assert code == 4  # three of four are whole
    assert "Read in part: rank 1 cut off. 4 ranks," in out
    assert "rank 1: its recording is cut off" in err
    answer = document(capsys, folder)
    assert (answer["cut_off"], answer["missing"], answer["read_pct"]) == ([1], [], 75.0)


def test_the_fault_of_the_chosen_cycle_costs_what_it_does_in_that_cycle(
    healthy: list[Summary], slow: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = keep(keep(tmp_path / "job", healthy, "first"), slow, "second")
    simulated = simulate(replace(JOB, faults=(SLOW,), first_step=13, seed=2))
    (finding,) = document(capsys, folder)["findings"]
    assert (finding["what"], finding["who"]) == ("slow-rank", "rank 2")
    true_ms = true_saving_us(simulated, "slow-rank") / 1e3
    assert finding["worth_ms"] == pytest.approx(true_ms, abs=0.005 * simulated.step_us / 1e3)


def test_findings_name_hosts(slow: list[Summary], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A host is what can be drained; the number of a node is not."""
    folder = keep(tmp_path / "job", (replace(summary, host=f"gpu-{summary.rank}") for summary in slow))
    (finding,) = document(capsys, folder)["findings"]
    assert finding["hosts"] == ["gpu-2"]
    assert "(host gpu-2)" in ask(capsys, folder)[1]
    assert "gpu-3" in ask(capsys, folder, "--table", "clocks")[1]
