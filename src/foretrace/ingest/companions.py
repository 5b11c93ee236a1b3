"""Companions: the recordings of one program that lie beside each other, what kind each is, and what each gives.

Of a folder with a timeline (torch.profiler's, or another profiler's), counters of its kernels (Nsight Compute) and a memory
snapshot, the timeline is read, and the others complete it. Where several kinds of timeline are there, torch.profiler's gives the
times, else that of the reader that comes first in READERS.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from foretrace.errors import ForetraceError, InputError
from foretrace.ingest import READERS, open_trace
from foretrace.ingest.other_formats import is_snapshot, telling
from foretrace.ingest.source import open_source
from foretrace.kernel_profile import KernelProfile, together
from foretrace.units import visible

TIMELINE, COUNTERS, MEMORY = "timeline", "counters", "memory"
# What a reader's recordings give, by its name; a reader that is not named gives a timeline.
_GIVES = {"ncu": COUNTERS}
_OF_TORCH = "kineto"


@dataclass(frozen=True)
class Companion:
    """One recording of a program: its format, and what it gives."""

    path: Path
    format: str  # name of the reader, or of what else reads it
    gives: str  # TIMELINE, COUNTERS or MEMORY


def companion(file: Path) -> Companion | None:
    """What a file is, by its beginning; None where it is no recording, or cannot be read."""
    try:
        head = telling(open_source(file))
    except ForetraceError:
        return None  # naming the file itself tells why it cannot be read
    if is_snapshot(head):
        return Companion(file, "snapshot", MEMORY)
    reader = reader_of(head)
    if reader is None:
        return None
    name = reader.__name__.rpartition(".")[2]
    return Companion(file, name, _GIVES.get(name, TIMELINE))


def reader_of(head: bytes) -> ModuleType | None:
    """The reader of a file that begins like this."""
    return next((reader for reader in READERS if reader.accepts(head)), None)


def first_kind(timelines: Sequence[Companion]) -> list[Companion]:
    """Of several timelines torch's own, which knows operators; else those of the format that comes first among the readers."""
    order = [_OF_TORCH, *(reader.__name__.rpartition(".")[2] for reader in READERS)]
    first = min((order.index(each.format) for each in timelines), default=0)
    return [each for each in timelines if order.index(each.format) == first]


def counters_among(found: Iterable[Companion]) -> tuple[Path, ...]:
    """The files with counters; a report is left out where pages of it, printed as CSV, lie beside it."""
    files = [each.path for each in found if each.gives == COUNTERS]
    printed = {_stem(file) for file in files if not _is_report(file)}
    return tuple(file for file in files if not (_is_report(file) and _stem(file) in printed))


def _stem(file: Path) -> Path:
    return file.with_name(file.name.partition(".")[0])


def _is_report(file: Path) -> bool:
    return file.name.endswith(".ncu-rep")


def read_counters(
    files: Sequence[Path], *, named: Sequence[Path] = ()
) -> tuple[KernelProfile | None, list[str]]:
    """What these files hold together, and a line for each that could not be read; one that the user named must be readable."""
    profiles, notes = [], []
    for file in (*named, *files):
        try:
            profile = open_trace(file, cache=False).profile
            if profile is None:
                raise InputError(f"{file}: no counters of kernels: name a CSV or report of Nsight Compute")
            profiles.append(profile)
        except ForetraceError as error:
            if file in named:
                raise
            notes.append(visible(str(error)))
    return (together(profiles) if profiles else None), notes


def told(
    trace_file: Path, trace_format: str, profile: KernelProfile | None, others: Sequence[Companion]
) -> list[dict[str, str]]:
    """What came from which file: its name and format, what it holds, and in words what was taken from it."""
    counted = profile.paths if profile else ()
    files = f" in these {len(counted)} files together" if len(counted) > 1 else ""
    counters = f"counters of kernels ({profile.height:,} launches{files})" if profile else ""
    first = (COUNTERS, counters) if trace_file in counted else (TIMELINE, "times, operators and shapes")
    found = [(trace_file, trace_format, *first)]
    found += [(path, "ncu", COUNTERS, counters) for path in counted if path != trace_file]
    for other in others:
        if other.gives == MEMORY:
            found.append(
                (other.path, "torch's allocator", MEMORY, "GPU memory: foretrace memory, and the Memory page")
            )
        elif other.gives == TIMELINE and other.path != trace_file:
            unused = "not used: another timeline of the program; name it to open it"
            found.append((other.path, other.format, TIMELINE, unused))
    return [
        {"file": path.name, "path": str(path), "format": form, "kind": kind, "gives": gives}
        for path, form, kind, gives in found
    ]
