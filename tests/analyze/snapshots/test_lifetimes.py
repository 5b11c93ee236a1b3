"""Lifetimes and levels against an allocator that counts for itself, and against a loop over the events."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from foretrace.analyze.snapshots.holes import holes
from foretrace.analyze.snapshots.lifetimes import BEFORE, DeviceMemory, device_memory, devices
from foretrace.ingest.snapshots import read_snapshot
from foretrace.snapshot import Snapshot
from tests.analyze.snapshots.allocator import Allocator
from tests.analyze.snapshots.histories import MIB, History, at_line
from tests.corpus import CORPUS, needs_corpus

SIZES = (4, 700, 4096, 300_000, MIB, MIB + 1, 3 * MIB, 19 * MIB + 300_000, 33 * MIB + 77)


def played(seed: int, steps: int = 300) -> Allocator:
    """Requests and frees at random, with a flush now and then."""
    chosen = random.Random(seed)
    made = Allocator()
    held: list[int] = []
    for _ in range(steps):
        if held and chosen.random() < 0.48:
            made.release(held.pop(chosen.randrange(len(held))))
        else:
            held.append(
                made.malloc(chosen.choice(SIZES) + 512 * chosen.randrange(3), at_line(chosen.randrange(5)))
            )
        if chosen.random() < 0.02:
            made.flush()
    return made


@pytest.mark.parametrize("seed", range(8))
def test_levels_are_those_that_the_allocator_counted(seed: int) -> None:
    made = played(seed)
    memory = device_memory(made.snapshot(), 0)
    numbers, allocated, reserved = (np.array(column) for column in zip(*made.levels, strict=True))
    assert memory.allocated[numbers].tolist() == allocated.tolist()
    assert memory.reserved[numbers].tolist() == reserved.tolist()
    assert (memory.peak_bytes, memory.peak_reserved_bytes) == (made.peak, made.reserved_peak)
    assert memory.notes == ()


@pytest.mark.parametrize("seed", range(8))
def test_holes_are_those_of_the_allocator(seed: int) -> None:
    made = played(seed)
    found = holes(device_memory(made.snapshot(), 0), len(made.rows) - 1)
    assert found.reserved_bytes == made.reserved
    assert found.active_bytes == made.allocated
    assert found.largest_bytes == made.largest_hole
    assert found.split_bytes == made.beside_blocks
    assert found.unused_bytes == made.reserved - made.allocated


@pytest.mark.parametrize("seed", range(8))
def test_holes_in_the_middle_are_those_of_a_history_that_ends_there(seed: int) -> None:
    whole = played(seed, 300)
    part = played(seed, 150)
    at = len(part.rows) - 1
    assert whole.rows[: at + 1] == part.rows
    assert holes(device_memory(whole.snapshot(), 0), at) == holes(device_memory(part.snapshot(), 0), at)


@pytest.mark.parametrize("seed", range(8))
def test_what_was_lost_from_the_start_is_the_baseline(seed: int) -> None:
    made = played(seed)
    whole = device_memory(made.snapshot(), 0)
    lost = len(made.rows) // 3
    rest = device_memory(made.snapshot(lost=lost), 0)
    # A block whose allocation is lost counts as rounded: how much of its hole it took is not known once it is freed.
    apart = np.abs(rest.allocated - whole.allocated[lost:])
    assert apart.max() <= MIB * int((rest.lives.start == BEFORE).sum())
    assert rest.allocated[-1] == whole.allocated[-1]
    assert rest.reserved.tolist() == whole.reserved[lost:].tolist()
    assert rest.reserved_after(BEFORE) == whole.reserved[lost - 1]


def brute_force(snapshot: Snapshot) -> tuple[list[int], dict[int, int]]:
    """The level after each event, and what is held at the end: one event after the other."""
    held: dict[int, int] = {}
    levels = []
    for row in snapshot.events.iter_rows(named=True):
        if row["action"] == "alloc":
            held[row["address"]] = row["size_bytes"]
        elif row["action"] in ("free_requested", "free_completed"):
            held.pop(row["address"], None)
        levels.append(sum(held.values()))
    return levels, held


@pytest.mark.parametrize("seed", range(8))
def test_one_address_used_again_and_again(seed: int) -> None:
    chosen = random.Random(seed)
    made = History()
    places = [made.segment(64 * 512) + 512 * place for place in range(4)]
    for _ in range(200):
        place = chosen.choice(places)
        if place in made.blocks:
            made.free(place)
        else:
            made.alloc(512, at_line(chosen.randrange(3)), address=place)
    snapshot = made.snapshot()
    memory = device_memory(snapshot, 0)
    levels, held = brute_force(snapshot)
    assert memory.allocated.tolist() == levels
    live = memory.lives.allocated_after(len(made.rows) - 1)
    assert sorted(memory.lives.address[live].tolist()) == sorted(held)
    assert len(memory.lives) == sum(row[1] == "alloc" for row in made.rows)


def test_what_a_stream_still_uses_is_active_but_not_allocated() -> None:
    made = History()
    block = made.alloc(4 * MIB)
    made.free(block, completed=False)
    made.alloc(MIB)
    memory = device_memory(made.snapshot(), 0)
    assert memory.allocated.tolist() == [0, 4 * MIB, 0, 0, MIB]
    assert memory.active.tolist() == [0, 4 * MIB, 4 * MIB, 4 * MIB, 5 * MIB]


def test_a_free_that_is_missing_is_said() -> None:
    made = History()
    block = made.alloc(2 * MIB)
    del made.blocks[block]
    made.alloc(2 * MIB, address=block)
    memory = device_memory(made.snapshot(), 0)
    assert memory.allocated.tolist() == [0, 2 * MIB, 2 * MIB]
    assert memory.notes == (
        "1 block allocated where an earlier one had not been freed: that free is not in the history",
    )


def test_a_snapshot_without_history_is_its_last_moment() -> None:
    made = History()
    made.alloc(3 * MIB)
    memory = device_memory(made.snapshot(lost=len(made.rows)), 0)
    assert (memory.peak, memory.peak_bytes, memory.peak_reserved_bytes) == (BEFORE, 3 * MIB, 3 * MIB)
    assert memory.at_ns(memory.peak) is None


def test_expandable_segments_grow_and_shrink() -> None:
    made = History(expandable=True)
    start = made.segment(20 * MIB, address=1 << 33)
    made.alloc(20 * MIB, address=start)
    more = made.segment(20 * MIB, address=start + 20 * MIB)
    made.alloc(10 * MIB, address=more)
    at = len(made.rows) - 1
    made.free(more)
    made.segment_free(more)
    memory = device_memory(made.snapshot(), 0)
    assert memory.peak_reserved_bytes == 40 * MIB
    assert memory.reserved[-1] == 20 * MIB
    found = holes(memory, at)
    assert (found.reserved_bytes, found.largest_bytes, found.split_bytes) == (40 * MIB, 10 * MIB, 10 * MIB)
    assert holes(memory, memory.events.height - 1).unused_bytes == 0


def test_rounding_by_powers_of_two() -> None:
    from foretrace.analyze.snapshots.block_sizes import rounded

    divisions = {str(1 << power): 4 for power in range(16)}
    asked = np.array([100, 1200 * 1024, MIB, 5 * MIB, 5 * MIB + 1])
    # Of 1,200 KiB the quarters are 256 KiB, of 5 MiB they are 1 MiB.
    assert rounded(asked, {"roundup_power2_divisions": divisions}).tolist() == [
        512, 1280 * 1024, MIB, 5 * MIB, 6 * MIB,
    ]  # fmt: skip
    assert rounded(asked, {}).tolist() == [512, 1200 * 1024, MIB, 5 * MIB, 5 * MIB + 512]


@needs_corpus
def test_encoder12_is_what_torch_counted() -> None:
    folder = CORPUS / "other" / "memory"
    truth = json.loads((folder / "encoder12.truth.json").read_text(encoding="utf-8"))
    snapshot = read_snapshot(folder / "encoder12.snapshot.pickle")
    (memory,) = devices(snapshot)
    assert isinstance(memory, DeviceMemory)
    assert memory.peak_bytes == truth["peak"]
    assert memory.peak_reserved_bytes == truth["peak_reserved"]
    assert memory.allocated[-1] == truth["now"]
    active = snapshot.blocks.filter(snapshot.blocks["state"] == "active")
    live = memory.lives.allocated_after(memory.events.height - 1)
    assert sorted(memory.lives.address[live].tolist()) == sorted(active["address"])
    assert sorted(memory.lives.size[live].tolist()) == sorted(active["size_bytes"])
