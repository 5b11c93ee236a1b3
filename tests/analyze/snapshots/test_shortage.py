"""Requests that did not fit, flushed caches, and the allocator's settings: on an allocator with a known capacity."""

from __future__ import annotations

import pytest

from foretrace.analyze.snapshots.findings import DeviceFindings, findings
from foretrace.analyze.snapshots.shortage import Failed
from tests.analyze.snapshots.allocator import Allocator, OutOfMemoryError
from tests.analyze.snapshots.histories import EMPTY_CACHE, MAIN, MIB, History, at_line


def only(made: History, **settings: object) -> DeviceFindings:
    (found,) = findings(made.snapshot(settings=settings)).devices
    return found


def fragmented(capacity: int) -> Allocator:
    """Large pieces, of which every other one is freed and then partly used: no hole is large."""
    made = Allocator(capacity)
    blocks = [made.malloc(40 * MIB, at_line(10)) for _ in range(10)]
    for block in blocks[::2]:
        made.release(block, at_line(11))
        made.malloc(22 * MIB, at_line(12))  # 18 are left: too few for the next
    return made


def test_a_request_that_fits_only_in_pieces() -> None:
    made = fragmented(410 * MIB)
    with pytest.raises(OutOfMemoryError):
        made.malloc(95 * MIB, at_line(13))
    found = only(made)
    (short,) = found.out_of_memory
    # 400 MiB are held from the device; five blocks of 40 and five of 22 are used.
    assert short.asked_bytes == 95 * MIB
    assert short.device_free_bytes == 10 * MIB
    assert short.reserved_bytes == 400 * MIB
    assert short.allocated_bytes == (5 * 40 + 5 * 22) * MIB
    assert short.unused_bytes == 90 * MIB
    assert short.largest_hole_bytes == 18 * MIB == made.largest_hole
    assert short.missing_bytes == 0
    assert short.where == "train.py:13 <module>"
    assert short.holders == (("train.py:10 <module>", 200 * MIB), ("train.py:12 <module>", 110 * MIB))
    assert "expandable_segments:True" in short.would_fit
    assert short.why == (
        "95.0 MiB in one piece were asked for: the device had 10.0 MiB left, "
        "and of 90.0 MiB that torch held and did not use, the largest hole was 18.0 MiB"
    )


def test_a_request_that_is_simply_too_large() -> None:
    made = Allocator(100 * MIB)
    made.malloc(60 * MIB, at_line(10))
    made.malloc(20 * MIB, at_line(11))
    with pytest.raises(OutOfMemoryError):
        made.malloc(50 * MIB, at_line(12))
    (short,) = only(made).out_of_memory
    assert short.missing_bytes == 30 * MIB
    assert short.would_fit == "30.0 MiB fewer in use; train.py:10 <module> held most, 60.0 MiB"


def test_a_limit_of_the_process_is_told_from_a_full_device() -> None:
    made = Allocator()
    made.malloc(60 * MIB, at_line(10))
    made.oom(50 * MIB, 1 << 37, at_line(12))
    (short,) = only(made).out_of_memory
    assert short.missing_bytes == 50 * MIB
    assert "which this process may not take" in short.why
    known = Failed(50 * MIB, 1 << 37, 100 * MIB, None, "elsewhere")
    (found,) = findings(made.snapshot(), failed={0: known}).devices
    (short,) = found.out_of_memory
    assert (short.missing_bytes, short.where) == (10 * MIB, "train.py:12 <module>")
    assert "of which this process may have 100 MiB in all" in short.why


def test_a_failed_request_is_known_without_a_history() -> None:
    made = Allocator()
    made.malloc(60 * MIB, at_line(10))
    known = Failed(50 * MIB, 20 * MIB, None, 123, "train.py:12 main")
    (found,) = findings(made.snapshot(lost=len(made.rows)), failed={0: known}).devices
    (short,) = found.out_of_memory
    assert (short.allocated_bytes, short.missing_bytes, short.at_ns) == (60 * MIB, 30 * MIB, 123)
    assert short.holders == (("train.py:10 <module>", 60 * MIB),)


def test_where_segments_grow_already_they_are_not_advised() -> None:
    made = fragmented(410 * MIB)
    with pytest.raises(OutOfMemoryError):
        made.malloc(95 * MIB, at_line(13))
    found = only(made, expandable_segments=True)
    assert "expandable" not in found.out_of_memory[0].would_fit
    assert found.fragmentation.advice == ()


def test_nothing_ran_out_where_all_fits() -> None:
    assert only(fragmented(1 << 40)).out_of_memory == []


def test_a_cache_flushed_for_a_request_is_told_and_one_that_was_emptied_is_not() -> None:
    made = Allocator(100 * MIB)
    made.release(made.malloc(60 * MIB, at_line(10)))
    made.malloc(80 * MIB, at_line(11))
    found = only(made)
    (flush,) = found.flushes
    assert (flush.returned_bytes, flush.where) == (60 * MIB, "train.py:11 <module>")
    assert [advice.setting for advice in found.fragmentation.advice] == ["garbage_collection_threshold:0.8"]

    emptied = Allocator()
    emptied.release(emptied.malloc(60 * MIB, at_line(10)))
    emptied.flush((EMPTY_CACHE, MAIN))
    emptied.malloc(80 * MIB, at_line(11))
    assert only(emptied).flushes == []
    assert only(emptied).fragmentation.advice == ()


def test_sizes_that_alternate_leave_holes_that_growing_segments_would_not() -> None:
    """Small blocks stay in the places of large ones: each round needs new segments for the large."""
    made = Allocator()
    for number in range(12):
        large = [made.malloc((40 + 2 * number) * MIB, at_line(20)) for _ in range(4)]
        for block in large:
            made.release(block)
        for _ in range(4):
            made.malloc((22 + number) * MIB, at_line(21))
    found = only(made)
    told = found.fragmentation
    assert told.excess_bytes == made.reserved_peak - made.peak
    settings = [advice.setting for advice in told.advice]
    assert settings[0] == "expandable_segments:True"
    assert any(setting.startswith("max_split_size_mb:") for setting in settings)
    assert told.at_end.split_bytes == made.beside_blocks
    # When the last round's segments are new, the eleven rounds before it lie half empty.
    (where, unused), *_ = told.beside
    assert where == "train.py:21 <module>"
    assert unused == sum(4 * (40 + 2 * number - (22 + number)) * MIB for number in range(11))


def test_requests_of_many_sizes_may_be_rounded() -> None:
    made = Allocator()
    kept = []
    for number in range(60):
        block = made.malloc(20 * MIB + number * MIB, at_line(20))
        kept.append(made.malloc(11 * MIB, at_line(21)) if number % 3 == 0 else 0)
        made.release(block)
    assert "roundup_power2_divisions:8" in [advice.setting for advice in only(made).fragmentation.advice]


def test_a_cache_that_was_needed_once_is_no_fragmentation() -> None:
    """At the peak all was in use; that it stays reserved afterwards is what a cache is for."""
    made = Allocator()
    for block in [made.malloc(50 * MIB, at_line(1)) for _ in range(10)]:
        made.release(block)
    told = only(made).fragmentation
    assert told.unused_pct == 0
    assert told.at_end.whole_bytes == 500 * MIB
    assert told.at_end.split_bytes == 0
    assert told.advice == ()


def test_rounding_and_private_pools_are_told() -> None:
    made = Allocator()
    made.malloc(MIB + 100, at_line(1))
    made.segment(20 * MIB, pool="0,1")
    told = only(made).fragmentation
    assert told.rounding_bytes == 512 - 100
    assert told.at_end.private_bytes == 20 * MIB
