"""Memory snapshots made by hand, and the readers that a test runs with."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from foretrace.errors import InputError
from foretrace.ingest import snapshot_native
from foretrace.ingest.snapshots import read_snapshot
from tests.ingest.comparison import names_python_reader

needs_native = pytest.mark.skipif(
    snapshot_native.missing is not None, reason=f"not built ({snapshot_native.missing})"
)
READERS = (pytest.param("native", marks=needs_native), pytest.param("python", marks=names_python_reader))
both_readers = pytest.mark.parametrize("reader", READERS)
INNER = {"filename": "net.py", "line": 7, "name": "forward"}
OUTER = {"filename": "träin.py", "line": 40, "name": "<module>", "fx_node_op": "call"}


def event(action: str, size: int, **more: Any) -> dict[str, Any]:
    return {
        "action": action,
        "addr": 4096,
        "size": size,
        "stream": 0,
        "time_us": 1_000_000,
        "frames": [],
        **more,
    }


def block(address: int, size: int, state: str, **more: Any) -> dict[str, Any]:
    return {
        "address": address,
        "size": size,
        "requested_size": size - 12,
        "state": state,
        "frames": [],
        **more,
    }


def segment(device: Any, address: int, *blocks: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "device": device, "address": address, "total_size": 4096, "allocated_size": 512, "active_size": 1024,
        "requested_size": 500, "stream": 3, "segment_type": "small", "segment_pool_id": (0, 0), "is_expandable": False,
        "frames": [], "blocks": list(blocks), **more,
    }  # fmt: skip


def known() -> dict[str, Any]:
    """One of everything that a snapshot can have, and keys that nobody knows."""
    return {
        "segments": [
            segment(0, 4096, block(4096, 512, "active_allocated", frames=[INNER, OUTER]), block(4608, 512, "active_pending_free")),
            segment(1, 2**63 + 4096, block(2**63 + 4096, 4096, "inactive"), is_expandable=True, segment_pool_id=(2, 1)),
        ],
        "device_traces": [
            [
                event("segment_alloc", 4096, pool_id=(0, 0)),
                event("alloc", 500, frames=[INNER, OUTER], compile_context="0/1", user_metadata="step 3"),
                event("alloc", 500, addr=4608, compile_context="N/A", user_metadata=""),
                event("free_requested", 500, addr=4608, time_us=2_000_000, frames=[OUTER]),
                {"action": "oom", "device_free": 99, "size": 10**12, "stream": 0, "time_us": 3_000_000, "frames": []},
            ],
            [event("segment_map", 64, addr=2**63 + 4096, unheard_of={"a": [1, (2, 3, 4)]})],
        ],
        "host_segments": [{"address": 100, "total_size": 64, "blocks": [block(100, 64, "active_awaiting_free")]}],
        "host_traces": [event("alloc", 52, addr=100)],
        "external_annotations": [{"stage": "START", "name": "step", "device": 1, "time_us": 5}],
        "allocator_settings": {"expandable_segments": True, "gc": 0.5, "divisions": {"1": 0}, "pair": [1, 2], "none": None},
        "new_in_torch_4": [None, -1, 2**70, 1.5],
    }  # fmt: skip


def written(tmp_path: Path, content: Any, protocol: int = 4) -> Path:
    path = tmp_path / "memory.pickle"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol))
    return path


def says(tmp_path: Path, content: Any, reader: str = "python") -> str:
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as told:
        read_snapshot(written(tmp_path, content), reader=reader)
    assert "\n" not in str(told.value)
    assert "memory.pickle" in str(told.value)
    return str(told.value)


def rows(frame: pl.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    return frame.select(columns).rows()
