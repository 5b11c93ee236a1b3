"""Opened: the recordings that tools were asked about, kept while they fit, read again when their file changes."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from foretrace.commands.agent.roots import Roots
from foretrace.diagnose import opening
from foretrace.diagnose.case import Case
from foretrace.ingest import open_trace
from foretrace.ingest.reading import Reading
from foretrace.ingest.recordings import find_recording
from foretrace.ingest.snapshots import read_snapshot
from foretrace.snapshot import Snapshot
from foretrace.trace import Trace

# A recording of 1 GB has about four million spans, which take about as many bytes in memory as the file has.
HELD_SPANS = 12_000_000
_Stamp = tuple[str, int, int]


class Opened:
    """Cases by what they were made from."""

    def __init__(self, roots: Roots, *, cache: bool = True) -> None:
        self._roots, self._cache = roots, cache
        self._cases: OrderedDict[_Stamp, Case] = OrderedDict()

    def case(self, path: Path) -> Case:
        """The case of what a path means."""
        recorded = find_recording(path, of_ranks=True)
        facts = self._roots.check(recorded.path).stat()
        key = (str(path), facts.st_size, facts.st_mtime_ns)
        if key not in self._cases:
            self._cases[key] = opening.open_case(path, read=self._read)
        self._cases.move_to_end(key)
        while len(self._cases) > 1 and self._spans() > HELD_SPANS:
            self._cases.popitem(last=False)
        return self._cases[key]

    def snapshot(self, file: Path) -> Snapshot:
        """A memory snapshot under a root."""
        return read_snapshot(self._roots.check(file))

    def _read(self, file: Path, reading: Reading) -> Trace:
        """A recording under a root: the links of a folder, and the names in a Run's own files, may lead elsewhere."""
        return open_trace(self._roots.check(file), cache=self._cache, step=reading.step, pid=reading.pid)

    def _spans(self) -> int:
        return sum(case.whole.spans.height for case in self._cases.values())
