"""The counters of torch's CUDA allocator: `torch.cuda.memory_stats()` as JSON, or the text of `memory_summary()`.

JSON is what `memory_stats()` or `memory_stats_as_nested_dict()` returned, of one device, of several in a list, or by device.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foretrace.errors import InputError
from foretrace.ingest.other_formats import is_allocator_counters, is_allocator_summary
from foretrace.ingest.pipes import as_file
from foretrace.ingest.source import Source, open_source
from foretrace.units import shorten, visible

_MOST_BYTES = 16 << 20  # 64 devices take 0.5 MB
_DEVICE = re.compile(r"(?:[a-z]{1,16}:)?(\d{1,6})")
_LARGEST = 1 << 62

_SUMMARY = re.compile(r"PyTorch \w+ memory summary, device ID (\d{1,6})")
_FAILS = re.compile(r"OOMs: (\d+) .*retries: (\d+)")
_ROW = re.compile(r"^\| ?( *[A-Za-z][^|]*?) *\|([^|]+)\|([^|]+)\|([^|]+)\|([^|]+)\|$")
_CELL = re.compile(r"^ *(-?\d+) (B|KiB|MiB|GiB|TiB|PiB|K|M|) *$")
_UNITS = {"": 1, "B": 1, "K": 10**3, "M": 10**6} | {
    name: 1 << (10 * (power + 1)) for power, name in enumerate(("KiB", "MiB", "GiB", "TiB", "PiB"))
}
_METRICS = {
    "Allocated memory": "allocated_bytes", "Active memory": "active_bytes", "Requested memory": "requested_bytes",
    "GPU reserved memory": "reserved_bytes", "Non-releasable memory": "inactive_split_bytes", "Allocations": "allocation",
    "Active allocs": "active", "GPU reserved segments": "segment", "Non-releasable allocs": "inactive_split",
}  # fmt: skip
_POOLS = {"from large pool": "large_pool", "from small pool": "small_pool"}
_STATISTICS = ("current", "peak", "allocated", "freed")


@dataclass(frozen=True)
class DeviceCounters:
    """What torch counted on one device, by the names of `memory_stats()`."""

    device: int
    counters: Mapping[str, int]
    notes: tuple[str, ...] = field(default=())

    def get(self, name: str) -> int | None:
        """A counter; None where it was not recorded."""
        return self.counters.get(name)


def read_counters(path: Path) -> tuple[DeviceCounters, ...] | None:
    """The counters in a file, by device; `None` where it holds something else."""
    path = as_file(path)
    if path.is_dir():
        return None
    source = open_source(path)
    if is_allocator_summary(source.head):
        return tuple(_of_text(path, _text(source)))
    if not is_allocator_counters(source.head):
        return None
    try:
        document = json.loads(_text(source))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: counters of torch's allocator, but damaged: {error}") from error
    found = tuple(_of_document(path, document))
    if not found:
        raise InputError(f"{path}: counters of no device: CUDA was not in use when they were taken")
    return found


def _text(source: Source) -> str:
    pieces, total = [], 0
    for piece in source.chunks(None):
        total += len(piece)
        if total > _MOST_BYTES:
            raise InputError(f"{source.path}: too large for counters of torch's allocator")
        pieces.append(piece)
    if source.broken:
        raise InputError(f"{source.path}: broken {source.broken[0][0]}")
    return b"".join(pieces).decode("utf-8", errors="replace")


def _of_document(path: Path, document: Any) -> Iterator[DeviceCounters]:
    if isinstance(document, list):
        by_device = dict(enumerate(document))
    elif isinstance(document, dict) and all(_DEVICE.fullmatch(name) for name in document):
        by_device = {int(_DEVICE.fullmatch(name)[1]): each for name, each in document.items()}  # type: ignore[index]
        if len(by_device) < len(document):
            raise InputError(f"{path}: two sets of counters for one device")
    else:
        by_device = {0: document}
    for device, stats in sorted(by_device.items()):
        if not isinstance(stats, dict):
            raise InputError(f"{path}: device {device}: no counters of torch's allocator")
        if stats:
            yield DeviceCounters(device, _checked(path, dict(_flat(path, stats, ""))))


def _flat(path: Path, stats: Mapping[str, Any], within: str, depth: int = 0) -> Iterator[tuple[str, int]]:
    for name, value in stats.items():
        full = f"{within}{name}"
        if isinstance(value, dict) and depth < 3:
            yield from _flat(path, value, f"{full}.", depth + 1)
        elif isinstance(value, bool) or not isinstance(value, int) or not -_LARGEST < value < _LARGEST:
            raise InputError(f"{path}: {shorten(visible(full), 60)} is no count of bytes or calls")
        else:
            yield full, value


def _checked(path: Path, counters: dict[str, int]) -> dict[str, int]:
    for name in ("allocated_bytes.all.peak", "reserved_bytes.all.peak"):
        if name not in counters:
            raise InputError(f"{path}: {name} is missing; write the whole of torch.cuda.memory_stats()")
        if counters[name] < 0:
            raise InputError(f"{path}: {name} is negative")
    return counters


def _of_text(path: Path, text: str) -> Iterator[DeviceCounters]:
    """The tables of `memory_summary()`, one after the other; the last of a device counts."""
    found: dict[int, DeviceCounters] = {}
    parts = _SUMMARY.split(text)
    for device, body in zip(parts[1::2], parts[2::2], strict=True):
        counters, unit = _table(body)
        note = f"cuda:{device}: memory_summary prints whole {unit}: sizes are rounded down" if unit else ""
        found[int(device)] = DeviceCounters(int(device), _checked(path, counters), (note,) if note else ())
    if not found:
        raise InputError(f"{path}: no table of memory_summary()")
    yield from (found[device] for device in sorted(found))


def _table(body: str) -> tuple[dict[str, int], str]:
    """The counters of one table, and the largest unit of its peaks."""
    fails = _FAILS.search(body)
    counters = {"num_ooms": int(fails[1]), "num_alloc_retries": int(fails[2])} if fails else {}
    metric, unit = None, ""
    for line in body.splitlines():
        row = _ROW.match(line.strip())
        cells = [_CELL.match(cell) for cell in row.groups()[1:]] if row else []
        if row is None or not all(cells):
            continue
        name = row[1].strip()
        pool = _POOLS.get(name, "all")
        metric = _METRICS.get(name) if pool == "all" else metric
        if metric is None:
            continue
        for statistic, cell in zip(_STATISTICS, cells, strict=True):
            counters[f"{metric}.{pool}.{statistic}"] = int(cell[1]) * _UNITS[cell[2]]  # type: ignore[index]
        if metric == "reserved_bytes" and pool == "all":
            unit = cells[1][2]  # type: ignore[index]
    return counters, "" if unit == "B" else unit
