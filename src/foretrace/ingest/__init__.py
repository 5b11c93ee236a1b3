"""A recorded file becomes a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from foretrace import cache as trace_cache
from foretrace.errors import FormatError, InputError
from foretrace.ingest import (
    graph_replays,
    kineto,
    ncu,
    nsys,
    nsys_report,
    nsys_stats,
    other_formats,
    proton,
    rocpd,
    rocprof_csv,
    rocprof_json,
    snapshots,
    xprof,
)
from foretrace.ingest.folders import files_in
from foretrace.ingest.formats import Format
from foretrace.ingest.pipes import as_file
from foretrace.ingest.reading import Reading
from foretrace.ingest.source import Progress, open_source
from foretrace.trace import Trace
from foretrace.urls import named

# The first that accepts how a file begins reads it: Kineto's comes last, since other tools write Chrome traces too.
READERS: tuple[ModuleType, ...] = (
    nsys, nsys_report, nsys_stats, rocpd, rocprof_csv, rocprof_json, proton, xprof, ncu, kineto,
)  # fmt: skip
# Of files that are no Trace: commands of their own read these.
OTHER_READERS: tuple[ModuleType, ...] = (snapshots,)


def formats() -> tuple[Format, ...]:
    """Every format that is read, or known and not read, in the order of the readers."""
    declared = [each for reader in (*READERS, *OTHER_READERS) for each in reader.FORMATS]
    return (*declared, *other_formats.not_read())


def gathered(files: Sequence[Path]) -> tuple[ModuleType, tuple[Path, ...]] | None:
    """The reader that takes several of a folder's files as one recording, with those; `None` where none does.

    Such a reader has `parts(files) -> tuple[Path, ...]` and `read_parts(folder, parts, *, pid, progress) -> Trace`.
    """
    for format_reader in READERS:
        find = getattr(format_reader, "parts", None)
        if find is not None and (found := find(files)):
            return format_reader, found
    return None


def open_trace(
    path: str | Path,
    *,
    cache: bool = True,
    reader: str | None = None,
    step: str | None = None,
    pid: str | int | None = None,
    capture_traces: Sequence[str | Path | Trace] = (),
    progress: Progress | None = None,
) -> Trace:
    """The recording at `path`, from the cache if it was read before; naming a `reader` goes past the cache.

    `step` names the ranges that are its steps: a name, how names begin, or a pattern after ~. `pid` chooses one of several
    processes in the file. `capture_traces` are recordings of how the CUDA graphs that this one replays were captured, or of the
    same program run without graphs.
    """
    path = as_file(path if isinstance(path, Path) else named(path))
    others = tuple(
        other if isinstance(other, Trace) else open_trace(other, cache=cache) for other in capture_traces
    )
    reading = Reading(step, None if pid is None else str(pid), others)

    def read() -> Trace:
        return _read(path, reader, reading.pid, progress)

    if not cache or reader is not None:
        return reading.marked(read())
    files = _parts(path)[1] if path.is_dir() else nsys_stats.siblings(path)
    trace = _through_cache(path, reading.key(*files), read)
    return reading.marked(trace)


def _through_cache(path: Path, key: str, read: Callable[[], Trace]) -> Trace:
    stored = trace_cache.load(key, path, reread=read)
    if stored is not None:
        return stored
    trace = read()
    trace_cache.store(key, trace)
    return trace


def _read(path: Path, reader: str | None, pid: str | None, progress: Progress | None) -> Trace:
    if path.is_dir():
        folder_reader, parts = _parts(path)
        whole: Trace = folder_reader.read_parts(path, parts, pid=pid, progress=progress)
        return whole
    source = open_source(path)
    head = other_formats.telling(source)
    for format_reader in READERS:
        if format_reader.accepts(head):
            trace: Trace = format_reader.read(source, reader=reader, pid=pid, progress=progress)
            return graph_replays.attributed(trace)
    if other := other_formats.told(source):
        raise FormatError(other)
    raise FormatError(
        f"{path}: not a recording that Foretrace knows (`foretrace formats` lists what it reads)"
    )


def _parts(folder: Path) -> tuple[ModuleType, tuple[Path, ...]]:
    found = gathered(files_in(folder))
    if found is None:
        raise InputError(f"{folder}: a folder, and no recording of several files; name the file to read")
    return found
