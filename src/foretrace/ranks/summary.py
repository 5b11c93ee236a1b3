"""The Summary of a rank: its communications, what led to each, and its steps, in kilobytes.

A summary's file is one zstd frame around a line of JSON and two Arrow tables. It holds nothing of when or by whom it was
made: the same recording gives the same bytes.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import polars as pl
from msgspec import Meta, Struct

from foretrace import own_files, zstd
from foretrace.deflate import stream
from foretrace.errors import FormatError, InputError
from foretrace.own_files import Count, Integer

SUMMARY_SCHEMA = 4
SUFFIX = ".ranksummary"
KINDS = (
    "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "barrier", "reduce", "send_recv", "gather",
    "scatter", "send", "recv", "unknown", "step",
)  # fmt: skip
STEP = KINDS.index("step")  # no communication: where the device's work of a step ends
KIND_CODE = {name: code for code, name in enumerate(KINDS)}
NOBODY = -1
TRUNCATED = "truncated"  # the repair of a recording that ends too early
# Times are on the rank's own clock, since its recording began.
ROWS = {
    "step": pl.Int32,
    "kind": pl.UInt8,  # of KINDS
    "group": pl.Int32,  # of the header's groups
    "seq": pl.Int64,  # NOBODY where it was not recorded
    "peer": pl.Int32,  # of a send the destination, of a receive the source
    "size_bytes": pl.Int64,  # NOBODY where it was not recorded
    "received_bytes": pl.Int64,
    "start_ns": pl.Int64,
    "dur_ns": pl.Int64,
    "before": pl.Int32,  # row of the last communication that the rank stood still for, before this one was ready
    "queued": pl.Int32,  # row of the communication before this one on its stream
    "queue_ns": pl.Int64,  # from the end of that to the start, where the stream was what it waited for; else NOBODY
    "still": pl.Boolean,  # the device computed nothing until this one had ended
    "work_ns": pl.Int64,  # of one stood still for: from the end of the one before to where computation ended
    "work_computation_ns": pl.Int64,  # of that
    "work_input_ns": pl.Int64,
    "lead_ns": pl.Int64,  # from the end of `before` until it was ready, of which:
    "computation_ns": pl.Int64,
    "input_ns": pl.Int64,
}
STEPS = {
    "step": pl.Int32,  # NOBODY where the recording has none: then it is the whole of it
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "computation_ns": pl.Int64,
    "input_ns": pl.Int64,
    "other_ns": pl.Int64,  # idle, while no communication was under way, and not for input
    "kernels_count": pl.Int64,
}
_MAGIC = b"foretrace-rank 1\n"
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class Group:
    """A process group: as it is named in its recording, and its members, as runs of (first, count, stride)."""

    name: str
    description: str
    size: int
    runs: tuple[tuple[int, int, int], ...]  # empty where the members are not known

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The ranks in it."""
        return tuple(first + stride * place for first, count, stride in self.runs for place in range(count))


@dataclass(frozen=True)
class Summary:
    """What one rank's recording tells of the job."""

    rank: int
    world: int | None
    source: str  # the recording's name
    host: str | None
    device: int | None
    device_name: str | None
    epoch_ns: int  # what the rank's clock showed when its times were 0
    begin_ns: int
    boot: str | None  # which start of the host its own clock counts from
    host_zero_ns: int | None  # what that clock showed when the rank's times were 0
    marks: str | None  # what its steps were told by
    groups: tuple[Group, ...]
    repairs: tuple[tuple[str, int], ...]
    rows: pl.DataFrame
    steps: pl.DataFrame

    def to_bytes(self) -> bytes:
        """As it is kept in a file."""
        header = {
            "schema": SUMMARY_SCHEMA,
            **{name: getattr(self, name) for name in _PLAIN},
            "groups": [asdict(group) for group in self.groups],
            "repairs": self.repairs,
        }
        parts = [json.dumps(header, sort_keys=True).encode(), _table(self.rows), _table(self.steps)]
        body = b"".join(struct.pack("<I", len(part)) + part for part in parts)
        content = _MAGIC + struct.pack("<I", stream.crc32(body)) + body
        return zstd.compress(content, level=3)

    @classmethod
    def from_bytes(cls, data: bytes, name: str = "summary") -> Summary:
        """What `to_bytes` wrote; an InputError says what it is otherwise."""
        header, rows, steps = _parts(data, name)
        told = own_files.parsed(header, name)
        if not isinstance(told, dict) or told.get("schema") != SUMMARY_SCHEMA:
            raise FormatError(
                f"{name}: written by another version of Foretrace; remove it to have it written again"
            )
        facts = own_files.converted(told, _Header, name)
        plain = {field: getattr(facts, field) for field in _PLAIN}
        groups = tuple(Group(group.name, group.description, group.size, group.runs) for group in facts.groups)
        return cls(
            **plain, groups=groups, repairs=facts.repairs, rows=_frame(rows, ROWS), steps=_frame(steps, STEPS)
        )


Members = Annotated[int, Meta(ge=0, le=1 << 20)]  # of a run of ranks


class _Group(Struct, frozen=True):
    """A Group as a summary's header holds it."""

    name: str
    description: str
    size: Count
    runs: tuple[tuple[Count, Members, Integer], ...]


class _Header(Struct, frozen=True):
    """The facts of a summary."""

    rank: Count
    world: Count | None
    source: str
    host: str | None
    device: Count | None
    device_name: str | None
    epoch_ns: Integer
    begin_ns: Integer
    boot: str | None
    host_zero_ns: Integer | None
    marks: str | None
    groups: tuple[_Group, ...]
    repairs: tuple[tuple[str, Count], ...]


_PLAIN = tuple(name for name in _Header.__struct_fields__ if name not in ("groups", "repairs"))


def read_summary(path: Path) -> Summary:
    """The summary in a file."""
    try:
        return Summary.from_bytes(path.read_bytes(), path.name)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def runs_of(members: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Ranks as runs of (first, count, stride), in their order."""
    runs: list[tuple[int, int, int]] = []
    place = 0
    while place < len(members):
        first = members[place]
        stride = members[place + 1] - first if place + 1 < len(members) else 1
        count = 1
        while place + count < len(members) and members[place + count] == first + count * stride:
            count += 1
        runs.append((first, count, stride if count > 1 else 1))
        place += count
    return tuple(runs)


def _table(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.rechunk().write_ipc(buffer, compression="uncompressed")
    return buffer.getvalue()


def _frame(data: bytes, schema: dict[str, Any]) -> pl.DataFrame:
    frame = pl.read_ipc(io.BytesIO(data))
    if dict(frame.schema) != {name: dtype() for name, dtype in schema.items()}:
        raise FormatError("a summary with other columns than this version of Foretrace writes")
    return frame


def _parts(data: bytes, name: str) -> tuple[bytes, bytes, bytes]:
    """Header, rows and steps; checked before polars sees them, for its reader may panic on damaged data."""
    try:
        frame = zstd.ZstdDecompressor()
        content = frame.decompress(data, _MOST_BYTES)
    except zstd.ZstdError as error:
        raise FormatError(f"{name}: not a summary of a rank, or damaged") from error
    if not frame.eof:
        raise FormatError(f"{name}: not a summary of a rank, or damaged")
    body = memoryview(content)[len(_MAGIC) + 4 :]
    if not content.startswith(_MAGIC) or len(content) < len(_MAGIC) + 4:
        raise FormatError(f"{name}: not a summary of a rank")
    if struct.unpack_from("<I", content, len(_MAGIC))[0] != stream.crc32(body):
        raise FormatError(f"{name}: a damaged summary; remove it to have it made again")
    parts, at = [], 0
    for _ in range(3):
        (size,) = struct.unpack_from("<I", body, at)
        parts.append(bytes(body[at + 4 : at + 4 + size]))
        at += 4 + size
    return parts[0], parts[1], parts[2]
