"""Drives the C++ reader of memory snapshots."""

from __future__ import annotations

from collections.abc import Iterator

from foretrace.ingest.snapshot_columns import SnapshotColumns

missing: str | None = "not written yet"


def scan(pieces: Iterator[bytes]) -> SnapshotColumns:
    """The columns of a snapshot whose pickle comes in pieces; SnapshotFault says why there are none."""
    raise NotImplementedError
