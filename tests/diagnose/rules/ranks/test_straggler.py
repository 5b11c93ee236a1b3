"""straggler: hand-made jobs, in which it is known who comes late, by how much and why; and one real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rules.ranks.straggler import straggler
from foretrace.errors import InputError, MissingDataError
from foretrace.trace import Trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.loops import launches, loop

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEP, BEGIN, GEMM, TRANSFER = 1_000.0, 10.0, 100.0, 50.0
LATE = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [300.0, 300.0, 300.0], [0.0, 0.0, 0.0]]


def rank(
    folder: Path,
    number: int,
    late: Sequence[Sequence[float]],
    *,
    why: str = "host",
    offset: float = 0.0,
    world: int | None = None,
    without: Sequence[int] = (),
    seq: bool = False,
    size: int = 1_000,
    chain: int = 1,
    cut: Sequence[int] = (),
    members: Sequence[int] | None = None,
    stream: int = 7,
) -> Trace:
    """Steps of 1 ms: 100 µs of computation, an all-reduce of 50 µs from when the last rank has come, and computation.

    A rank is late by what `late` says for it and each step: its host does nothing recorded, loads, or its kernel takes
    longer. `offset` moves its clock. A step has `chain` collectives in a row: none in steps `without`, the first in steps
    `cut`. Its group are all ranks, or its `members`. At the end the host waits for the device.
    """
    world = len(late) if world is None else world
    groups = [{"pg_name": "0", "pg_size": world, "ranks": list(range(world))}]
    recording = Recording(
        distributedInfo={"backend": "nccl", "rank": number, "world_size": world, "pg_config": groups}
    )
    for step, mine in enumerate(late[number]):
        start = offset + step * STEP
        last = max(late[each][step] for each in members or range(len(late)))
        recording.step(step, start, start + STEP)
        idle = 0.0 if why == "kernel" else mine
        if why == "input" and mine:
            recording.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + mine)
        if why == "stack" and mine:
            recording.python("train.py(12): checkpoint", start, start + mine)
        begin = start + idle + BEGIN
        arrival = begin + GEMM + (mine - idle)
        recording.launch(start + idle + 2, "gemm", begin, arrival, call=2)
        end = start + BEGIN + GEMM + last + TRANSFER
        for link in range(0 if step in without else 1 if step in cut else chain):
            about: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": size, "Out msg nelems": size, "dtype": "Float", "Group size": len(members or ()) or world, "Process Group Name": str(min(members or (0,)))}  # fmt: skip
            if seq:
                about["Seq"] = 10 * step + link
            recording.launch(start + idle + 5, NCCL, arrival, end, call=2, stream=stream, **about)
            arrival, end = end, end + TRANSFER
        recording.launch(start + idle + 8, "update", arrival, start + STEP - 10, call=2)
        recording.runtime("cudaStreamSynchronize", start + idle + 11, start + STEP - 5)
    return recording.open(folder, f"rank{number}.json")


def job(folder: Path, late: Sequence[Sequence[float]], **options: Any) -> list[Trace]:
    return [rank(folder, number, late, **options) for number in range(len(late))]


def diagnosed(traces: Sequence[Trace], number: int = 0, *, step_us: float | None = STEP) -> Diagnosis:
    others = [trace for trace in traces if trace is not traces[number]]
    step_ns = None if step_us is None else step_us * 1_000
    return diagnose(Case(traces[number], step_ns=step_ns, open_ranks=lambda: others), (straggler,))


def found(traces: Sequence[Trace], number: int = 0) -> list[Finding]:
    result = diagnosed(traces, number)
    assert not result.unchecked, result.unchecked
    return list(result.findings)


def test_one_of_several_ranks_is_not_enough(tmp_path: Path) -> None:
    trace = loop(
        tmp_path,
        1_000,
        lambda recording, at: launches(recording, at, 100),
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 4},
    )
    for case in (Case(trace), Case(trace, open_ranks=lambda: ())):
        with pytest.raises(MissingDataError, match="recordings of all ranks"):
            list(straggler(case))


def test_a_program_on_its_own_waits_for_nobody(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))

    def unwanted() -> list[Trace]:
        raise AssertionError("the others are not looked for")

    assert diagnose(Case(trace, open_ranks=unwanted), (straggler,)).checked == ("straggler",)


@pytest.mark.slow
def test_ranks_that_arrive_together_are_no_finding(tmp_path: Path) -> None:
    assert found(job(tmp_path, [[0.0] * 3] * 4)) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 2])
def test_the_late_rank_is_named_whichever_is_diagnosed(tmp_path: Path, number: int) -> None:
    """It comes 300 µs after all others; three quarters of that off a step of 1 ms leave 775 µs."""
    (finding,) = found(job(tmp_path, LATE), number)
    assert finding.evidence["late_rank"] == 2
    assert finding.evidence["late_ns"] == finding.evidence["excess_ns"] == 300_000
    assert finding.evidence["excess_pct"] == pytest.approx(30)
    assert finding.evidence["waiting_ranks_count"] == 3
    assert finding.evidence["more_other_ns"] == pytest.approx(300_000, rel=0.05)
    assert abs(finding.evidence["more_computation_ns"]) < 1_000
    assert finding.evidence["same_kernels_pct"] == pytest.approx(100)
    assert finding.says == (
        f"Rank 2{', the one diagnosed,' if number == 2 else ''} arrives 0.3 ms a step after the median rank, as the last in "
        "3 of 3 steps, and 3 ranks wait for it. Before that it spends 0.3 ms more than the median rank outside "
        "PyTorch: in Python, a sleep, input or output."
    )
    assert finding.predicted is not None
    assert finding.predicted.speedup.point == pytest.approx(1_000 / 775, rel=0.02)
    assert finding.predicted.speedup.low <= 1_000 / 850
    assert finding.predicted.speedup.high >= 1_000 / 700


@pytest.mark.slow
def test_clocks_need_not_agree(tmp_path: Path) -> None:
    """The late rank's clock is behind by more than it is late, and another is a minute ahead."""
    traces = [
        rank(tmp_path, number, LATE, offset=offset)
        for number, offset in enumerate((5_000, 60_000_000, 4_000, 5_100))
    ]
    (finding,) = found(traces)
    assert (finding.evidence["late_rank"], finding.evidence["late_ns"]) == (2, 300_000)


@pytest.mark.slow
def test_what_would_be_saved_ends_where_the_next_rank_comes(tmp_path: Path) -> None:
    late = [[0.0] * 3, [180.0] * 3, [300.0] * 3, [0.0] * 3]
    (finding,) = found(job(tmp_path, late))
    assert finding.evidence["late_ns"] == 300_000
    assert finding.evidence["excess_ns"] == 120_000


@pytest.mark.slow
def test_ranks_that_are_late_in_turn_are_no_finding(tmp_path: Path) -> None:
    late = [[300.0 * (step % 4 == number) for step in range(8)] for number in range(4)]
    assert found(job(tmp_path, late)) == []
    two = [[300.0, 0.0, 300.0], [0.0, 300.0, 0.0]]
    assert found(job(tmp_path, two)) == []


@pytest.mark.slow
def test_two_ranks_that_are_late_together_are_no_straggler(tmp_path: Path) -> None:
    assert found(job(tmp_path, [[0.0] * 3, [300.0] * 3, [300.0] * 3])) == []


@pytest.mark.slow
def test_less_than_three_percent_is_no_finding(tmp_path: Path) -> None:
    assert found(job(tmp_path, [[0.0] * 3, [25.0] * 3])) == []
    assert found(job(tmp_path, [[0.0] * 3, [35.0] * 3]))


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_slower_gpu_shows_in_the_same_kernels(tmp_path: Path, number: int) -> None:
    """Its 100 µs of computation take 400; the 530 µs behind the collective are the same."""
    (finding,) = found(job(tmp_path, [[0.0] * 3, [300.0] * 3, [0.0] * 3], why="kernel"), number)
    assert finding.evidence["more_computation_ns"] == pytest.approx(300_000)
    assert finding.evidence["same_kernels_pct"] == pytest.approx(100 * 930 / 630)
    assert "the same kernels take 48 % longer" in finding.says
    assert finding.predicted is not None
    assert finding.predicted.speedup.point == pytest.approx(1_000 / 775, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_waits_for_its_data(tmp_path: Path, number: int) -> None:
    (finding,) = found(job(tmp_path, [[0.0] * 3, [300.0] * 3, [0.0] * 3], why="input"), number)
    assert finding.evidence["more_input_ns"] == pytest.approx(300_000, rel=0.01)
    assert "waiting for its DataLoader" in finding.says
    assert finding.predicted is not None
    assert finding.predicted.speedup.point == pytest.approx(1_000 / 775, rel=0.02)


@pytest.mark.slow
def test_the_line_is_the_late_ranks(tmp_path: Path) -> None:
    (finding,) = found(job(tmp_path, LATE, why="stack"))
    assert [place.text for place in finding.where] == ["train.py in checkpoint, from line 12"]


@pytest.mark.slow
def test_steps_with_another_number_of_collectives_are_left_out(tmp_path: Path) -> None:
    traces = [rank(tmp_path, number, LATE, without=(2,) if number == 1 else ()) for number in range(4)]
    (finding,) = found(traces)
    assert finding.evidence["steps_count"] == 2
    assert finding.evidence["late_ns"] == 300_000


@pytest.mark.slow
@pytest.mark.parametrize(("seq", "steps"), [(True, 3), (False, 2)])
def test_with_numbers_a_collective_that_is_missing_costs_only_itself(
    tmp_path: Path, seq: bool, steps: int
) -> None:
    late = [[0.0] * 3, [0.0] * 3, [300.0] * 3]
    traces = [
        rank(tmp_path, number, late, seq=seq, chain=2, cut=(1,) if number == 1 else ()) for number in range(3)
    ]
    (finding,) = found(traces)
    assert finding.evidence["steps_count"] == steps
    assert finding.evidence["late_ns"] == 300_000


@pytest.mark.slow
def test_collectives_of_other_sizes_are_not_the_same(tmp_path: Path) -> None:
    traces = [rank(tmp_path, number, LATE, size=1_000 + number) for number in range(4)]
    (unchecked,) = diagnosed(traces).unchecked
    assert "0 of 12 collectives in the recordings of ranks 0, 1, 2, 3 match" in unchecked.why


@pytest.mark.slow
def test_nothing_is_promised_where_a_rank_was_not_recorded(tmp_path: Path) -> None:
    (finding,) = found([rank(tmp_path, number, LATE) for number in (0, 2, 3)])
    assert finding.evidence["late_rank"] == 2
    assert (finding.evidence["recorded_ranks_count"], finding.evidence["group_ranks_count"]) == (3, 4)
    assert finding.predicted is not None
    assert finding.predicted.verdict == "uncertain"
    assert finding.predicted.speedup.low <= 1
    assert "1 of 4 ranks were not recorded" in finding.predicted.basis


@pytest.mark.slow
def test_few_ranks_of_many_say_nothing(tmp_path: Path) -> None:
    (unchecked,) = diagnosed([rank(tmp_path, number, LATE, world=128) for number in range(4)]).unchecked
    assert "4 of 128 ranks' recordings" in unchecked.why


@pytest.mark.slow
def test_a_rank_that_takes_no_part_is_not_waited_for(tmp_path: Path) -> None:
    traces = [rank(tmp_path, number, LATE, without=range(3) if number == 3 else ()) for number in range(4)]
    (finding,) = found(traces)
    assert (finding.evidence["late_rank"], finding.evidence["waiting_ranks_count"]) == (2, 2)
    assert finding.evidence["recorded_ranks_count"] == 3


@pytest.mark.slow
def test_only_its_own_group_waits_for_a_rank(tmp_path: Path) -> None:
    pairs = ((0, 1), (0, 1), (2, 3), (2, 3))
    traces = [rank(tmp_path, number, LATE, members=pairs[number]) for number in range(4)]
    (finding,) = found(traces, 3)
    assert (finding.evidence["late_rank"], finding.evidence["waiting_ranks_count"]) == (2, 1)
    assert finding.evidence["group_ranks_count"] == 2
    assert finding.predicted is not None
    assert finding.predicted.speedup.point == pytest.approx(1_000 / 775, rel=0.02)


@pytest.mark.slow
def test_the_ranks_of_another_group_have_nothing_to_gain(tmp_path: Path) -> None:
    pairs = ((0, 1), (0, 1), (2, 3), (2, 3))
    traces = [rank(tmp_path, number, LATE, members=pairs[number]) for number in range(4)]
    (finding,) = found(traces, 0)
    assert finding.evidence["late_rank"] == 2
    assert finding.change is None
    assert "Not replayed: rank 0 does not wait for it" in finding.why


def test_no_step_in_common_is_told(tmp_path: Path) -> None:
    first = rank(tmp_path, 0, LATE)
    recording = Recording(distributedInfo={"backend": "nccl", "rank": 1, "world_size": 4})
    recording.step(7, 0, 100).launch(1, NCCL, 5, 50)
    (unchecked,) = diagnosed([first, recording.open(tmp_path, "rank1.json")]).unchecked
    assert unchecked.why == "the recordings of ranks 0, 1 have no step in common"


def test_a_rank_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    def broken() -> list[Trace]:
        raise InputError("rank1.json: broken")

    (unchecked,) = diagnose(Case(rank(tmp_path, 0, LATE), open_ranks=broken), (straggler,)).unchecked
    assert unchecked.why == "rank1.json: broken"


def test_recordings_of_one_rank_are_not_ranks(tmp_path: Path) -> None:
    (unchecked,) = diagnosed([rank(tmp_path, 0, LATE), rank(tmp_path, 0, LATE)]).unchecked
    assert "do not tell which ranks" in unchecked.why


def test_a_wait_that_computation_hides_costs_nothing(tmp_path: Path) -> None:
    """The waiting ranks compute on another stream until after the late one has come."""

    def hidden(number: int) -> Trace:
        recording = Recording(distributedInfo={"backend": "nccl", "rank": number, "world_size": 2})
        for step in range(3):
            start, late = 1_000.0 * step, 300.0 * number
            recording.step(step, start, start + 1_000)
            recording.launch(start + 2, "gemm", start + 10, start + 900)
            recording.launch(start + 5, NCCL, start + 100 + late, start + 450, stream=20)
            recording.runtime("cudaStreamSynchronize", start + 8, start + 995)
        return recording.open(tmp_path, f"rank{number}.json")

    assert found([hidden(0), hidden(1)]) == []


def beside(folder: Path, number: int, *, events: bool) -> Trace:
    """DDP: two halves of a backward of 600 µs, each with an all-reduce of 100 µs beside it on a stream of its own."""
    recording = Recording(distributedInfo={"backend": "nccl", "rank": number, "world_size": 2})
    for step in range(4):
        start, late = 1_400.0 * step, 300.0 * number
        recording.step(step, start, start + 1_400)
        at = start + late
        for half, (begin, end) in enumerate(((late + 311, 711), (max(713, late + 613), 1_013))):
            recording.launch(at + 6 * half + 2, "gemm", at + 302 * half + 10, at + 302 * half + 310)
            if events:
                recording.runtime("cudaEventRecord", at + 6 * half + 3, at + 6 * half + 3.5)
                recording.runtime("cudaStreamWaitEvent", at + 6 * half + 4, at + 6 * half + 4.5)
            recording.launch(at + 6 * half + 5, NCCL, start + begin, start + end, stream=20)
        recording.launch(at + 15, "update", start + 1_015, start + 1_385)
        recording.runtime("cudaDeviceSynchronize", at + 20, start + 1_392)
    return recording.open(folder, f"rank{number}.json")


@pytest.mark.slow
def test_collectives_beside_the_backward_are_late_once(tmp_path: Path) -> None:
    """Without the 300 µs the step of 1,400 µs would take 1,100; three quarters of that leave 1,175."""
    traces = [beside(tmp_path, number, events=True) for number in range(2)]
    (finding,) = diagnosed(traces, step_us=1_400).findings
    assert (finding.evidence["late_rank"], finding.evidence["late_ns"]) == (1, 300_000)
    assert finding.evidence["excess_ns"] <= 300_000, "computation hides a part"
    assert finding.predicted is not None
    assert finding.predicted.speedup.point == pytest.approx(1_400 / 1_175, rel=0.05)
    assert finding.predicted.speedup.high >= 1_400 / 1_100


@pytest.mark.slow
def test_nothing_is_replayed_where_what_waits_is_not_known(tmp_path: Path) -> None:
    traces = [beside(tmp_path, number, events=False) for number in range(2)]
    (finding,) = diagnosed(traces, step_us=1_400).findings
    assert finding.evidence["late_rank"] == 1
    assert finding.predicted is None
    assert "Not replayed: the recording does not tell what waits" in finding.why


@pytest.mark.slow
def test_collectives_in_a_row_are_late_once(tmp_path: Path) -> None:
    """Transfers side by side on host threads, each 300 µs longer than the late rank's: that is 300 µs, not 600."""

    def host(number: int) -> Trace:
        recording = Recording(distributedInfo={"backend": "gloo", "rank": number, "world_size": 2})
        for step in range(3):
            start, late = 1_000.0 * step, 300.0 * number
            recording.step(step, start, start + 1_000)
            recording.launch(start + late + 2, "gemm", start + late + 10, start + late + 50)
            recording.annotation("gloo:all_reduce", start + late + 50, start + 600, thread=201)
            recording.annotation("gloo:all_reduce", start + late + 100, start + 700, thread=202)
            recording.launch(start + 710, "update", start + 720, start + 990)
            recording.runtime("cudaStreamSynchronize", start + 715, start + 995)
        return recording.open(tmp_path, f"rank{number}.json")

    for number in (0, 1):
        (finding,) = found([host(0), host(1)], number)
        assert (finding.evidence["late_rank"], finding.evidence["late_ns"]) == (1, 300_000)
        assert finding.predicted is not None
        assert finding.predicted.speedup.point == pytest.approx(1_000 / 775, rel=0.03)


@needs_corpus
@pytest.mark.parametrize("number", range(4))
def test_the_recorded_job_in_which_rank_2_sleeps_8_ms(number: int) -> None:
    """Others come late as well, now and then, so its lateness is less than its sleep."""
    folder = CORPUS / "other" / "multirank_gloo"
    traces = [foretrace.open(folder / f"rank{each}.json.gz", cache=False) for each in range(4)]
    (finding,) = list(diagnosed(traces, number, step_us=None).findings)
    assert finding.evidence["late_rank"] == 2
    assert finding.evidence["late_steps_count"] == finding.evidence["steps_count"] == 3
    assert finding.evidence["more_other_ns"] == pytest.approx(8e6, rel=0.1)
    assert 4e6 < finding.evidence["late_ns"] < 8.5e6
    assert finding.predicted is not None
    assert finding.predicted.verdict == "gain", "the sleep is known to be there"
    assert finding.predicted.speedup.high > 1 / (1 - finding.evidence["excess_pct"] / 100)
