"""An SQL query over tables, answered by a process of its own that can open nothing and is stopped in time.

A query may be copied from anywhere, and polars lets one read files and addresses: `from read_csv('/etc/passwd')`.
So table functions are refused before anything runs, and where the system can limit it, the process that runs the
query can open no file and no socket: it has the tables, sent through a pipe, and answers through another.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, cast

from foretrace.errors import ForetraceError, UsageError, unknown

if TYPE_CHECKING:
    import polars as pl

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_MOST_ROWS = 1_000_000
# Table functions that read nothing but their arguments.
ALLOWED_FUNCTIONS = frozenset(("unnest",))
# Of the memory that is free now; the rest of the machine goes on.
_MEMORY_SHARE = 0.75
_OWN_BYTES = 1 << 30  # what polars reserves, and the tables

_TOKENS = re.compile(
    r"""--[^\n]* | /\*.*?(?:\*/|\Z)                # comments
      | (?P<text>'(?:[^']|'')*'?)
      | (?P<quoted>"(?:[^"]|"")*"? | `[^`]*`? )
      | (?P<word>[^\W\d][\w$]*)
      | (?P<sign>[(),;.])
    """,
    re.VERBOSE | re.DOTALL,
)
_TABLES_FOLLOW = frozenset(("from", "join"))
_TABLES_END = frozenset(
    (
        "select", "where", "group", "having", "order", "limit", "offset", "fetch", "union", "except", "intersect",
        "window", "qualify", "set", "values",
    )
)  # fmt: skip
_BEFORE_A_TABLE = frozenset(("lateral", "only", "table"))


@dataclass(frozen=True)
class Answered:
    """What a query yielded, and whether there was more than the limit lets through."""

    frame: pl.DataFrame
    cut: bool


def check(query: str) -> None:
    """Raises UsageError for a query that names a function where a table stands, or one that reads files."""
    refused = next((name for name in _table_functions(query) if name not in ALLOWED_FUNCTIONS), None)
    if refused is not None:
        raise UsageError(
            f"sql: {refused[:60]}() is refused: a query reads the tables of the recording, not files or addresses"
        )


def _table_functions(query: str) -> list[str]:
    """Functions named where a table is, and those anywhere whose names say that they read."""
    tokens = [match for match in _TOKENS.finditer(query) if match.lastgroup]
    found = []
    in_tables = [False]  # for each open parenthesis: are we in a list of tables?
    due = False  # the next word is a table
    for number, token in enumerate(tokens):
        after = tokens[number + 1][0] if number + 1 < len(tokens) else ""
        word = token[0].strip('"`').lower()
        if token["word"] and word in _TABLES_FOLLOW:
            in_tables[-1] = due = True
        elif token["word"] and word in _TABLES_END:
            in_tables[-1] = due = False
        elif token["word"] or token["quoted"] or token["text"]:
            if after == "(" and (due or re.match(r"(?:read|scan)_|.*_scan$", word)):
                found.append(word)
            due = due and (after == "." or (bool(token["word"]) and word in _BEFORE_A_TABLE))
        elif word == "(":
            in_tables.append(due)
        elif word == ")" and len(in_tables) > 1:
            in_tables.pop()
            due = False
        elif word == ",":
            due = in_tables[-1]
    return found


def ask(
    tables: Mapping[str, pl.DataFrame],
    query: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    most_rows: int = DEFAULT_MOST_ROWS,
) -> Answered:
    """What the query yields; 0 is no limit. Raises UsageError for one that is wrong, or takes too much."""
    check(query)
    stopped = threading.Event()
    try:
        header, data = _exchange(tables, {"query": query, "most_rows": most_rows}, timeout_s, stopped)
    except BrokenPipeError:  # it ended before it had the tables
        header, data = b"", b""
    return _understood(header, data, stopped_after_s=timeout_s if stopped.is_set() else None)


def _exchange(
    tables: Mapping[str, pl.DataFrame], asked: dict[str, Any], timeout_s: float, stopped: threading.Event
) -> tuple[bytes, bytes]:
    """What the other process says of its answer, and the answer; neither where it was stopped."""
    # The same modules as here, and none from the folder that the user happens to be in.
    code = f"import sys; sys.path[:] = {sys.path!r}; from foretrace.commands._query import answer; answer()"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        sent, received = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)

        def stop() -> None:
            stopped.set()
            process.kill()

        clock = threading.Timer(timeout_s, stop)
        try:
            _send(sent, tables, asked)
            if received.readline() and timeout_s:  # it has the tables: its own time begins
                clock.start()
            return received.readline(), received.read()
        except BaseException:
            process.kill()
            raise
        finally:
            clock.cancel()


def _understood(header: bytes, data: bytes, *, stopped_after_s: float | None) -> Answered:
    import polars as pl

    if header:
        facts = json.loads(header)
        if "error" in facts:
            raise UsageError(facts["error"])
        if len(data) == facts["size"]:
            return Answered(pl.read_ipc(io.BytesIO(data)), facts["cut"])
    if stopped_after_s is not None:
        raise UsageError(f"sql: stopped after {stopped_after_s:g} s; ask for less, or give it more --timeout")
    raise UsageError("sql: the query was ended by the system; most likely it needs more memory than is free")


def _send(stream: IO[bytes], tables: Mapping[str, pl.DataFrame], asked: dict[str, Any]) -> None:
    packed = {}
    for name, frame in tables.items():
        buffer = io.BytesIO()
        frame.write_ipc(buffer, compression="uncompressed")
        packed[name] = buffer.getbuffer()
    sizes = {name: len(data) for name, data in packed.items()}
    stream.write(json.dumps({**asked, "tables": sizes}).encode() + b"\n")
    for data in packed.values():
        stream.write(data)
    stream.close()


def answer() -> None:
    """The other end: reads tables and a query, and writes what it yields."""
    import polars as pl

    asked = json.loads(sys.stdin.buffer.readline())
    tables = {
        name: pl.read_ipc(io.BytesIO(sys.stdin.buffer.read(size))) for name, size in asked["tables"].items()
    }
    # What polars and Python open for themselves, they open now.
    execute({}, "select 1", most_rows=1)[0].write_ipc(io.BytesIO(), compression="uncompressed")
    _understandable("relation 'span' was not found", {})
    # A panic inside polars prints itself; the one line that tells of it comes from the other end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    _close_in()
    sys.stdout.buffer.write(b"begun\n")
    sys.stdout.buffer.flush()
    data = io.BytesIO()
    try:
        frame, cut = execute(tables, asked["query"], most_rows=asked["most_rows"])
        frame.write_ipc(data, compression="uncompressed")
        header: dict[str, Any] = {"size": data.tell(), "cut": cut}
    except ForetraceError as error:
        header = {"error": str(error)}
    sys.stdout.buffer.write(json.dumps(header).encode() + b"\n")
    sys.stdout.buffer.write(data.getbuffer())
    sys.stdout.buffer.flush()


def execute(tables: Mapping[str, pl.DataFrame], query: str, *, most_rows: int) -> tuple[pl.DataFrame, bool]:
    """The rows of a query in this process, and whether there were more."""
    import polars as pl
    import polars.selectors as cs

    context = pl.SQLContext()
    for name, frame in tables.items():
        # SQL's text functions do not take polars' categories.
        named = cs.categorical() | cs.enum()
        context.register(name, frame.lazy().with_columns(named.cast(pl.String)))
    try:
        result = context.execute(query)
        frame = (result.head(most_rows + 1) if most_rows else result).collect()
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, ValueError) as error:
        raise _understandable(str(error).strip(), tables) from error
    cut = bool(most_rows) and frame.height > most_rows
    return (frame.head(most_rows) if cut else frame), cut


def _understandable(message: str, tables: Mapping[str, pl.DataFrame]) -> UsageError:
    """What polars says of a query, in one line; of a name that there is none of, which one may be meant."""
    from foretrace import schema

    why = message.partition("\n")[0]
    if found := re.match(r"relation '([^']*)' was not found", why):
        return unknown(f"sql: no table {found[1]!r}", found[1], schema.TABLES, listed="tables")
    if found := re.match(r'unable to find column "([^"]*)"(?:; valid columns: \[(.*)\])?', why):
        columns = re.findall(r'"([^"]*)"', found[2] or "")
        return unknown(f"sql: no column {found[1]!r}", found[1], columns)
    if found := re.match(r"no column named '([^']*)' found in table '([^']*)'", why):
        columns = [name for frame in tables.values() for name in frame.columns]
        return unknown(f"sql: no column {found[1]!r} in {found[2]!r}", found[1], columns)
    return UsageError(f"sql: {why} (tables: {', '.join(schema.TABLES)})")


def _close_in() -> None:
    """No file and no socket can be opened from here on, and not all memory taken; where the system can do that."""
    try:
        import resource
    except ImportError:  # Windows: the check of table functions stands alone there
        return
    free = _free_bytes()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    if free is not None:
        most = int(free * _MEMORY_SHARE) + _OWN_BYTES
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _free_bytes() -> int | None:
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = re.search(r"^MemAvailable:\s*(\d+) kB", file.read(), re.MULTILINE)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
