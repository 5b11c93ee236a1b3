"""What counters tell where there is no snapshot."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.analyze.snapshots.counters import CounterFindings, counter_findings
from foretrace.errors import MissingDataError
from foretrace.ingest.allocator_counters import DeviceCounters

MIB = 1 << 20
PATH = Path("stats.json")


def counted(peak: int, reserved: int, *, device: int = 0, ooms: int = 0, **now: int) -> DeviceCounters:
    """Peaks in MiB."""
    names = {
        "allocated_bytes.all.peak": peak * MIB,
        "reserved_bytes.all.peak": reserved * MIB,
        "num_ooms": ooms,
    }
    current = {f"{name}.all.current": size * MIB for name, size in now.items()}
    return DeviceCounters(device, {**names, **current})


def told(*devices: DeviceCounters) -> CounterFindings:
    return counter_findings(PATH, devices)


def test_what_torch_held_beyond_its_blocks_speaks_for_segments_that_grow() -> None:
    (device,) = told(counted(600, 1000, ooms=1)).devices
    assert device.excess_bytes == 400 * MIB
    assert device.excess_pct == 40.0
    assert [advice.setting for advice in device.advice] == ["expandable_segments:True"]
    (device,) = told(counted(600, 1000)).devices  # nothing was short
    assert device.advice == ()
    (device,) = told(counted(950, 1000, ooms=1)).devices  # 5 %
    assert device.advice == ()
    (device,) = told(counted(20, 40, ooms=1)).devices  # half, but of next to nothing
    assert device.advice == ()


def test_blocks_that_a_stream_still_uses_are_not_unused() -> None:
    read = counted(600, 1000)
    (device,) = told(DeviceCounters(0, {**read.counters, "active_bytes.all.peak": 990 * MIB})).devices
    assert device.excess_bytes == 10 * MIB


def test_the_document_is_that_of_a_snapshot_with_nulls() -> None:
    document = told(
        counted(100, 200, ooms=1),
        counted(300, 320, device=1, ooms=2, allocated_bytes=7, active_bytes=8, reserved_bytes=20),
    ).to_dict()
    assert list(document) == ["schema", "devices", "leaks", "fragmentation_pct", "oom"]
    first, second = document["devices"]
    assert (first["device"], second["device"]) == ("cuda:1", "cuda:0")  # the largest peak first
    assert first["composition"] == [{"what": "unknown", "bytes": 300 * MIB}]
    assert (first["at_ns"], first["unused_bytes"], first["retries_count"]) == (None, 12 * MIB, None)
    assert second["allocated_bytes"] is None
    assert document["fragmentation_pct"] == pytest.approx(100 * 20 / 320)
    assert document["oom"]["count"] == 3
    assert document["oom"]["asked_bytes"] is None
    assert told(counted(1, 1)).to_dict()["oom"] is None


def test_a_device_that_was_not_counted_is_said() -> None:
    with pytest.raises(MissingDataError, match=r"no counters of cuda:4; it has those of: cuda:0"):
        counter_findings(PATH, [counted(1, 1)], device=4)
