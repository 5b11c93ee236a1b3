"""Reading: what a user says about how a file is to be read, where the file itself does not tell it right."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from foretrace import cache
from foretrace.ingest import step_marks
from foretrace.trace import Trace


@dataclass(frozen=True)
class Reading:
    """The ranges that are the steps, the process to read of several, and files with counters; nothing said means what is found."""

    step: str | None = None  # a name, how names begin, or a pattern after ~
    pid: str | None = None
    counters: tuple[Path, ...] = ()  # of the recording's kernels, as Nsight Compute measured them

    def key(self, path: Path) -> str:
        """The key of the recording in the cache, which holds it before `marked`."""
        key = cache.key(path)
        return (
            key
            if self.pid is None
            else hashlib.blake2b(f"{key}\0{self.pid}".encode(), digest_size=16).hexdigest()
        )

    def marked(self, trace: Trace) -> Trace:
        """The recording with the steps that were asked for."""
        return trace if self.step is None else step_marks.chosen(trace, self.step)

    def of_others(self) -> Reading:
        """How to read another recording of the same program: there the process has another number."""
        return replace(self, pid=None, counters=())
