"""torch's caching allocator, replayed: by its rules on paper, and against what a real one held."""

from __future__ import annotations

import json

import polars as pl
import pytest

from foretrace.analyze.concepts.memory.caching_allocator import CachingAllocator, NoRoomError
from foretrace.ingest.snapshots import read_snapshot
from tests.corpus import CORPUS, needs_corpus

MIB = 2**20


@pytest.mark.parametrize(
    ("size", "segment_mib"),
    [
        (1, 2),
        (MIB, 2),
        (MIB + 1, 20),
        (10 * MIB - 512, 20),
        (10 * MIB, 10),
        (11 * MIB, 12),
        (20 * MIB + 1, 22),
    ],
)
def test_what_a_request_takes_of_the_device(size: int, segment_mib: int) -> None:
    allocator = CachingAllocator(1e12)
    allocator.allocate(size)
    assert allocator.reserved_bytes == segment_mib * MIB


def test_a_segment_is_split_and_becomes_one_again() -> None:
    allocator = CachingAllocator(1e12)
    blocks = [allocator.allocate(4 * MIB) for _ in range(5)]
    assert allocator.reserved_bytes == 20 * MIB
    for number in (blocks[1], blocks[3], blocks[0], blocks[4], blocks[2]):
        allocator.give_back(number)
    allocator.allocate(20 * MIB)
    assert allocator.reserved_bytes == 20 * MIB


def test_the_smallest_block_that_is_large_enough_is_taken() -> None:
    """64 and 32 are free: 30 take the 32, and 60 still fit into the 64."""
    allocator = CachingAllocator(1e12)
    for number in [allocator.allocate(size * MIB) for size in (64, 32)]:
        allocator.give_back(number)
    allocator.allocate(30 * MIB)
    allocator.allocate(60 * MIB)
    assert allocator.reserved_bytes == 96 * MIB


def test_a_rest_of_a_mebibyte_stays_with_its_block() -> None:
    """Of 32 MiB, 31 are asked for: the rest is not split off, and cannot be had."""
    allocator = CachingAllocator(1e12)
    allocator.give_back(allocator.allocate(32 * MIB))
    allocator.allocate(31 * MIB)
    allocator.allocate(MIB + 512)
    assert allocator.reserved_bytes == 52 * MIB


def test_free_segments_go_back_where_the_device_is_full() -> None:
    allocator = CachingAllocator(40 * MIB)
    allocator.give_back(allocator.allocate(30 * MIB))
    allocator.allocate(32 * MIB)
    assert (allocator.reserved_bytes, allocator.peak_bytes) == (32 * MIB, 32 * MIB)


def test_a_segment_in_use_does_not_go_back() -> None:
    """12 of 30 are in use: 18 are free, and 26 do not fit beside the 30. In another order they would."""
    allocator = CachingAllocator(40 * MIB)
    allocator.give_back(allocator.allocate(30 * MIB))
    allocator.allocate(12 * MIB)
    with pytest.raises(NoRoomError):
        allocator.allocate(26 * MIB)
    other = CachingAllocator(40 * MIB)
    other.allocate(12 * MIB)
    other.allocate(26 * MIB)
    assert other.reserved_bytes == 38 * MIB


@needs_corpus
def test_two_steps_of_an_encoder_take_what_they_took_on_an_h200() -> None:
    """Every request of the history, in order: to the byte what torch counted as reserved."""
    folder = CORPUS / "other" / "memory"
    allocator, there = CachingAllocator(1e12), {}
    events = read_snapshot(folder / "encoder12.snapshot.pickle").events
    for action, address, size in events.select(
        pl.col("action").cast(pl.String), "address", "size_bytes"
    ).iter_rows():
        if action == "alloc":
            there[address] = allocator.allocate(size)
        elif action == "free_completed":
            allocator.give_back(there.pop(address))
    truth = json.loads((folder / "encoder12.truth.json").read_text())
    assert allocator.peak_bytes == truth["peak_reserved"]
