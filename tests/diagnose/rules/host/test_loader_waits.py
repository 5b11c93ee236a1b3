"""input-bound with the waits of unprofiled steps: bursts, workers that would do, and workers that would not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.rules.host.input_bound import input_bound
from foretrace.ingest.timed import LoaderTimes, Timed, named_workers
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit
from foretrace.trace import Trace
from tests.builders import Recording
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
