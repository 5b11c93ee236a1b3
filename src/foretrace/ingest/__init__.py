"""A recorded file becomes a Trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from foretrace import cache as trace_cache
from foretrace.errors import FormatError
from foretrace.ingest import graph_replays, kineto, other_formats
from foretrace.ingest.pipes import as_file
from foretrace.ingest.reading import Reading
from foretrace.ingest.source import Progress, open_source
from foretrace.trace import Trace

READERS = (kineto,)


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
    path = as_file(Path(path))
    others = tuple(
        other if isinstance(other, Trace) else open_trace(other, cache=cache) for other in capture_traces
    )
    reading = Reading(step, None if pid is None else str(pid), others)

    def read() -> Trace:
        return _read(path, reader, reading.pid, progress)

    trace = read() if not cache or reader is not None else _through_cache(path, reading.key(path), read)
    return reading.marked(trace)


def _through_cache(path: Path, key: str, read: Callable[[], Trace]) -> Trace:
    stored = trace_cache.load(key, path, reread=read)
    if stored is not None:
        return stored
    trace = read()
    trace_cache.store(key, trace)
    return trace


def _read(path: Path, reader: str | None, pid: str | None, progress: Progress | None) -> Trace:
    source = open_source(path)
    if other := other_formats.told(source):
        raise FormatError(other)
    for format_reader in READERS:
        if format_reader.accepts(source.head):
            trace: Trace = format_reader.read(source, reader=reader, pid=pid, progress=progress)
            return graph_replays.attributed(trace)
    raise FormatError(f"{path}: not a recording that Foretrace knows (it reads torch.profiler's Kineto JSON)")
