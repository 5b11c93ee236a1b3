"""Drives the C++ reader of memory snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from foretrace.ingest.snapshot_columns import GROUPS, SnapshotColumns, SnapshotFault

try:
    from foretrace._scan import SnapshotScanner
except ImportError as _error:  # not built: `snapshots` then uses the Python reader
    SnapshotScanner = None
    missing: str | None = str(_error)
else:
    missing = None


def scan(pieces: Iterator[bytes]) -> SnapshotColumns:
    """The columns of a snapshot whose pickle comes in pieces; SnapshotFault says why there are none."""
    scanner = SnapshotScanner()
    for piece in pieces:
        if not scanner.push(piece):
            break
    done = scanner.finish()
    if isinstance(done, tuple):
        raise SnapshotFault(*done)
    groups = {
        group: {name: np.frombuffer(done["groups"][group].pop(name), dtype) for name, dtype in types.items()}
        for group, types in GROUPS.items()
    }
    settings = _plain(done["settings"])
    return SnapshotColumns(
        done["texts"], groups, settings if isinstance(settings, dict) else {}, done["bare_list"]
    )


def _plain(value: Any) -> Any:
    """A setting; a pair of numbers comes as a tuple with its two texts."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [int(part) for part in value[0]]
    return [_plain(item) for item in value] if isinstance(value, list) else value
