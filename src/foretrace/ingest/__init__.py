"""A recorded file becomes a Trace."""

from __future__ import annotations

from pathlib import Path

from foretrace import cache as trace_cache
from foretrace.errors import FormatError
from foretrace.ingest import kineto
from foretrace.ingest.pipes import as_file
from foretrace.ingest.source import Progress, open_source
from foretrace.trace import Trace

READERS = (kineto,)


def open_trace(
    path: str | Path, *, cache: bool = True, reader: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording at `path`, from the cache if it was read before; naming a `reader` goes past the cache."""
    path = as_file(Path(path))

    def read() -> Trace:
        return _read(path, reader, progress)

    if not cache or reader is not None:
        return read()
    key = trace_cache.key(path)
    stored = trace_cache.load(key, path, reread=read)
    if stored is not None:
        return stored
    trace = read()
    trace_cache.store(key, trace)
    return trace


def _read(path: Path, reader: str | None, progress: Progress | None) -> Trace:
    source = open_source(path)
    for format_reader in READERS:
        if format_reader.accepts(source.head):
            trace: Trace = format_reader.read(source, reader=reader, progress=progress)
            return trace
    raise FormatError(f"{path}: not a recording that Foretrace knows (it reads torch.profiler's Kineto JSON)")
