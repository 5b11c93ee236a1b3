"""Loaders in programs that are timed again: whose waits are kept, how long it takes, and that bursts are no warm-up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture.options import AGAIN
from foretrace.capture.recorder import Recorder
from foretrace.capture.run_folder import RunFolder
from foretrace.ingest.run import find_recorded
from tests.capture.programs import needs_torch
from tests.capture.test_recorder import fast, rank_facts, work

pytestmark = needs_torch


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run").create()


def batches(wait_s: Callable[[int], float]) -> Iterator[Any]:
    """Those of a DataLoader in this process, which makes each of them wait as it is told."""
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Slow(IterableDataset):  # type: ignore[misc, type-arg, unused-ignore]
        def __iter__(self) -> Iterator[Any]:
            for number in count():
                time.sleep(wait_s(number))
                yield torch.ones(4)

    return iter(DataLoader(Slow(), batch_size=1))


def timed_again_s(recorder: Recorder, data: Iterator[Any], step_s: Callable[[], float]) -> float:
    """Runs the program until all is recorded; the seconds in which it was timed again."""
    began = ended = 0.0
    for _ in range(20_000):
        if recorder.done:
            break
        next(data)
        work(step_s())
        recorder.step()
        if recorder._recording.open_kind == AGAIN:
            began, ended = began or time.monotonic(), time.monotonic()
    assert recorder.done
    return ended - began


def test_the_waits_are_those_of_the_timing_that_is_used(folder: RunFolder) -> None:
    """Its work takes 30 ms until the light pass is over, and then 4 ms; each batch takes 2 ms all the time."""
    recorder = Recorder(fast(folder.path, time_s=1.0, passes=("light",)), folder, 0)
    data = batches(lambda _: 0.002)
    timed_again_s(recorder, data, lambda: 0.004 if recorder._kept.passes else 0.03)
    facts = rank_facts(folder)
    assert facts["settling"]["verdict"] == "faster"
    assert facts["unprofiled"] == facts["timed_again"] != facts["timed_first"]
    loader, again = facts["loader"], facts["timed_again"]
    assert loader["steps"] == pytest.approx(again["steps"], rel=0.2)
    assert min(again["blocks_ns"]) * 0.9 < loader["step_ns"] < max(again["blocks_ns"]) * 1.1
    assert loader["step_ns"] < 0.6 * facts["timed_first"]["median_ns"]
    assert loader["made"]["batches"] == pytest.approx(loader["steps"], abs=2)


def test_bursts_are_timed_again_for_a_second_and_are_no_warm_up(folder: RunFolder) -> None:
    """Every tenth batch takes 100 ms at first, and none does after the light pass: the step falls from 16 to 6 ms."""
    recorder = Recorder(fast(folder.path, time_s=2.0, passes=("light",)), folder, 0)
    data = batches(lambda number: 0.1 if number % 10 == 0 and not recorder._kept.passes else 0)
    seconds = timed_again_s(recorder, data, lambda: 0.006)
    facts = rank_facts(folder)
    assert facts["timed_again"]["median_ns"] < facts["timed_first"]["median_ns"]
    assert facts["unprofiled"] == facts["timed_first"]
    assert facts["settling"]["verdict"] in ("waited", "steady"), "blocks of bursts differ by themselves"
    loader = facts["loader"]
    assert loader["steps"] // 10 <= loader["waiting_steps"] < loader["steps"]
    assert loader["mean_ns"] >= 0.1e9 * (loader["steps"] // 10) / loader["steps"], "a tenth of the steps"
    assert loader["steps"] >= facts["timed_first"]["steps"]
    assert seconds < 2, "a second, and what a busy machine adds"
    found = find_recorded(folder.path)
    assert found is not None
    assert found.step_ns == loader["step_ns"], "the mean: a block holds bursts by chance"


def test_bursts_that_stay_are_timed_again_for_a_second(folder: RunFolder) -> None:
    recorder = Recorder(fast(folder.path, time_s=2.0, passes=("light",)), folder, 0)
    data = batches(lambda number: 0.25 if number % 25 == 0 else 0)
    seconds = timed_again_s(recorder, data, lambda: 0.006)
    facts = rank_facts(folder)
    assert facts["settling"]["verdict"] != "faster"
    assert facts["unprofiled"] == facts["timed_first"]
    assert seconds < 2


def test_a_settled_time_stays_where_no_loader_was_seen(folder: RunFolder) -> None:
    """A later timing without a batch has no waits; those of the first one do not describe it."""
    recorder = Recorder(fast(folder.path, time_s=1.0, passes=("light",)), folder, 0)
    data = batches(lambda number: 0.02 if number % 2 else 0)
    while not recorder.done:
        if not recorder._kept.passes:
            next(data)
        work(0.004 if recorder._kept.passes else 0.04)
        recorder.step()
    facts = rank_facts(folder)
    assert facts["settling"]["verdict"] == "faster"
    assert facts["loader"] is None
    found = find_recorded(folder.path)
    assert found is not None
    assert found.step_ns == facts["timed_again"]["median_ns"] == facts["unprofiled"]["median_ns"]
