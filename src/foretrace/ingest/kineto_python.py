"""The pure-Python scanner and linker of Kineto JSON: the reference that the extension is compared with.

It keeps the whole text in memory and is about thirty times slower; the tables are the same. One file, since it is read
beside `_native/scanner.hpp`, which does the same in the same order.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from foretrace.errors import FormatError
from foretrace.ingest import lenient
from foretrace.ingest.columns import (
    ARG_FLOAT, ARG_INT, ARG_TEXT, GROUPS, NULL_I32, NULL_I64, NULL_U32, NULL_U64, Array, Columns,
)  # fmt: skip
from foretrace.ingest.json_values import (
    clean, fit, fit_unsigned, integer, is_text, lane_key, nanoseconds, real, text_of, triple,
)  # fmt: skip
from foretrace.ingest.processes import Process, Rows, choose
from foretrace.schema import KINDS

# An event whose recorded duration exceeds this is a profiler fault (HTA uses the same bound).
LONGEST_NS = 7 * 24 * 3600 * 10**9
# How much may be read in vain in search of the next whole event: this, and eight times what lies before.
RESYNC_WORK = 4 << 20

OP, PYTHON, ANNOTATION, RUNTIME, KERNEL, COPY, SET, SYNC, OVERHEAD = range(len(KINDS))
MEMORY = len(KINDS)  # an instant; takes part in nesting, is not a span
CATEGORIES = {
    "cpu_op": OP, "Operator": OP, "hpu_op": OP, "privateuse1_op": OP,
    "user_annotation": ANNOTATION, "gpu_user_annotation": ANNOTATION,
    "python_function": PYTHON,
    "cuda_runtime": RUNTIME, "cuda_driver": RUNTIME, "Runtime": RUNTIME, "xpu_runtime": RUNTIME,
    "xpu_driver": RUNTIME, "mtia_runtime": RUNTIME, "privateuse1_runtime": RUNTIME,
    "privateuse1_driver": RUNTIME, "glow_runtime": RUNTIME,
    "kernel": KERNEL, "Kernel": KERNEL, "concurrent_kernel": KERNEL, "collective_comm": KERNEL, "mtia_ccp_events": KERNEL,
    "gpu_memcpy": COPY, "Memcpy": COPY, "gpu_memset": SET, "Memset": SET,
    "cuda_sync": SYNC, "cuda_event": SYNC, "xpu_sync": SYNC,
    "overhead": OVERHEAD,
}  # fmt: skip
_PHASE = re.compile(r"[A-Za-z()]")
_FLOWS = frozenset("stf")

# Not kept: the profiler's own bookkeeping, and values that others in the row give exactly.
DROPPED = frozenset((
    "Ev Idx", "Record function id", "Profiler Event Index", "Trace name", "Trace iteration", "finished",
    "queued", "context", "cbid", "cid", "external ts", "memory bandwidth (GB/s)", "Python thread", "Op count",
    "Device",
))  # fmt: skip
_COMMON = {"External id": "external", "external id": "external", "correlation": "correlation"}
_DEVICE = {**_COMMON, "device": "device", "stream": "stream"}
_KNOWN: dict[int, dict[str, str]] = {
    OP: {
        **_COMMON, "Sequence number": "sequence", "Fwd thread id": "forward_thread",
        "Input Dims": "shapes", "Input dims": "shapes", "Input type": "dtypes", "Input Strides": "strides",
        "Concrete Inputs": "inputs", "Call stack": "call_stack", "flops": "flops",
    },
    PYTHON: {"Python id": "python_id", "Python parent id": "python_parent", "Python module id": "unused"},
    ANNOTATION: _COMMON,
    RUNTIME: _COMMON,
    OVERHEAD: _COMMON,
    KERNEL: {
        **_DEVICE, "grid": "grid", "block": "block", "registers per thread": "registers",
        "shared memory": "shared", "blocks per SM": "blocks_per_sm", "warps per SM": "warps_per_sm",
        "est. achieved occupancy %": "occupancy", "theoretical occupancy %": "occupancy",
        "graph id": "graph", "graph node id": "graph_node",
    },
    COPY: {**_DEVICE, "bytes": "size", "graph id": "unused", "graph node id": "unused"},
    SET: {**_DEVICE, "bytes": "size", "graph id": "unused", "graph node id": "unused"},
    SYNC: _DEVICE,
}  # fmt: skip
_TEXT_FIELDS = frozenset(("shapes", "dtypes", "strides", "inputs", "call_stack"))
_FLOAT_FIELDS = frozenset(("blocks_per_sm", "warps_per_sm", "occupancy"))
_NARROW = frozenset(("registers", "forward_thread"))

_EVENTS_KEY = re.compile(r'"traceEvents"[ \t\n\r]*:[ \t\n\r]*\[')
_EVENT_START = re.compile(r'\{[ \t\n\r]*"(?:ph|name|cat|pid|tid|ts)"')
_STEP = re.compile(r"ProfilerStep#([0-9]{1,9})")
MODULE_PREFIX = "nn.Module: "


class _Codes(dict[str, int]):
    """Text -> number, in order of first use."""

    def __missing__(self, text: str) -> int:
        code = self[text] = len(self)
        return code


class Scanner:
    """Collects events into columns; `columns()` links them."""

    def __init__(self) -> None:
        self.names, self.texts, self.lanes = _Codes(), _Codes(), _Codes()
        self.lane_keys: list[tuple[int | str, int | str]] = []
        self.core: list[tuple[int, int, int, int, int]] = []  # start, dur, name, lane, kind
        self.on_gpu: list[bool] = []
        self.fields: dict[int, list[dict[str, Any]]] = defaultdict(list)  # kind -> known arguments
        self.rows: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
        self.lane_device: dict[int, tuple[int, int]] = {}
        self.header: dict[str, Any] = {}
        self.counts: dict[str, int] = defaultdict(int)
        self.repairs: dict[str, tuple[int, int | None]] = {}
        self.resync_work = 0

    def repair(self, code: str, at: int | None, count: int = 1) -> None:
        """Counts a repair; the first one's place, given as a position in the text, is kept as a byte offset."""
        before = self.repairs.get(code)
        if before:
            self.repairs[code] = (before[0] + count, before[1])
        else:  # only now: finding the offset takes as long as the text before it
            self.repairs[code] = (count, None if at is None else self._offset_of(at))

    # --- the file ---------------------------------------------------------------------------------------

    def scan(self, data: bytes) -> None:
        """Reads a whole file."""
        text = data.decode("utf-8", "surrogateescape").removeprefix("\ufeff")
        skipped = len(data) - _bytes_in(text)
        self._offset_of: Callable[[int], int] = lambda at: skipped + _bytes_in(text[:at])
        at = lenient.space(text, 0)
        if text[at : at + 1] == "[":
            self.counts["bare_list"] = 1
            self._events(text, at + 1)
        elif text[at : at + 1] == "{":
            self._document(text, at + 1)
        else:
            raise FormatError("not JSON")

    def _document(self, text: str, at: int | None) -> None:
        while at is not None:
            at = _skip_commas(text, at)
            if at >= len(text):
                return self.repair("truncated", len(text))
            if text[at] == "}":
                return None
            begin = at
            try:
                key, at = self._member_key(text, at)
                if key == "traceEvents" and text[at : at + 1] == "[":
                    self.counts["trace_events"] = 1
                    at = self._events(text, at + 1)
                else:
                    self.header[key], at = self._header_value(text, at)
            except lenient.DamagedError as damage:
                at = self._past_damage(text, begin, isinstance(damage, lenient.TruncatedError))
        return None

    def _past_damage(self, text: str, at: int, truncated: bool) -> int | None:
        """The next place to read from: a header that cannot be read may have the events behind it."""
        match = None if self.counts["trace_events"] else _EVENTS_KEY.search(text, at)
        if match:
            self.repair("damaged", at)
            self.counts["lost_bytes"] += _bytes_in(text[at : match.start()])
            return match.start()
        self.repair("truncated" if truncated else "damaged", len(text) if truncated else at)
        return None

    @staticmethod
    def _member_key(text: str, at: int) -> tuple[str, int]:
        if text[at] != '"':
            raise lenient.DamagedError(at)
        notes: list[str] = []
        begin = at
        try:
            key, at = lenient.string(text, at, notes.append)
        finally:
            if "raw-quote" in notes:  # it may have run on into the next key
                raise lenient.DamagedError(begin)
        at = lenient.space(text, at)
        if text[at] != ":":
            raise lenient.DamagedError(at)
        return key, lenient.space(text, at + 1)

    @staticmethod
    def _header_value(text: str, at: int) -> tuple[Any, int]:
        # Only brackets end by themselves: what else the strict reader takes may be the beginning of a word.
        return (lenient.decode if text[at : at + 1] in ("{", "[") else lenient.value)(text, at)

    def _events(self, text: str, at: int | None) -> int | None:
        """Reads the events from after the opening bracket; returns where the array ends, None at the text's end."""
        while at is not None:
            at = _skip_commas(text, at)
            if at >= len(text):
                self.repair("truncated", at)
                return None
            if text[at] == "]":
                return at + 1
            at = self._element(text, at)
        return None

    def _element(self, text: str, at: int) -> int | None:
        notes: list[str] = []
        try:
            if text[at] != "{":
                raise lenient.DamagedError(at)
            event, end = lenient.decode(text, at, notes.append)
        except lenient.DamagedError as damage:
            return self._resync(text, at, isinstance(damage, lenient.TruncatedError))
        for note in sorted(set(notes)):
            self.repair(note, at)
        self._event(event, at)
        return end

    def _resync(self, text: str, at: int, truncated: bool) -> int | None:
        """The next place where a whole event stands, if there is one."""
        search = at + 1
        while match := _EVENT_START.search(text, search):
            search = match.start() + 1
            try:
                event, end = lenient.value(text, match.start())
            except lenient.DamagedError as damage:
                event, end = {}, damage.position
            phase = event.get("ph")
            if is_text(phase) and _PHASE.fullmatch(phase):
                self.repair("damaged", at)
                self.counts["lost_bytes"] += _bytes_in(text[at : match.start()])
                return match.start()
            self.resync_work += end - match.start()
            if self.resync_work > RESYNC_WORK + 8 * match.start():
                break
        self.repair("truncated" if truncated else "damaged", at)
        self.counts["lost_bytes"] += _bytes_in(text[at:])
        return None

    # --- one event --------------------------------------------------------------------------------------

    def _event(self, event: dict[str, Any], place: int) -> None:
        self.counts["events"] += 1
        phase = event.get("ph")
        if not (is_text(phase) and _PHASE.fullmatch(phase)):
            self.repair("not-an-event", place)
            return
        if phase in _FLOWS:
            self.counts["flows"] += 1
            return
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        lane = self._lane(event)
        if phase == "M":
            label = args.get("name", args.get("labels"))
            if is_text(label):
                self.rows["labels"].append((lane, self.names[_name(event)], self.texts[label]))
            return
        if phase not in "XiIC":
            self.counts["skipped_phase"] += 1
            return
        at = nanoseconds(event.get("ts"))
        if at is None:
            self.repair("no-time", place)
            return
        if phase == "C":
            for key, item in args.items():
                number = real(item)
                if number is not None and not isinstance(item, bool) and key not in DROPPED:
                    self.rows["counters"].append(
                        (lane, at, self.names[_name(event)], self.texts[key], number)
                    )
        elif phase == "X":
            self._complete(event, args, lane, at, place)
        elif _name(event) == "[memory]":
            self._memory(args, lane, at)
        else:
            self.rows["instants"].append((self.names[_name(event)], at))

    def _lane(self, event: dict[str, Any]) -> int:
        process, thread = lane_key(event.get("pid")), lane_key(event.get("tid"))
        key = f"{type(process).__name__} {process}\0{type(thread).__name__} {thread}"
        if key not in self.lanes:
            self.lane_keys.append((process, thread))
            for part in (process, thread):
                if isinstance(part, str):
                    self.texts[part]  # so that text that is not UTF-8 is counted
        return self.lanes[key]

    def _memory(self, args: dict[str, Any], lane: int, at: int) -> None:
        size = fit(integer(args.get("Bytes")))
        if size is None:
            return
        self.core.append((at, NULL_I64, NULL_U32, lane, MEMORY))
        self.on_gpu.append(False)
        self.fields[MEMORY].append(
            {
                "bytes": size,
                "address": fit_unsigned(integer(args.get("Addr"))),
                "device_type": fit(integer(args.get("Device Type"))),
                "device_id": fit(integer(args.get("Device Id"))),
                "allocated": fit(integer(args.get("Total Allocated"))),
                "reserved": fit(integer(args.get("Total Reserved"))),
            }
        )

    def _complete(self, event: dict[str, Any], args: dict[str, Any], lane: int, at: int, place: int) -> None:
        category, name = event.get("cat"), _name(event)
        duration = self._duration(event, place)
        if category == "Trace":
            self.rows["windows"].append((self.names[name], at, duration))
            return
        kind = CATEGORIES.get(category, ANNOTATION) if isinstance(category, str) else ANNOTATION
        if kind == OP and _STEP.fullmatch(name):
            kind = ANNOTATION
        row = len(self.core)
        self.core.append((at, duration, self.names[name], lane, kind))
        self.on_gpu.append(category == "gpu_user_annotation")
        known = _KNOWN[kind]
        fields: dict[str, Any] = {}
        for key, item in args.items():
            column = known.get(key)
            if column is not None:
                fields[column] = item
            elif key not in DROPPED:
                self._argument(row, key, item)
        self.fields[kind].append(self._convert(fields))
        if kind in (KERNEL, COPY, SET, SYNC) and lane not in self.lane_device:
            device = fit(integer(fields.get("device")))
            stream = fit(integer(fields.get("stream")))
            if device is not None:
                self.lane_device[lane] = (device, NULL_I64 if stream is None else stream)

    def _duration(self, event: dict[str, Any], place: int) -> int:
        duration = nanoseconds(event.get("dur"))
        if duration is None:
            self.repair("no-duration", place)
        elif duration < 0:
            self.repair("negative-duration", place)
        elif duration > LONGEST_NS:
            self.repair("absurd-duration", place)
        else:
            return duration
        return NULL_I64

    def _convert(self, fields: dict[str, Any]) -> dict[str, Any]:
        converted: dict[str, Any] = {}
        for column, item in fields.items():
            if column in _TEXT_FIELDS:
                text = text_of(item)
                converted[column] = None if text is None else self.texts[text]
            elif column in _FLOAT_FIELDS:
                converted[column] = real(item) if not isinstance(item, bool) else None
            elif column in ("grid", "block"):
                for axis, size in zip("xyz", triple(item), strict=True):
                    converted[f"{column}_{axis}"] = size
            elif column in ("external", "correlation"):
                converted[column] = fit_unsigned(integer(item))
            else:
                converted[column] = fit(integer(item), 31 if column in _NARROW else 63)
        return converted

    def _argument(self, row: int, key: str, item: Any) -> None:
        if isinstance(item, int):
            value, kind = (item, ARG_INT) if -(2**63) < item < 2**63 else (self.texts[str(item)], ARG_TEXT)
        elif isinstance(item, lenient.Number):
            number = real(item)
            if number is None:
                return
            value, kind = int(np.float64(number).view(np.int64)), ARG_FLOAT
        else:
            text = text_of(item)
            if text is None:
                return
            value, kind = self.texts[text], ARG_TEXT
        self.rows["args"].append((row, self.texts[key], kind, value))

    # --- linking ----------------------------------------------------------------------------------------

    def columns(self, pid: str | None = None) -> Columns:
        """Everything read so far, in order and linked; of several processes, one."""
        from foretrace.ingest.kineto_link import link

        left_out, found = self._processes(pid)
        if found:
            self.repair("other-processes", None, int(left_out.sum()))
        groups, origin_ns = link(self, left_out)
        return Columns(
            groups=groups,
            names=[lenient.clean(name) for name in self.names],
            texts=[lenient.clean(text) for text in self.texts],
            lanes=[(clean(process), clean(thread)) for process, thread in self.lane_keys],
            header=self.header,
            origin_ns=origin_ns,
            counts=dict(self.counts),
            repairs=self.repairs | self._unclean(),
            processes=tuple(process.to_dict() for process in found),
        )

    def _processes(self, pid: str | None) -> tuple[Array, tuple[Process, ...]]:
        """Which rows are of processes that are not read, and what processes there are, where there are several."""
        core = np.array(self.core, np.int64).reshape(-1, 5)
        start, dur, _, lane, kind = (core[:, column] for column in range(5))
        correlation = np.full(len(core), NULL_U64, np.uint64)
        for value in (RUNTIME, KERNEL, COPY, SET, SYNC):
            correlation[kind == value] = self.field(value, "correlation", NULL_U64, np.dtype("u8"))
        lanes = [(clean(process), clean(thread)) for process, thread in self.lane_keys]
        rows = Rows(lanes, lane, kind, start, dur, correlation)
        return choose(rows, pid) if rows.several() else (np.zeros(len(core), bool), ())

    def _unclean(self) -> dict[str, tuple[int, int | None]]:
        count = sum(lenient.clean(text) != text for texts in (self.names, self.texts) for text in texts)
        return {"not-utf8": (count, None)} if count else {}

    def field(self, kind: int, column: str, null: int | float, dtype: np.dtype[Any]) -> Array:
        """One argument of all events of a kind, in file order."""
        values = (fields.get(column) for fields in self.fields[kind])
        return np.array([null if value is None else value for value in values], dtype)


def _bytes_in(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _skip_commas(text: str, at: int) -> int:
    at = lenient.space(text, at)
    while text[at : at + 1] == ",":
        at = lenient.space(text, at + 1)
    return at


def _name(event: dict[str, Any]) -> str:
    name = event.get("name")
    return name if is_text(name) else ""


def scan(chunks: Iterable[bytes], *, pid: str | None = None) -> Columns:
    """A Kineto file, read and linked; of several processes in it, the asked one or that with most device work."""
    scanner = Scanner()
    scanner.scan(b"".join(chunks))
    return scanner.columns(pid)


__all__ = ["GROUPS", "NULL_I32", "Scanner", "scan"]
