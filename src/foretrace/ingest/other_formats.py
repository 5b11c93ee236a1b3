"""Files that are no recording of a program's time: known by their content, each with what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from foretrace.ingest.formats import Format
from foretrace.ingest.source import Source
from foretrace.urls import on_disk

_SQLITE = b"SQLite format 3\0"
# The beginnings of pickles of a list or dictionary: by protocol from 2 on, by their first operations before. And what a snapshot
# of the allocator begins with.
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\([dl]p[0-9]|[\]}]q\x00")
_SNAPSHOT = re.compile(rb"segments|device_traces|blocks")
_SEGMENT = re.compile(rb"total_size|segment_type|allocated_size|action|external_annotations")
_COUNTERS = re.compile(
    rb'"(?:allocated|reserved)_bytes(?:\.all\.|"\s*:\s*\{\s*"(?:all|small_pool|large_pool)")'
)
# Its first name, of the first device that has any: a file that has such counters among other things is another.
_FIRST_COUNTER = re.compile(
    rb"\s*(?:\[\s*(?:\{\s*\}\s*,\s*)*)?\{\s*"
    rb'(?:"(?:[a-z]{1,16}:)?\d{1,6}"\s*:\s*\{\s*(?:\}\s*,\s*"(?:[a-z]{1,16}:)?\d{1,6}"\s*:\s*\{\s*){0,99})?'
    rb'"(?:active|allocat|inactive_split|max_split|num_|oversize|requested|reserved|segment)'
)
_SUMMARY = re.compile(rb"\|=+\|\s*\|[^|]*memory summary, device ID")
_HTML = re.compile(rb"(?i)(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head)\b", re.DOTALL)
_NSYS_CSV = re.compile(rb'"?Start \([a-z]+\)"?,"?(?:Duration|End) \(')
_EXECUTION_TRACE = re.compile(rb'\{\s*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*".{0,4096}?"nodes"\s*:', re.DOTALL)
_XPLANE = re.compile(rb"\n.{1,24}/(?:host|device):[\w:]", re.DOTALL)  # the name of the first plane
_SPEEDSCOPE = re.compile(rb"https?://www\.speedscope\.app/file-format-schema\.json")
_PYINSTRUMENT = re.compile(rb'\{\s*"(?:session|start_time)".{0,4096}?"sample_count"\s*:', re.DOTALL)
_CPROFILE = re.compile(
    rb"[{\xfb](?:[)\xa9]\x03|[(\xa8]\x03\0\0\0)"
)  # marshal: a dictionary whose keys are tuples of three
_AVERAGES = re.compile(rb"-{5}[- ]*\r?\n\s*Name\s+.{0,80}?Self CPU")
_STACKS = re.compile(rb"[^;{}\[\]\n]{1,400};[^{}\n]{1,20000} \d{1,18}\r?\n")
_RECORD = "for Foretrace, record with `foretrace run -- python ...` or torch.profiler"


@dataclass(frozen=True)
class OtherFormat:
    """A kind of file that is known and no recording: what it is, what shows it, and how its beginning gives it away."""

    what: str
    instead: str
    begins: Callable[[bytes], bool]
    read_by_another: bool = False  # of Foretrace's commands
    of_a_profiler: bool = True
    holds_another: bool = False  # packed, encoded or kept elsewhere: what it holds may be a recording


def looks_pickled(head: bytes) -> bool:
    """Whether a file that begins like this may be a pickle of a list or dictionary."""
    return head.startswith(b"\x80") or bool(_PICKLE.match(head))


def is_snapshot(head: bytes) -> bool:
    """Whether a file that begins like this may be a snapshot of torch's CUDA allocator."""
    return bool(_PICKLE.match(head) and _SNAPSHOT.search(head) and _SEGMENT.search(head))


def is_allocator_counters(head: bytes) -> bool:
    """Whether a file that begins like this is `torch.cuda.memory_stats()` as JSON."""
    return bool(_FIRST_COUNTER.match(head) and _COUNTERS.search(head))


def is_allocator_summary(head: bytes) -> bool:
    """Whether a file that begins like this is the text of `torch.cuda.memory_summary()`."""
    return bool(_SUMMARY.search(head[:4096]))


def _is_packed_hatchet(head: bytes) -> bool:
    return (
        head.startswith(b"\x92") and b"\xa8children" in head and b"\xa5frame" in head
    )  # msgpack: a list of two


# The first that fits is told.
OTHER_FORMATS = (
    OtherFormat(
        "a Git LFS pointer instead of the file",
        "`git lfs pull` downloads the file",
        lambda head: head.startswith(b"version https://git-lfs"),
        of_a_profiler=False,
        holds_another=True,
    ),
    OtherFormat(
        "an xz archive",
        "unpack it (`tar xJf FILE`, or `unxz FILE`) and name the recording, or the folder of a job with several ranks",
        lambda head: head.startswith(b"\xfd7zXZ\0"),
        of_a_profiler=False,
        holds_another=True,
    ),
    OtherFormat(
        "a tar archive",
        "unpack it (`tar xf FILE`) and name the recording, or the folder of a job with several ranks",
        lambda head: head[257:262] == b"ustar",
        of_a_profiler=False,
        holds_another=True,
    ),
    OtherFormat(
        "text in UTF-16",
        "convert it to UTF-8; `>` of Windows PowerShell writes UTF-16",
        lambda head: head.startswith((b"\xff\xfe", b"\xfe\xff")),
        of_a_profiler=False,
        holds_another=True,
    ),
    OtherFormat(
        "an HTML page",
        "where a recording was asked for by URL, a page to sign in or of an error may have come instead",
        lambda head: bool(_HTML.match(_text(head))),
        of_a_profiler=False,
    ),
    OtherFormat(
        "an SQLite database",
        "its tables are of no profiler that is known here",
        lambda head: head.startswith(_SQLITE),
        of_a_profiler=False,
    ),
    OtherFormat(
        "a snapshot of torch's CUDA allocator (pickle)",
        "`foretrace memory FILE` shows it",
        is_snapshot,
        read_by_another=True,
    ),
    OtherFormat(
        "counters of torch's CUDA allocator",
        "`foretrace memory FILE` shows them",
        lambda head: is_allocator_counters(head) or is_allocator_summary(head),
        read_by_another=True,
    ),
    OtherFormat(
        "a Python pickle",
        "it is not loaded, since that can run code",
        lambda head: bool(_PICKLE.match(head)) and head[2:3] in (b"}", b"]", b"(", b"\x95", b"c", b"q"),
        of_a_profiler=False,
    ),
    OtherFormat(
        "a packed profile of Triton's Proton (.hatchet_msgpack)",
        "`proton-viewer -m time/ms FILE` shows it; finalize(output_format='hatchet') writes one that is read",
        _is_packed_hatchet,
    ),
    OtherFormat(
        "a PyTorch execution trace (ExecutionTraceObserver, Chakra)",
        "it lists operators with their inputs, without GPU times; the torch.profiler recording made with it is read",
        lambda head: bool(_EXECUTION_TRACE.match(_text(head))),
    ),
    OtherFormat(
        "an XPlane file of XProf, JAX or TensorFlow (.xplane.pb)",
        "the `trace.json.gz` that XProf's trace viewer exports is read",
        lambda head: bool(_XPLANE.match(head)),
    ),
    OtherFormat(
        "a speedscope profile",
        "https://www.speedscope.app shows it",
        lambda head: bool(_SPEEDSCOPE.search(head)),
    ),
    OtherFormat(
        "a session of pyinstrument (JSON)",
        "pyinstrument itself shows its sessions",
        lambda head: bool(_PYINSTRUMENT.match(_text(head))),
    ),
    OtherFormat(
        "a capture of memray",
        "`memray flamegraph FILE` shows it",
        lambda head: head.startswith(b"memray\0"),
    ),
    OtherFormat(
        "a profile of cProfile",
        "`python -m pstats FILE` shows it",
        lambda head: bool(_CPROFILE.match(head)),
    ),
    OtherFormat(
        "a table of torch.profiler as text (key_averages().table())",
        "`prof.export_chrome_trace(FILE)` writes the recording itself",
        lambda head: bool(_AVERAGES.match(_text(head))),
    ),
    OtherFormat(
        "counted stacks as text (export_stacks, py-spy --format raw)",
        "https://www.speedscope.app shows them",
        lambda head: bool(_STACKS.match(_text(head))),
    ),
    OtherFormat(
        "a trace table of `nsys stats` (CSV)",
        "of its tables the summaries are read, and the recording itself (`nsys export --type sqlite`)",
        lambda head: bool(_NSYS_CSV.match(_text(head))),
    ),
)


def recognised(head: bytes) -> OtherFormat | None:
    """The other format that a file which begins like this is in."""
    return next((other for other in OTHER_FORMATS if other.begins(head)), None)


def not_read() -> tuple[Format, ...]:
    """The formats of profilers that are told and not read."""
    return tuple(
        Format(other.what, "", "", "no", f"anything here: {other.instead}")
        for other in OTHER_FORMATS
        if other.of_a_profiler and not other.read_by_another
    )


def telling(source: Source) -> bytes:
    """How a file begins; of an SQLite file also the names of its tables, which need not lie at its beginning."""
    if source.head.startswith(_SQLITE) and not source.compression:
        return source.head + _table_names(source)
    return source.head


def told(source: Source) -> str | None:
    """One line that says what a file of another profiler is and what to do with it; `None` for any other file."""
    other = recognised(telling(source))
    if other is None:
        return None
    if other.holds_another:
        return f"{source.path}: {other.what}: {other.instead}"
    if other.read_by_another:
        return f"{source.path}: {other.what}, and no recording of a program's time: {other.instead}"
    return f"{source.path}: {other.what}, which Foretrace does not read: {other.instead}; {_RECORD}"


def _table_names(source: Source) -> bytes:
    """The names of an SQLite file's tables; nothing where it is damaged."""
    import sqlite3
    from contextlib import closing

    address = f"{on_disk(source.path).absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.text_factory = bytes
            names = database.execute("select name from sqlite_master limit 1000").fetchall()
    except (sqlite3.Error, UnicodeDecodeError):  # what it says of a damaged name need not be UTF-8
        return b""  # its beginning says what it is all the same
    return b"\n".join(name for (name,) in names if isinstance(name, bytes))


def _text(head: bytes) -> bytes:
    return head.removeprefix(b"\xef\xbb\xbf").lstrip()
