"""Rows of an Nsight Systems export: ranges, calls and device work as columns, with names and tracks as numbers.

Tables are created only where something was recorded, and columns differ by version: what is not there is null. The process is the
upper part of a thread's global id. Environment variables, which nsys stores in META_DATA_CAPTURE, are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import polars as pl

from foretrace.ingest import torch_ranges
from foretrace.ingest.column_files import ColumnFile, ColumnStore
from foretrace.ingest.columns import NULL_I64, NULL_U32, Array
from foretrace.schema import KINDS

OP, ANNOTATION, RUNTIME, KERNEL, COPY, SET, SYNC, OVERHEAD = (
    KINDS.index(kind) for kind in ("op", "annotation", "runtime", "kernel", "copy", "set", "sync", "overhead")
)
ACTIVITY = "CUPTI_ACTIVITY_KIND_"
GRAPHS = f"{ACTIVITY}GRAPH_TRACE"
_THREAD_BITS = 24
_THREADS = (1 << _THREAD_BITS) - 1
_PUSH_POP, _START_END, _DOMAIN = 59, 60, 75
_VERSION = re.compile(r"_v[0-9]+\Z")
_LARGEST_TIME = 2**61  # two of them can be subtracted

_DIRECTIONS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
               11: "HtoD", 12: "DtoH", 13: "DtoD"}  # fmt: skip
_MEMORIES = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_DEVICE = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid")
GEOMETRY = (
    "gridX",
    "gridY",
    "gridZ",
    "blockX",
    "blockY",
    "blockZ",
    "registersPerThread",
    "staticSharedMemory",
    "dynamicSharedMemory",
)
_KERNEL = (*_DEVICE, "demangledName", "shortName", *GEOMETRY, "graphId", "graphNodeId")


class Tables(Protocol):
    """An export's tables, whatever file they lie in."""

    @property
    def name(self) -> str:
        """That of the file or folder, for messages."""

    def has(self, table: str, *columns: str) -> bool:
        """Whether the table is there, with all these columns."""

    def frame(self, table: str, types: Mapping[str, Any], *, where: str = "") -> pl.DataFrame:
        """These columns; null where they are not there."""

    def frames(self, table: str, types: Mapping[str, Any], *, where: str = "") -> Iterator[pl.DataFrame]:
        """The same, some rows at a time."""


@dataclass
class Part:
    """Rows of one kind, in the order of their table."""

    start: Array
    dur: Array
    track: Array
    name: Array
    kind: Array
    correlation: Array | None = None
    process: Array | None = None
    extra: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.kind)


class Codes:
    """Values -> numbers in order of first use."""

    def __init__(self) -> None:
        self.of: dict[Any, int] = {}

    def __getitem__(self, value: Any) -> int:
        return self.of.setdefault(value, len(self.of))

    def numbers(self, values: Array, key: Callable[[int], Any] = int) -> Array:
        """The number of each value of an array of integers."""
        if len(values) and values.min() == values.max():
            return np.full(len(values), self[key(int(values[0]))], np.uint32)
        distinct, inverse = np.unique(values, return_inverse=True)
        return np.array([self[key(int(value))] for value in distinct], np.uint32)[inverse]


class Export:
    """What reading collects: names, shapes and tracks that rows refer to, and how many rows were not sound."""

    def __init__(self, tables: Tables, store: ColumnStore) -> None:
        self.tables, self.store = tables, store
        self.names, self.shapes, self.tracks, self.geometry = Codes(), Codes(), Codes(), Codes()
        self.whole_graphs = 0
        self.repairs: dict[str, int] = {}
        self.host_counts: dict[int, int] = {}  # runtime calls and operators by process
        self._strings = _strings(tables)
        self._domains = _domains(tables, self._strings)

    def text(self, number: int) -> str:
        """The text behind an id; empty where there is none."""
        return self._strings.get(number, "")

    def device_parts(self) -> list[Part]:
        """Kernels, copies, memsets, graphs that were recorded as a whole, and waits, of all processes."""
        return [
            part
            for parts in (
                self._each(f"{ACTIVITY}KERNEL", _KERNEL, self._kernels),
                self._each(GRAPHS, (*_DEVICE, "graphId"), self._graphs),
                self._each(
                    f"{ACTIVITY}MEMCPY", (*_DEVICE, "bytes", "copyKind", "srcKind", "dstKind"), self._copies
                ),
                self._each(f"{ACTIVITY}MEMSET", (*_DEVICE, "bytes", "memKind"), self._sets),
                self._each(f"{ACTIVITY}SYNCHRONIZATION", (*_DEVICE, "syncType"), self._syncs),
            )
            for part in _joined(parts, self.store)
        ]

    def host_parts(self, process: int | None) -> list[Part]:
        """Calls, ranges and the profiler's overhead of one process; of all where none is named."""
        calls = ("start", "end", "globalTid", "correlationId", "nameId")
        named = ("start", "end", "globalTid", "nameId")
        found = []
        for table, columns, read in (
            # Ranges first: one with the times of a call is around it.
            (
                "NVTX_EVENTS",
                ("start", "end", "globalTid", "eventType", "text", "textId", "domainId"),
                self._ranges,
            ),
            (f"{ACTIVITY}RUNTIME", calls, self._calls),
            (f"{ACTIVITY}OVERHEAD", named, self._overhead),
            ("PROFILER_OVERHEAD", named, self._overhead),
        ):
            # As a list of one: what `read` needs to keep is decided before the rest is read.
            found.append(
                _joined(
                    self._each(table, columns, lambda frame, read=read: read(self._of(frame, process))),  # type: ignore[misc]
                    self.store,
                )
            )
        return [part for parts in found for part in parts]

    def _each(
        self, table: str, columns: Iterable[str], read: Callable[[pl.DataFrame], Part]
    ) -> Iterator[Part]:
        types = {column: pl.String if column == "text" else pl.Int64 for column in columns}
        if not self.tables.has(table, "start", "end", *({"eventType"} & types.keys())):
            return
        where = f"eventType in ({_PUSH_POP}, {_START_END})" if "eventType" in types else ""
        for frame in self.tables.frames(table, types, where=where):
            sound = frame.filter(pl.col("start").abs() < _LARGEST_TIME)
            self._repair("no-time", frame.height - sound.height)
            if sound.height:
                yield read(sound)

    def _of(self, frame: pl.DataFrame, process: int | None) -> pl.DataFrame:
        """The rows of one process; those of all are counted."""
        owner = process_of(_ints(frame, "globalTid", 0))
        distinct, counts = np.unique(owner, return_counts=True)
        for each, count in zip(distinct.tolist(), counts.tolist(), strict=True):
            self.host_counts[each] = self.host_counts.get(each, 0) + count
        if process is None or (len(distinct) == 1 and distinct[0] == process):
            return frame
        return frame.filter(pl.Series(owner == process))

    def _part(
        self, frame: pl.DataFrame, kind: int | Array, track: Array, name: Array, **extra: Array
    ) -> Part:
        start, end = _ints(frame, "start"), _ints(frame, "end")
        known = (end != NULL_I64) & (np.abs(end) < _LARGEST_TIME)
        dur = np.where(known, end - np.where(known, start, 0), NULL_I64)
        for code, wrong in (
            ("no-duration", ~known),
            ("negative-duration", known & (dur < 0)),
            ("absurd-duration", known & (dur > LONGEST_NS)),
        ):
            self._repair(code, int(wrong.sum()))
            dur[wrong] = NULL_I64
        kinds = np.full(frame.height, kind, np.uint8) if isinstance(kind, int) else kind
        correlation = _ints(frame, "correlationId") if "correlationId" in frame.columns else None
        process = _ints(frame, "globalPid") if "globalPid" in frame.columns else None
        return Part(start, dur, track, name, kinds, correlation, process, extra)

    def _repair(self, code: str, count: int) -> None:
        if count:
            self.repairs[code] = self.repairs.get(code, 0) + count

    # --- the host -----------------------------------------------------------------------------------------

    def _calls(self, frame: pl.DataFrame) -> Part:
        def plain(number: int) -> str:
            return _VERSION.sub("", self._strings.get(number, ""))

        return self._part(
            frame, RUNTIME, self._threads(frame), self.names.numbers(_ints(frame, "nameId"), plain)
        )

    def _overhead(self, frame: pl.DataFrame) -> Part:
        track = np.full(frame.height, self.tracks["overhead"], np.uint32)
        name = self.names.numbers(
            _ints(frame, "nameId"), lambda number: self._strings.get(number, "Overhead")
        )
        return self._part(frame, OVERHEAD, track, name)

    def _ranges(self, frame: pl.DataFrame) -> Part:
        frame = frame.filter(pl.col("end").is_not_null())  # a range that was not closed
        parsed = torch_ranges.split(self._texts(frame))
        kinds: dict[tuple[str, bool], tuple[int, int]] = {}
        pairs = parsed.select("name", "numbered").unique()
        for name, numbered in pairs.iter_rows():
            is_operator = torch_ranges.is_operator(name, numbered=numbered)
            kinds[name, numbered] = self.names[name], OP if is_operator else ANNOTATION
        found = parsed.join(
            pairs.with_columns(
                code=pl.Series([kinds[pair][0] for pair in pairs.iter_rows()], dtype=pl.UInt32),
                kind=pl.Series([kinds[pair][1] for pair in pairs.iter_rows()], dtype=pl.UInt8),
            ),
            on=("name", "numbered"),
            how="left",
            maintain_order="left",
        )
        return self._part(
            frame, found["kind"].to_numpy(), self._threads(frame), found["code"].to_numpy(),
            sequence=found["sequence"].fill_null(NULL_I64).to_numpy(), shapes=self._shapes(found["sizes"]),
        )  # fmt: skip

    def _texts(self, frame: pl.DataFrame) -> pl.Series:
        """The text of each range, behind the name of its domain where that is not the default one."""
        texts = frame["text"]
        if texts.null_count():
            ids = frame["textId"].unique().drop_nulls().to_list()
            registered = frame["textId"].replace_strict(
                ids, [self._strings.get(number, "") for number in ids], default="", return_dtype=pl.String
            ) if ids else pl.Series([""] * frame.height)  # fmt: skip
            texts = pl.select(pl.coalesce(texts, registered).fill_null("")).to_series()
        domains = {number: name for number, name in self._domains.items() if name}
        in_domain = frame["domainId"].is_in(list(domains))
        if domains and in_domain.any():
            prefix = frame["domainId"].replace_strict(domains, default=None, return_dtype=pl.String)
            texts = pl.select(
                pl.when(prefix.is_not_null()).then(pl.concat_str(prefix, pl.lit(":"), texts)).otherwise(texts)
            ).to_series()
        return texts

    def _shapes(self, sizes: pl.Series) -> Array:
        distinct = sizes.unique().drop_nulls().to_list()
        codes = {text: self.shapes[shapes] for text in distinct if (shapes := torch_ranges.shapes(text))}
        if not codes:
            return np.full(len(sizes), NULL_U32, np.uint32)
        return sizes.replace_strict(codes, default=NULL_U32, return_dtype=pl.UInt32).to_numpy()

    def _threads(self, frame: pl.DataFrame) -> Array:
        return self.tracks.numbers(_ints(frame, "globalTid", 0), lambda number: ("thread", number))

    # --- the device ---------------------------------------------------------------------------------------

    def _kernels(self, frame: pl.DataFrame) -> Part:
        ids = frame.select(pl.coalesce("demangledName", "shortName").fill_null(-1)).to_series().to_numpy()
        names = self.names.numbers(ids, lambda number: self._strings.get(number, ""))
        # A launch has few distinct sizes: a number for each takes a tenth of the memory.
        keys = frame.select(*GEOMETRY, "graphId")
        distinct = keys.unique(maintain_order=True).with_row_index("code")
        codes = keys.join(distinct, on=keys.columns, how="left", nulls_equal=True, maintain_order="left")[
            "code"
        ]
        known = np.array([self.geometry[row] for row in distinct.select(keys.columns).iter_rows()], np.uint32)
        extra = {"geometry": known[codes.to_numpy()]}
        if frame["graphNodeId"].null_count() < frame.height:
            extra["graphNodeId"] = _ints(frame, "graphNodeId")
        return self._part(frame, KERNEL, self._streams(frame), names, **extra)

    def _graphs(self, frame: pl.DataFrame) -> Part:
        ids = _ints(frame, "graphId", 0)
        names = self.names.numbers(ids, lambda number: f"CUDA graph {number}")
        codes = self.geometry.numbers(ids, lambda number: (*[None] * len(GEOMETRY), number))
        self.whole_graphs += frame.height
        return self._part(frame, KERNEL, self._streams(frame), names, geometry=codes)

    def _copies(self, frame: pl.DataFrame) -> Part:
        kinds = [_ints(frame, column, -1) for column in ("copyKind", "srcKind", "dstKind")]
        joined = (np.clip(kinds[0], -1, 99) + 1) * 10_000
        joined = joined + (np.clip(kinds[1], -1, 98) + 1) * 100 + np.clip(kinds[2], -1, 98) + 1
        names = self.names.numbers(joined, _copy_name)
        return self._part(
            frame,
            COPY,
            self._streams(frame),
            names,
            size=_ints(frame, "bytes"),
            kinds=joined.astype(np.int32),
        )

    def _sets(self, frame: pl.DataFrame) -> Part:
        names = self.names.numbers(
            _ints(frame, "memKind", 2), lambda kind: f"Memset ({_MEMORIES.get(kind, 'Unknown')})"
        )
        kinds = np.full(frame.height, -1, np.int32)
        return self._part(frame, SET, self._streams(frame), names, size=_ints(frame, "bytes"), kinds=kinds)

    def _syncs(self, frame: pl.DataFrame) -> Part:
        names = self.names.numbers(_ints(frame, "syncType", 0), lambda kind: _SYNCS.get(kind, "Sync"))
        return self._part(frame, SYNC, self._streams(frame), names)

    def _streams(self, frame: pl.DataFrame) -> Array:
        """Tracks by device and stream, two numbers in one."""
        device = np.clip(_ints(frame, "deviceId", 0), -1, 2**15)
        stream = np.clip(_ints(frame, "streamId", 0), -(2**31), 2**31 - 1)
        return self.tracks.numbers((device << 32) + stream + 2**31, _stream)


LONGEST_NS = 7 * 24 * 3600 * 10**9  # as of Kineto's events: a longer one is a fault of the profiler


def process_of(thread: Array) -> Array:
    """The global id of the process of each thread's global id."""
    owner: Array = thread & ~np.int64(_THREADS)
    return owner


def process_number(process: int) -> int:
    """The process id that the system knows."""
    return (process >> _THREAD_BITS) & _THREADS


def thread_number(thread: int) -> int:
    """The thread id that the system knows."""
    return thread & _THREADS


def copy_facts(kinds: int) -> tuple[str | None, bool | None]:
    """Direction of a copy, and whether its memory on the host is pageable, from the kinds that `Part.extra` keeps."""
    copy, source, target = kinds // 10_000 - 1, kinds // 100 % 100 - 1, kinds % 100 - 1
    direction = _DIRECTIONS.get(copy)
    host = source if direction == "HtoD" else target if direction == "DtoH" else -1
    return direction, None if host < 0 else host == 0


def _copy_name(kinds: int) -> str:
    """As Kineto names it: "Memcpy HtoD (Pageable -> Device)"."""
    copy, source, target = kinds // 10_000 - 1, kinds // 100 % 100 - 1, kinds % 100 - 1
    between = f"{_MEMORIES.get(source, 'Unknown')} -> {_MEMORIES.get(target, 'Unknown')}"
    return f"Memcpy {_DIRECTIONS.get(copy, 'Unknown')} ({between})"


def _stream(number: int) -> tuple[str, int, int]:
    return "stream", number >> 32, (number & 0xFFFFFFFF) - 2**31


def _joined(parts: Iterable[Part], store: ColumnStore) -> list[Part]:
    """The parts of a table as one, or none; each is let go before the next is read."""
    columns: dict[str, ColumnFile] = {}
    extra: dict[str, ColumnFile] = {}
    count = 0
    for part in parts:
        for name in ("start", "dur", "track", "name", "kind", "correlation", "process"):
            values = getattr(part, name)
            if values is not None:
                columns.setdefault(name, store.column(values.dtype)).append(values)
        for name in (*extra, *(name for name in part.extra if name not in extra)):
            if name not in extra:
                extra[name] = store.column(part.extra[name].dtype)
                extra[name].append(np.full(count, NULL_I64 if extra[name].dtype == np.int64 else NULL_U32))
            missing = np.full(len(part), NULL_I64 if extra[name].dtype == np.int64 else NULL_U32)
            extra[name].append(part.extra.get(name, missing))
        count += len(part)
    if not count:
        return []
    made = {name: column.array() for name, column in columns.items()}
    return [Part(**made, extra={name: column.array() for name, column in extra.items()})]


def _ints(frame: pl.DataFrame, column: str, null: int = NULL_I64) -> Array:
    return frame[column].fill_null(null).to_numpy()


def _strings(tables: Tables) -> dict[int, str]:
    frame = tables.frame("StringIds", {"id": pl.Int64, "value": pl.String}).drop_nulls()
    return dict(frame.iter_rows())


def _domains(tables: Tables, strings: Mapping[int, str]) -> dict[int, str]:
    """The names of NVTX domains; the default one has none."""
    types = {"eventType": pl.Int64, "domainId": pl.Int64, "text": pl.String, "textId": pl.Int64}
    if not tables.has("NVTX_EVENTS", "eventType", "domainId"):
        return {}
    # Most exports have none, which one column tells much sooner than SQLite does.
    if not any(
        (frame["eventType"] == _DOMAIN).any()
        for frame in tables.frames("NVTX_EVENTS", {"eventType": pl.Int64})
    ):
        return {}
    found: dict[int, str] = {}
    for _, domain, text, text_id in tables.frame(
        "NVTX_EVENTS", types, where=f"eventType = {_DOMAIN}"
    ).iter_rows():
        if domain is not None:
            found[domain] = text or strings.get(text_id, "")
    return found
