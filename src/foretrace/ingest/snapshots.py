"""Memory snapshots, as torch.cuda.memory._dump_snapshot pickles them: read without loading anything that could run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from foretrace.errors import FormatError, InputError, UsageError, unknown
from foretrace.ingest import lenient, snapshot_native, snapshot_python
from foretrace.ingest.formats import Format
from foretrace.ingest.other_formats import looks_pickled
from foretrace.ingest.pipes import as_file
from foretrace.ingest.snapshot_columns import SnapshotColumns, SnapshotFault
from foretrace.ingest.snapshot_tables import Tables
from foretrace.ingest.source import Progress, Source, open_source
from foretrace.secret_formats import without_known_secrets_in
from foretrace.snapshot import HOST, Snapshot, baseline_bytes, frees_of_earlier
from foretrace.units import counted, format_value
from foretrace.urls import located

FORMATS = (
    Format(
        "memory snapshot",
        "*.pickle, .gz, .zst, .zip",
        "torch.cuda.memory._dump_snapshot, `foretrace run --memory`",
        "memory",
        "time: record a trace as well",
    ),
)
# Measured with gzip -9 on a snapshot of a training program: 19 times.
MOST_UNPACKED, UNPACKED_AT_LEAST = 100, 1 << 28


def read_snapshot(
    path: str | Path, *, reader: str | None = None, progress: Progress | None = None
) -> Snapshot:
    """The snapshot at `path`, by the named reader ("native" or "python"; the extension if present).

    InputError where it cannot be read: it says what is wrong and at which byte. Nothing in the file is run.
    """
    path = as_file(located(path))
    source = open_source(path)
    columns = _scan(source, reader, progress)
    tables = Tables(columns)
    settings = without_known_secrets_in(_clean(columns.settings))
    made = Snapshot(
        path, tables.segments, tables.blocks, tables.events, tables.stacks, tables.frames, tables.annotations, settings
    )  # fmt: skip
    notes = [*tables.notes, *_about(made, bare_list=columns.bare_list)]
    return Snapshot(
        path, made.segments, made.blocks, made.events, made.stacks, made.frames, made.annotations, settings, tuple(notes)
    )  # fmt: skip


def _scan(source: Source, reader: str | None, progress: Progress | None) -> SnapshotColumns:
    if reader is None:
        reader = "python" if snapshot_native.missing or os.environ.get("FORETRACE_PURE_PYTHON") else "native"
    if reader not in ("native", "python"):
        raise unknown(f"no reader named {reader!r}", reader, ("native", "python"))
    if reader == "native" and snapshot_native.missing:
        raise UsageError(f"the native reader was not built ({snapshot_native.missing})")
    scan = snapshot_native.scan if reader == "native" else snapshot_python.scan
    try:
        return scan(_bounded(source, progress))
    except SnapshotFault as fault:
        if source.broken:
            why, where = source.broken[0]
            raise InputError(
                f"{source.path}: broken {why}; the snapshot ends at its byte {where:,}"
            ) from fault
        if not looks_pickled(source.head):
            raise FormatError(
                f"{source.path}: no snapshot of torch's CUDA allocator, which is a pickle"
            ) from fault
        raise InputError(f"{source.path}: byte {fault.at:,}: {fault.says}") from fault


def _bounded(source: Source, progress: Progress | None) -> Iterator[bytes]:
    """The pieces of a file, as long as it does not unpack to far more than a snapshot can be packed."""
    most = max(UNPACKED_AT_LEAST, MOST_UNPACKED * source.size) if source.compression else None
    total = 0
    for piece in source.chunks(progress):
        total += len(piece)
        if most is not None and total > most:
            raise InputError(
                f"{source.path}: it unpacks to more than {MOST_UNPACKED} times its size, as no snapshot does"
            )
        yield piece


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {lenient.clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return lenient.clean(value) if isinstance(value, str) else value


def _about(snapshot: Snapshot, *, bare_list: bool) -> list[str]:
    """What the history does not tell."""
    if bare_list:
        return ["a list of segments, as old versions of torch wrote: it has no history"]
    if not snapshot.events.height:
        return ["it has no history: torch.cuda.memory._record_memory_history() was not on"]
    notes = []
    if snapshot.events["time_ns"].null_count() == snapshot.events.height:
        notes.append(
            "its history has no times, as older versions of torch wrote: events are numbered instead"
        )
    for device, size in sorted(baseline_bytes(snapshot).items()):
        where = "the host" if device == HOST else f"device {device}"
        if size < 0:
            notes.append(
                f"{where}: its history leaves {format_value('held_bytes', -size)} more than were held at the end: frees are missing"
            )
        elif size:
            frees = frees_of_earlier(snapshot, device)
            before = f"; {counted(frees, 'free')} of memory from before" if frees else ""
            notes.append(
                f"{where}: the start of the history is lost: {format_value('held_bytes', size)} were held before it{before}"
            )
    return notes
