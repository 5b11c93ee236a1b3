"""Counters of torch's allocator, as torch itself writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.errors import InputError
from foretrace.ingest.allocator_counters import read_counters
from foretrace.ingest.other_formats import is_allocator_counters, recognised

MIB = 1 << 20
_METRICS = (
    "allocation", "segment", "active", "inactive_split", "allocated_bytes", "reserved_bytes", "active_bytes",
    "inactive_split_bytes", "requested_bytes",
)  # fmt: skip


def nested(**peaks: int) -> dict[str, Any]:
    """What memory_stats_as_nested_dict() returns: peaks are given, the current value is half of one."""
    stats: dict[str, Any] = {"num_alloc_retries": 2, "num_ooms": 1, "max_split_size": -1}
    for metric in _METRICS:
        peak = peaks.get(metric, 64)
        value = {"current": peak // 2, "peak": peak, "allocated": 3 * peak, "freed": 3 * peak - peak // 2}
        stats[metric] = {pool: dict(value) for pool in ("all", "small_pool", "large_pool")}
    for metric in ("oversize_allocations", "oversize_segments"):
        stats[metric] = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
    return stats


PEAKS = {"allocated_bytes": 300 * MIB + 512, "active_bytes": 310 * MIB, "reserved_bytes": 400 * MIB}


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What torch.cuda.memory_stats() makes of it."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda.memory, "memory_stats_as_nested_dict", lambda device=None: nested(**PEAKS))
    return dict(torch.cuda.memory.memory_stats(0))


def _written(tmp_path: Path, document: Any) -> Path:
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def test_flat_and_nested_counters_are_the_same(stats: dict[str, Any], tmp_path: Path) -> None:
    (flat,) = read_counters(_written(tmp_path, stats)) or ()
    (tree,) = read_counters(_written(tmp_path, nested(**PEAKS))) or ()
    assert flat == tree
    assert flat.device == 0
    assert flat.get("allocated_bytes.all.peak") == 300 * MIB + 512
    assert flat.get("num_alloc_retries") == 2
    assert flat.get("num_of_something_else") is None


@pytest.mark.parametrize(
    ("document", "devices"),
    [
        ([{}, nested(**PEAKS)], [1]),
        ([nested(**PEAKS), nested(**PEAKS)], [0, 1]),
        ({"cuda:3": nested(**PEAKS), "cuda:1": nested(**PEAKS)}, [1, 3]),
        ({"0": {}, "1": {}, "2": nested(**PEAKS)}, [2]),
    ],
)
def test_several_devices(document: Any, devices: list[int], tmp_path: Path) -> None:
    found = read_counters(_written(tmp_path, document)) or ()
    assert [each.device for each in found] == devices


def test_a_summary_is_read_to_its_last_digit(
    stats: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """torch prints sizes of 768 MiB and more in MiB, smaller ones in KiB, rounded down."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda.memory, "_get_device_index", lambda device, optional: device)
    path = tmp_path / "summary.txt"
    both = torch.cuda.memory.memory_summary(0) + torch.cuda.memory.memory_summary(5, abbreviated=True)
    path.write_text(f"step 3\n{both}", encoding="utf-8")
    first, second = read_counters(path) or ()
    assert (first.device, second.device) == (0, 5)
    assert first.get("allocated_bytes.all.peak") == 300 * MIB  # 512 bytes are rounded away
    assert first.get("reserved_bytes.all.peak") == 400 * MIB
    assert first.get("reserved_bytes.large_pool.current") == 200 * MIB
    assert second.get("reserved_bytes.large_pool.current") is None
    assert (first.get("num_ooms"), first.get("num_alloc_retries")) == (1, 2)
    assert "rounded down" in first.notes[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"allocated_bytes.all.peak": 1', "damaged"),
        ('{"allocated_bytes.all.peak": 1}', "reserved_bytes.all.peak is missing"),
        ('{"allocated_bytes.all.peak": "much"}', "allocated_bytes.all.peak is no count"),
        ('{"allocated_bytes.all.peak": -1, "reserved_bytes.all.peak": 1}', "is negative"),
        ('{"allocated_bytes.all.peak": 1, "num_ooms": true}', "num_ooms is no count"),
        ('[{"allocated_bytes.all.peak": 1, "reserved_bytes.all.peak": 1}, 7]', "device 1: no counters"),
        ('{"allocated_bytes": {"all": ' + '{"a":' * 5000 + "1" + "}" * 5002, "is no count|damaged"),
        ('{"0": {"allocated_bytes.all.peak": 1}, "cuda:0": {}}', "two sets of counters"),
        ("|====|\n| PyTorch CUDA memory summary, device ID 0 |\n|---|\n", "is missing"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "stats.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=says) as raised:
        read_counters(path)
    assert "\n" not in str(raised.value)


def test_other_files_are_not_taken_for_counters(tmp_path: Path) -> None:
    rank = {"passes": [{"after": {"allocated_bytes.all.peak": 1}}]}
    assert not is_allocator_counters(json.dumps(rank).encode())
    assert read_counters(_written(tmp_path, rank)) is None
    assert read_counters(tmp_path) is None
    found = recognised(json.dumps(nested(**PEAKS)).encode())
    assert found is not None
    assert found.read_by_another
