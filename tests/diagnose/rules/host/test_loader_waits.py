"""input-bound with the waits of unprofiled steps: bursts, workers that would do, and workers that would not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rules.host.input_bound import input_bound
from foretrace.ingest.core_use import CoreUse
from foretrace.ingest.timed import LoaderTimes, Timed, named_workers
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.trace import Trace
from foretrace.trial import candidates
from tests.builders import Recording
from tests.diagnose.cpu_loops import ZEN4, cpu_loop
from tests.diagnose.loops import launches, loop

SINGLE = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
MS = 1_000_000


def waiting(name: str, *waits_us: float) -> Callable[[Recording, float], None]:
    """Steps of these waits, one after another, each with 20 ms of launches behind it."""
    left = list(waits_us)

    def body(recording: Recording, at: float) -> None:
        wait = left.pop(0)
        recording.annotation(name, at, at + wait)
        launches(recording, at + wait, 400, every=50)

    return body


def recorded(folder: Path, name: str, *waits_us: float, length: float) -> Trace:
    return loop(folder, length, waiting(name, *waits_us))


# 300 steps of 60 ms, of which 20 are work. 100 of them wait 120 ms: 40 at the mean. Two workers need 120 ms a batch.
BURSTS = LoaderTimes(
    workers=2,
    steps=300,
    step_ns=60 * MS,
    mean_ns=40 * MS,
    waits_ns=(0.0, 0.0, 120.0 * MS),
    waiting_steps=100,
    waiting_mean_ns=120 * MS,
    made_ns=120 * MS,
    made_cpu_ns=118 * MS,
)


def found(trace: Trace, timed: Timed, step_ms: float) -> list[Finding]:
    made = diagnose(Case(trace, step_ns=step_ms * 1e6, timed=timed), (input_bound,))
    assert not made.unchecked, made.unchecked
    return list(made.findings)


def test_bursts_that_the_recording_missed_are_promised(tmp_path: Path) -> None:
    """Ten workers, of which eight bring half a core each at worst, need 120 / 6 = 20 ms a batch: as long as the rest."""
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    (finding,) = found(trace, Timed((), BURSTS, cores=16), 60)
    assert finding.says.startswith(
        "3 of 10 steps wait 120 ms for the DataLoader (40.0 ms a step, 67 % of it on average)"
    )
    assert "its 2 workers are too slow" in finding.says
    assert finding.evidence["wait_pct"] == pytest.approx(66.7, rel=0.01)
    assert finding.evidence["workers_wanted_count"] == 10
    assert "num_workers=10" in finding.fix.code
    assert finding.predicted
    assert finding.predicted.after_ns.point / MS == pytest.approx(20, rel=0.03)
    assert finding.predicted.verdict == "gain"


def test_waits_that_only_the_recording_had_are_no_finding(tmp_path: Path) -> None:
    """The recorded steps wait 10 ms each; 300 unprofiled ones did not."""
    trace = recorded(tmp_path, WORKERS, 10_000, 10_000, 10_000, length=30_000)
    quick = replace(
        BURSTS, mean_ns=0.1 * MS, waits_ns=(0.1 * MS,), waiting_steps=0, waiting_mean_ns=0, step_ns=20 * MS
    )
    assert found(trace, Timed((), quick, cores=16), 20) == []


def test_cores_that_all_have_a_worker_leave_nothing_to_promise(tmp_path: Path) -> None:
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    (finding,) = found(trace, Timed((), BURSTS, cores=3), 60)
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"
    assert "2 workers have all of the 3 cores already" in finding.predicted.basis
    assert "num_workers" not in finding.fix.code


def test_workers_that_wait_themselves_are_not_promised(tmp_path: Path) -> None:
    """A processor works in a tenth of the time that a batch takes: the disk may limit."""
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    (finding,) = found(trace, Timed((), replace(BURSTS, made_cpu_ns=12 * MS), cores=16), 60)
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"
    assert "10 % of the time" in finding.predicted.basis


def test_cores_that_others_use_are_not_promised(tmp_path: Path) -> None:
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    (finding,) = found(trace, Timed((), replace(BURSTS, load_average=20.2), cores=16), 60)
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"
    assert "20 processes or threads compete for 16 cores" in finding.predicted.basis


def test_without_the_cores_twice_the_workers_are_tried(tmp_path: Path) -> None:
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    (finding,) = found(trace, Timed((), BURSTS), 60)
    assert finding.predicted
    assert finding.predicted.after_ns.point / MS == pytest.approx(30, rel=0.05)
    assert finding.predicted.verdict == "uncertain"


def test_nothing_else_helps_while_workers_set_the_pace(tmp_path: Path) -> None:
    """A host of half the time waits longer for the same batches."""
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    case = Case(trace, step_ns=60 * MS, timed=Timed((), BURSTS, cores=16))
    half = case.predict((Change("half the host", Edit(), host_scale=0.5),))
    assert half.speedup.point == pytest.approx(1.0)
    assert half.verdict == "no gain"
    assert "2 workers bring the input of a step every 60 ms" in half.basis


IN_PROCESS = replace(
    BURSTS,
    workers=0,
    mean_ns=40 * MS,
    waits_ns=(40.0 * MS,),
    waiting_steps=300,
    waiting_mean_ns=40 * MS,
    made_ns=40 * MS,
    made_cpu_ns=40 * MS,
    batch_bytes=1 << 20,
)


def test_a_slow_loader_in_the_main_process_gets_workers_by_its_pace(tmp_path: Path) -> None:
    """40 ms and the sending of 1 MiB (1.5 ms), in 20 ms of the rest: five workers, where each brings half a core."""
    trace = recorded(tmp_path, SINGLE, 40_000, 40_000, 40_000, length=60_000)
    (finding,) = found(trace, Timed((), IN_PROCESS, cores=16), 60)
    assert finding.says.startswith(
        "Every step waits for the DataLoader, 40.0 ms a step, 67 % of it: the main process"
    )
    assert finding.predicted
    assert finding.predicted.verdict == "gain"
    assert "5 workers (2 to 5)" in finding.predicted.basis
    assert "num_workers=5" in finding.fix.code
    assert finding.predicted.after_ns.point / MS == pytest.approx(20.1, rel=0.03)


BUSY = CoreUse(2e9, 2, own_ns=2.6e9, others_ns=1.4e9, waited_ns=0.6e9)


@pytest.mark.parametrize(
    "timed",
    [
        Timed((), IN_PROCESS, cores=1),
        Timed((), IN_PROCESS, cores=1.5),  # as of a container: less than two whole cores
        Timed((), IN_PROCESS, cores=2, core_use=BUSY),
        Timed((), IN_PROCESS, cores=16, core_use=replace(BUSY, usable=16, own_ns=3e9, others_ns=28e9)),
        Timed((), replace(IN_PROCESS, made_cpu_ns=4 * MS), cores=1),
    ],
)
def test_workers_are_not_advised_where_no_core_is_idle(tmp_path: Path, timed: Timed) -> None:
    trace = recorded(tmp_path, SINGLE, 40_000, 40_000, 40_000, length=60_000)
    (finding,) = found(trace, timed, 60)
    assert finding.predicted is None
    assert "num_workers" not in finding.fix.code
    assert finding.fix.says.startswith("Prepare less for each item")
    assert finding.evidence["workers_wanted_count"] == 0
    names = {
        proposal.name
        for proposal in candidates.propose(Diagnosis((finding,), (), (), None), None, numerics=False)
    }
    assert "workers" not in names


@pytest.mark.parametrize(
    ("timed", "fits"),
    [
        (Timed((), cores=1), False),
        (Timed((), cores=2, core_use=BUSY), False),
        (Timed((), cores=3), True),
        # Longer waits than steps: the timing's mean says nothing of the median step.
        (Timed((), replace(IN_PROCESS, mean_ns=90 * MS, waits_ns=(90.0 * MS,)), cores=1), False),
    ],
)
def test_nor_where_the_waits_of_unprofiled_steps_tell_nothing(
    tmp_path: Path, timed: Timed, fits: bool
) -> None:
    """Two idle cores besides the program's own take two workers."""
    (finding,) = found(loop_on_cpu(tmp_path), timed, 60)
    assert ("num_workers=2," in finding.fix.code) is fits
    assert ("num_workers" in finding.fix.code) is fits
    assert (finding.predicted is not None) is fits


@pytest.mark.slow
def test_cores_of_others_are_left_to_them(tmp_path: Path) -> None:
    """Of 16 cores others use 12 all of the time, and no thread waits: three workers and the program itself fit."""
    use = CoreUse(2e9, 16, own_ns=2e9, others_ns=24e9, waited_ns=0)
    trace = recorded(tmp_path, SINGLE, 40_000, 40_000, 40_000, length=60_000)
    (finding,) = found(trace, Timed((), IN_PROCESS, cores=16, core_use=use), 60)
    assert "num_workers=3" in finding.fix.code


def input_of_a_cpu_program(folder: Path, timed: Timed) -> Finding:
    """Its steps wait for the main process's own loader."""
    (finding,) = found(loop_on_cpu(folder), timed, 60)
    return finding


@pytest.mark.slow
def test_a_worker_that_takes_a_core_from_two_threads_is_not_promised(tmp_path: Path) -> None:
    """60 -> 41.5 ms, what a worker needs alone. Two threads that spin leave it two thirds of a core at worst: 62 ms, a loss."""
    two = Timed((), IN_PROCESS, cores=2, processor=replace(ZEN4, threads=2, cores=2))
    one = replace(two, processor=replace(ZEN4, threads=1, cores=2))
    crowded, spare = (input_of_a_cpu_program(tmp_path, timed) for timed in (two, one))
    for finding in (crowded, spare):
        assert finding.predicted
        assert "num_workers=1" in finding.fix.code
        assert finding.predicted.after_ns.point / MS == pytest.approx(41.5, rel=0.03)
    assert [finding.predicted.verdict for finding in (crowded, spare) if finding.predicted] == [
        "uncertain",
        "gain",
    ]
    slow = Timed((), replace(IN_PROCESS, made_ns=21 * MS, mean_ns=21 * MS, waits_ns=(21.0 * MS,)), cores=2)
    at_worst = [
        input_of_a_cpu_program(
            tmp_path, replace(slow, processor=replace(ZEN4, threads=threads, cores=2))
        ).predicted
        for threads in (2, 1)
    ]
    assert at_worst[0]
    assert at_worst[1]
    assert at_worst[0].after_ns.high > 1.3 * at_worst[1].after_ns.high


@pytest.mark.slow
def test_memory_is_pinned_only_for_a_gpu(tmp_path: Path) -> None:
    on_cpu = input_of_a_cpu_program(tmp_path, Timed((), IN_PROCESS, cores=4))
    assert "num_workers=" in on_cpu.fix.code
    assert "pin_memory" not in on_cpu.fix.code
    trace = recorded(tmp_path, SINGLE, 40_000, 40_000, 40_000, length=60_000)
    (with_gpu,) = found(trace, Timed((), IN_PROCESS, cores=4), 60)
    assert "pin_memory=True" in with_gpu.fix.code


def test_a_plain_recording_of_a_cpu_program_promises_no_workers(tmp_path: Path) -> None:
    """Its cores are not recorded: there may be one."""
    made = diagnose(Case(loop_on_cpu(tmp_path), step_ns=None), (input_bound,))
    (finding,) = made.findings
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"
    assert "how many cores are idle is not recorded" in finding.predicted.basis
    assert "pin_memory" not in finding.fix.code


def loop_on_cpu(folder: Path) -> Trace:
    """Steps of 60 ms, 40 of them waiting and 20 a product."""

    def body(recording: Recording, at: float) -> None:
        recording.annotation(SINGLE, at, at + 40_000)
        recording.op("aten::mm", at + 40_000, at + 60_000)

    return cpu_loop(folder, 60_000, body)


@pytest.mark.slow
def test_threads_of_the_main_process_are_one_in_a_worker(tmp_path: Path) -> None:
    """Four cores were busy for 40 ms, part of it waiting for one another: one needs 40 to 160, and 80 is taken.

    With three workers a batch comes every 27 ms (80 and 1.5 of sending), at worst every 54 ms; the rest takes 20 ms.
    """
    trace = recorded(tmp_path, SINGLE, 40_000, 40_000, 40_000, length=60_000)
    (finding,) = found(trace, Timed((), replace(IN_PROCESS, made_cpu_ns=160 * MS), cores=4), 60)
    assert finding.predicted
    assert "3 workers" in finding.predicted.basis
    assert finding.predicted.after_ns.point / MS == pytest.approx(81.5 / 3, rel=0.03)
    assert finding.predicted.after_ns.high / MS >= 161.5 / 3


@pytest.mark.slow
def test_items_that_cost_less_than_sending_them_stay(tmp_path: Path) -> None:
    """A batch of 64 MiB that is there in 2 ms takes a worker 63 ms: one worker would make the step of 22 ms three times as long."""
    trace = recorded(tmp_path, SINGLE, 2_000, 2_000, 2_000, length=22_000)
    cheap = replace(
        IN_PROCESS,
        step_ns=22 * MS,
        mean_ns=2 * MS,
        waits_ns=(2.0 * MS,),
        waiting_mean_ns=2 * MS,
        made_ns=2 * MS,
        made_cpu_ns=2 * MS,
        batch_bytes=64 << 20,
    )
    (finding,) = found(trace, Timed((), cheap, cores=2), 22)
    assert finding.predicted
    assert finding.predicted.speedup.point == pytest.approx(22 / 63, rel=0.05)
    assert finding.predicted.verdict == "no gain"
    assert "Sending it from a worker takes about 61.0 ms, making it 2.00 ms" in finding.fix.says
    assert "num_workers" not in finding.fix.code


BLOCKS = tuple(ms * 1e6 for ms in (20, 100, 20.1, 90, 70, 20.2, 60))


def test_an_older_run_tells_waits_by_its_blocks(tmp_path: Path) -> None:
    """The quickest blocks take 20 ms, the median 60; four workers by the command: 240 ms a batch, 22 fit into 24 cores."""
    trace = recorded(tmp_path, WORKERS, 100, 100, 10_000, length=35_000)
    (finding,) = found(trace, Timed(BLOCKS, cores=24, named_workers=4), 60)
    assert finding.says.startswith("Unprofiled steps took 20.0 ms to 100 ms;")
    assert finding.evidence["workers_wanted_count"] == 20
    assert finding.predicted
    assert finding.predicted.verdict == "gain"
    assert finding.predicted.after_ns.point / MS == pytest.approx(20, rel=0.06)


def test_an_older_run_that_does_not_name_its_workers_is_not_promised(tmp_path: Path) -> None:
    trace = recorded(tmp_path, WORKERS, 100, 100, 10_000, length=35_000)
    (finding,) = found(trace, Timed(BLOCKS, cores=24), 60)
    assert finding.predicted
    assert finding.predicted.verdict == "uncertain"


def test_even_blocks_tell_nothing(tmp_path: Path) -> None:
    trace = recorded(tmp_path, WORKERS, 100, 100, 100, length=20_200)
    case = Case(trace, step_ns=20 * MS, timed=Timed((20e6, 20.1e6, 20.3e6), cores=24, named_workers=4))
    assert case.loaded is None


@pytest.mark.parametrize(
    ("command", "workers"),
    [
        ("main.py -a resnet50 -j 4 --gpu 0", 4),
        ("train.py --num_workers=8", 8),
        ("train.py --workers 2", 2),
        ("train.py --dataloader-num-workers 6 --epochs 3", 6),
        ("train.py --data.num_workers 3", 3),
        ("train.py --workers-timeout 60", None),
        ("train.py --rollout-workers 60", None),
        ("train.py --workers auto", None),
        ("train.py", None),
    ],
)
def test_workers_that_a_command_names(command: str, workers: int | None) -> None:
    assert named_workers(command.split()) == workers
