"""Files that are no recording of a program's time: known by their content, each with what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from foretrace.ingest.source import Source

_SQLITE = b"SQLite format 3\0"
# The beginnings of pickles of a list or dictionary: by protocol from 2 on, by their first operations before. And what a snapshot
# of the allocator begins with.
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\([dl]p[0-9]|[\]}]q\x00")
_SNAPSHOT = re.compile(rb"segments|device_traces|blocks")
_SEGMENT = re.compile(rb"total_size|segment_type|allocated_size|action|external_annotations")
_PROTON_UNIT = re.compile(rb'\s*\{\s*"displayTimeUnit"\s*:\s*"(?:us|ns)"')
_ROCPROF_CSV = re.compile(
    rb'"?(?:Kind"?,"?(?:Agent_Id|Direction)|Domain"?,"?Function|Correlation_Id"?,"?Dispatch_Id'
    rb'|Name"?,"?Calls"?,"?TotalDurationNs)'
)
_NSYS_CSV = re.compile(rb'"?Start \([a-z]+\)"?,"?(?:Duration|End) \(')
_NCU_CSV = re.compile(rb'(?:==PROF==[^\n]*\n)*"?ID"?,"?Process ID"?,"?Process Name"?,')
_RECORD = "for Foretrace, record with `foretrace run -- python ...` or torch.profiler"


@dataclass(frozen=True)
class OtherFormat:
    """A kind of file that is known and no recording: what it is, what shows it, and how its beginning gives it away."""

    what: str
    instead: str
    begins: Callable[[bytes], bool]
    read_by_another: bool = False  # of Foretrace's commands


def looks_pickled(head: bytes) -> bool:
    """Whether a file that begins like this may be a pickle of a list or dictionary."""
    return head.startswith(b"\x80") or bool(_PICKLE.match(head))


def is_snapshot(head: bytes) -> bool:
    """Whether a file that begins like this may be a snapshot of torch's CUDA allocator."""
    return bool(_PICKLE.match(head) and _SNAPSHOT.search(head) and _SEGMENT.search(head))


def _is_nsys_export(head: bytes) -> bool:
    return any(table in head for table in (b"CUPTI_ACTIVITY_KIND_", b"StringIds", b"NVTX_EVENTS"))


def _is_hatchet(head: bytes) -> bool:
    if head.startswith(b"\x92"):  # msgpack: a list of two
        return b"\xa8children" in head and b"\xa5frame" in head
    parts = all(part in head for part in (b'"children"', b'"frame"', b'"metrics"'))
    return head.lstrip().startswith(b"[") and parts and b'"ph"' not in head


def _is_proton_trace(head: bytes) -> bool:
    of_kineto = b'"schemaVersion"' in head or b'"deviceProperties"' in head
    return bool(_PROTON_UNIT.match(head)) and b'"call_stack"' in head and not of_kineto


# The first that fits is told.
OTHER_FORMATS = (
    OtherFormat(
        "a report of Nsight Compute (.ncu-rep)",
        "`ncu --import FILE --page details` and ncu-ui show it",
        lambda head: head.startswith(b"NVR\0"),  # not checked with a file: none was at hand
    ),
    OtherFormat(
        "rocprofv3's database (rocpd)",
        "recorded with --output-format pftrace, it is for ui.perfetto.dev",
        lambda head: head.startswith(_SQLITE) and b"rocpd_" in head,
    ),
    OtherFormat(
        "an SQLite database",
        "its tables are of no profiler that is known here",
        lambda head: head.startswith(_SQLITE) and not _is_nsys_export(head),
    ),
    OtherFormat(
        "a snapshot of torch's CUDA allocator (pickle)",
        "`foretrace memory FILE` shows it",
        is_snapshot,
        read_by_another=True,
    ),
    OtherFormat(
        "a Python pickle",
        "it is not loaded, since that can run code",
        lambda head: bool(_PICKLE.match(head)) and head[2:3] in (b"}", b"]", b"(", b"\x95", b"c", b"q"),
    ),
    OtherFormat(
        "a profile of Triton's Proton (.hatchet)", "`proton-viewer -m time/ms FILE` shows it", _is_hatchet
    ),
    OtherFormat(
        "a timeline of Triton's Proton (.chrome_trace)", "ui.perfetto.dev shows it", _is_proton_trace
    ),
    OtherFormat(
        "rocprofv3's JSON",
        "its --output-format pftrace is for ui.perfetto.dev",
        lambda head: bool(re.match(rb'\s*\{\s*"rocprofiler-sdk-tool"', head)),
    ),
    OtherFormat(
        "rocprof's CSV", "any spreadsheet shows it", lambda head: bool(_ROCPROF_CSV.match(_text(head)))
    ),
    OtherFormat(
        "a trace table of `nsys stats` (CSV)",
        "of its tables the summaries are read, and the recording itself (`nsys export --type sqlite`)",
        lambda head: bool(_NSYS_CSV.match(_text(head))),
    ),
    OtherFormat(
        "a table of Nsight Compute (CSV)",
        "any spreadsheet shows it",
        lambda head: bool(_NCU_CSV.match(_text(head))),
    ),
)


def recognised(head: bytes) -> OtherFormat | None:
    """The other format that a file which begins like this is in."""
    return next((other for other in OTHER_FORMATS if other.begins(head)), None)


def telling_head(source: Source) -> bytes:
    """How a file begins; of an SQLite file also the names of its tables."""
    if source.head.startswith(_SQLITE) and not source.compression:
        return source.head + _table_names(source)
    return source.head


def told(source: Source, head: bytes | None = None) -> str | None:
    """One line that says what a file of another profiler is and what to do with it; `None` for any other file."""
    other = recognised(telling_head(source) if head is None else head)
    if other is None:
        return None
    if other.read_by_another:
        return f"{source.path}: {other.what}, and no recording of a program's time: {other.instead}"
    return f"{source.path}: {other.what}, which Foretrace does not read: {other.instead}; {_RECORD}"


def _table_names(source: Source) -> bytes:
    """The names of an SQLite file's tables, which need not lie at its beginning; nothing where it is damaged."""
    import sqlite3
    from contextlib import closing

    address = f"{source.path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = lambda text: text.decode("utf-8", "replace")
            names = database.execute("select name from sqlite_master limit 1000").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # of a message about a damaged name
        return b""  # its beginning says what it is all the same
    return "\n".join(str(name) for (name,) in names).encode()


def _text(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()
