"""memory-fit, saved-activations and the replay of the curve, on steps whose memory can be worked out on paper."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrace.analyze import run
from foretrace.analyze.concepts.memory import memory_replay, saved_for_backward
from foretrace.analyze.concepts.memory.memory_replay import Factors, MemoryChange, Stretch, factors, pieces
from foretrace.errors import MissingDataError, UsageError
from tests.diagnose.loops import H200
from tests.diagnose.memory_steps import UNIT, Training

MIB, GIB = 2**20, 2**30


def test_the_largest_batch(tmp_path: Path) -> None:
    """At the peak 13 stay, the parameters' 10 and a gradient's 3, and 11 grow: two blocks' 5 and what is passed on."""
    values = run(Training().open(tmp_path), "memory-fit").values
    for end, context_mib, held, off in (
        ("", 600, 1.02, 1.0),
        ("_low", 1000, 1.08, 1.03),
        ("_high", 400, 1.0, 0.97),
    ):
        left = (H200["totalGlobalMem"] - context_mib * MIB) / held - 24 * UNIT
        assert values[f"largest_batch{end}_pct"] == pytest.approx(
            100 * (1 + left / (11 * UNIT * off)), rel=0.002
        )
    assert values["batch_count"] is None
    assert values["device_bytes"] == H200["totalGlobalMem"]


def test_the_largest_batch_through_the_allocator(tmp_path: Path) -> None:
    """What the allocator holds is what is allocated: it wastes nothing here, and replayed it wastes nothing either."""
    result = run(Training(reserved=24).open(tmp_path), "memory-fit")
    for end, context_mib, off in (("", 600, 1.0), ("_low", 1000, 1.03), ("_high", 400, 0.97)):
        left = H200["totalGlobalMem"] - context_mib * MIB - 24 * UNIT
        grown = 100 * (1 + left / (11 * UNIT * off))
        assert result.values[f"largest_batch{end}_pct"] == pytest.approx(grown, rel=0.002)
    assert not [note for note in result.notes if "allocator" in note]
    assert [note for note in run(Training().open(tmp_path), "memory-fit").notes if "allocator" in note]


def test_what_grows_and_what_does_not(tmp_path: Path) -> None:
    table = run(Training().open(tmp_path), "memory-fit").table
    assert table.select("category", "peak_bytes", "grows_bytes").rows() == [
        ("activation", 10 * UNIT, 10 * UNIT),
        ("before the recording", 10 * UNIT, 0),
        ("gradient", 3 * UNIT, 0),
        ("autograd", UNIT, UNIT),
    ]


def test_another_device(tmp_path: Path) -> None:
    trace = Training().open(tmp_path)
    values = run(trace, "memory-fit", device_gib=40.0).values
    left = (40 * GIB - 600 * MIB) / 1.02 - 24 * UNIT
    assert values["largest_batch_pct"] == pytest.approx(100 * (1 + left / (11 * UNIT)), rel=0.002)
    with pytest.raises(UsageError, match="device_gib"):
        run(trace, "memory-fit", device_gib=-1.0)


def test_a_device_whose_size_is_not_recorded(tmp_path: Path) -> None:
    trace = Training(device={"id": 0, "name": "NVIDIA H200"}).open(tmp_path)
    with pytest.raises(MissingDataError, match="--device-gib"):
        run(trace, "memory-fit")


def test_what_modules_save(tmp_path: Path) -> None:
    """The net saves both blocks' 4 and the first one's output; a block its 4, for its output is the next one's input."""
    result = run(Training().open(tmp_path), "saved-activations")
    shown = result.table.select("module", "saved_bytes", "output_bytes", "calls_count").rows()
    assert shown == [
        ("Net_0", 9 * UNIT, UNIT, 3),
        ("Net_0/Block_0", 4 * UNIT, UNIT, 3),
        ("Net_0/Block_1", 4 * UNIT, UNIT, 3),
    ]
    assert (result.values["checkpoint"], result.values["freed_bytes"]) == ("Block", 2 * UNIT)


def test_what_is_checkpointed_already_saves_nothing(tmp_path: Path) -> None:
    saved = saved_for_backward.find(Training(checkpointed=True).open(tmp_path))
    assert saved_for_backward.best_to_checkpoint(saved) is None


def test_the_same_change_twice_frees_once(tmp_path: Path) -> None:
    trace = Training().open(tmp_path)
    saved = saved_for_backward.find(trace)
    blocks = saved_for_backward.best_to_checkpoint(saved)
    assert blocks is not None
    cut = MemoryChange("cut", absent=blocks.checkpointed(saved.memory).absent)
    assert saved.memory.peak_with([cut, cut]) == saved.memory.peak_with([cut]) < saved.memory.peak_bytes


def test_changes_of_the_curve(tmp_path: Path) -> None:
    memory = memory_replay.find(Training().open(tmp_path))
    assert (memory.peak_bytes, memory.peak_with([])) == (24 * UNIT, 24 * UNIT)
    assert memory.peak_with([MemoryChange("always", always_bytes={"state": -5 * UNIT})]) == 19 * UNIT
    for size, peak in ((-30, 24), (10, 34)):  # in the first step alone, and the others are as they were
        change = MemoryChange("while", stretches=(Stretch(0, 1_000_000, size * UNIT),))
        assert memory.peak_with([change]) == peak * UNIT
    live = memory.live_at(memory.peak_at_ns)
    assert memory.size_bytes[live].sum() == 14 * UNIT
    again = MemoryChange(
        "once more", again=pieces(live, [memory.peak_at_ns] * len(live), memory.end_ns[live])
    )
    assert memory.peak_with([again]) == 38 * UNIT
    halved = MemoryChange("half", factors=factors(np.arange(len(memory.size_bytes)), 0.5))
    assert memory.peak_with([halved]) == 17 * UNIT
    assert memory.peak_with([halved, again]) == 24 * UNIT


def test_the_peak_of_a_changed_curve_is_its_highest_moment(tmp_path: Path) -> None:
    """Beside the curve evaluated at every moment at which anything changes."""
    memory = memory_replay.find(Training().open(tmp_path))
    moments = np.unique(np.concatenate((memory.at_ns, memory.start_ns, memory.end_ns)))
    random = np.random.default_rng(7)
    for _ in range(30):
        rows = np.sort(random.choice(len(memory.size_bytes), random.integers(0, 9), replace=False))
        values = random.choice((0.0, 0.25, 0.5, 1.5, 3.0), len(rows))
        start, end = np.sort(random.integers(0, int(memory.at_ns[-1]), 2)).tolist()
        stretch = Stretch(start, end, int(random.integers(-9, 9)) * UNIT)
        change = MemoryChange("some", factors=Factors(rows, values), stretches=(stretch,))
        highest = 0.0
        for at in sorted({*moments.tolist(), start, end}):
            before = max(int(np.searchsorted(memory.at_ns, at, side="right")) - 1, 0)
            live = (memory.start_ns[rows] <= at) & (memory.end_ns[rows] > at)
            more = (memory.size_bytes[rows] * (values - 1))[live].sum()
            more += stretch.size_bytes if start <= at < end else 0
            highest = max(highest, float(memory.total_bytes[before] + more))
        assert memory.peak_with([change]) == round(highest)
    inside = memory.within([(0, 0), (int(memory.start_ns[3]), int(memory.start_ns[6]))])
    first, last = memory.start_ns[3], memory.start_ns[6]
    assert inside.tolist() == [bool(first <= at < last) for at in memory.start_ns]
