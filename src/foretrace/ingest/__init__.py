"""A recorded file becomes a Trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foretrace import cache as trace_cache
from foretrace.errors import FormatError
from foretrace.ingest import kineto, nsys, nsys_folder, nsys_report, nsys_stats, other_formats
from foretrace.ingest.pipes import as_file
from foretrace.ingest.reading import Reading
from foretrace.ingest.source import Progress, open_source
from foretrace.trace import Trace

READERS = (kineto, nsys, nsys_report, nsys_stats)


def open_trace(
    path: str | Path,
    *,
    cache: bool = True,
    reader: str | None = None,
    step: str | None = None,
    pid: str | int | None = None,
    progress: Progress | None = None,
) -> Trace:
    """The recording at `path`, from the cache if it was read before; naming a `reader` goes past the cache.

    `step` names the ranges that are its steps: a name, how names begin, or a pattern after ~. `pid` chooses one of several
    processes in the file.
    """
    path = as_file(Path(path))
    reading = Reading(step, None if pid is None else str(pid))

    def read() -> Trace:
        return _read(path, reader, reading.pid, progress)

    is_folder = path.is_dir()
    trace = (
        read()
        if not cache or reader is not None or is_folder
        else _through_cache(path, reading.key(path), read)
    )
    return reading.marked(trace)


def _through_cache(path: Path, key: str, read: Callable[[], Trace]) -> Trace:
    stored = trace_cache.load(key, path, reread=read)
    if stored is not None:
        return stored
    trace = read()
    trace_cache.store(key, trace)
    return trace


def _read(path: Path, reader: str | None, pid: str | None, progress: Progress | None) -> Trace:
    if nsys_folder.is_export(path):
        return nsys.read_folder(path, pid=pid)
    source = open_source(path)
    head = other_formats.telling_head(source)
    if other := other_formats.told(source, head):
        raise FormatError(other)
    for format_reader in READERS:
        if format_reader.accepts(head):
            trace: Trace = format_reader.read(source, reader=reader, pid=pid, progress=progress)
            return trace
    raise FormatError(
        f"{path}: not a recording that Foretrace knows (it reads torch.profiler's Kineto JSON and exports of Nsight Systems)"
    )
