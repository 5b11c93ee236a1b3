"""Reading: what a user says about how a file is to be read, where the file itself does not tell it right."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from foretrace import cache
from foretrace.ingest import graph_replays, step_marks
from foretrace.trace import Trace


@dataclass(frozen=True)
class Reading:
    """The steps, the process to read of several, captures of graphs, and files with counters; nothing said means what is found."""

    step: str | None = None  # a name, how names begin, or a pattern after ~
    pid: str | None = None
    capture_traces: tuple[Trace, ...] = ()  # recordings of how this one's CUDA graphs were captured
    counters: tuple[Path, ...] = ()  # of the recording's kernels, as Nsight Compute measured them

    def key(self, *files: Path) -> str:
        """The key of the recording that these files are in the cache, which holds it before `marked`."""
        keys = [cache.key(file) for file in files]
        if cache.UNKNOWN in keys:
            return cache.UNKNOWN
        if len(keys) == 1 and self.pid is None:
            return keys[0]
        told = "\0".join([*keys, *([] if self.pid is None else [self.pid])])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def marked(self, trace: Trace) -> Trace:
        """The recording with the steps that were asked for, and the operators of captures behind replayed kernels."""
        marked = trace if self.step is None else step_marks.chosen(trace, self.step)
        return graph_replays.attributed(marked, self.capture_traces) if self.capture_traces else marked

    def of_others(self) -> Reading:
        """How to read another recording of the same program: there the process has another number."""
        return replace(self, pid=None, counters=())
