"""The records of a memory snapshot, made of the dictionaries of its pickle: the half of the Python reader that knows torch."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np

from foretrace.ingest.columns import NULL_I64, NULL_U32, NULL_U64
from foretrace.ingest.snapshot_columns import GROUPS, KEYS, LATEST_US, SnapshotFault
from foretrace.snapshot import NO_STACK

I64_MAX, U64_MAX, I32_MAX = 2**63 - 1, 2**64 - 1, 2**31 - 1
_STATES = {b"active_allocated": 0, b"active_pending_free": 1, b"active_awaiting_free": 1, b"inactive": 2}


class Kind(IntEnum):
    """What a list or dictionary turned out to be."""

    LIST, DICT, PAIR, FRAME, STACK, EVENT, BLOCK, SEGMENT, ANNOTATION, HISTORY = range(10)


_NAMES = (
    "a list", "a dictionary", "a pair of numbers", "a frame", "a list of frames", "an event", "a block", "a segment",
    "an annotation", "a history",
)  # fmt: skip


NO_ITEMS: list[Any] = []  # of every node without items, never added to: most have none in the end


class Node:
    """A list, tuple or dictionary; once it is `done`, what it stands for is its `kind` and `row`."""

    __slots__ = ("done", "items", "kind", "row")

    def __init__(self, kind: Kind) -> None:
        self.kind, self.items, self.done, self.row = kind, NO_ITEMS, False, 0


Value = bytes | int | bool | float | Node | None


def told(value: Value) -> str:
    """What a value is, in words."""
    if isinstance(value, Node):
        return _NAMES[value.kind]
    if isinstance(value, bool):
        return "true or false"
    names = {bytes: "a text", int: "a number", float: "a fraction"}
    return names.get(type(value), "None")


def kind_of(keys: dict[bytes, Value]) -> Kind:
    """What the keys of a dictionary make of it."""
    for key, kind in _TELLING:
        if key in keys:
            return kind
    return Kind.DICT


_TELLING = (
    (b"action", Kind.EVENT), (b"filename", Kind.FRAME), (b"total_size", Kind.SEGMENT), (b"blocks", Kind.SEGMENT),
    (b"real_size", Kind.HISTORY), (b"state", Kind.BLOCK), (b"time_us", Kind.ANNOTATION),
)  # fmt: skip


class Fields:
    """The fields of one record, checked as they are asked for."""

    def __init__(self, what: str, values: dict[bytes, Value], at: int) -> None:
        self._what, self._values, self._at = what, values, at

    def fault(self, key: bytes, says: str) -> SnapshotFault:
        """What is wrong with a field."""
        return SnapshotFault(f"the field {key.decode()} of {self._what} is {says}", self._at)

    def value(self, key: bytes) -> Value:
        """The value as it is; None where it is missing."""
        return self._values.get(key)

    def number(self, key: bytes, low: int, high: int, null: int | None = None) -> int:
        """A whole number; `null` where it is missing, if it may be."""
        value = self._values.get(key)
        if value is None:
            if null is None:
                raise self.fault(key, "missing")
            return null
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fault(key, told(value))
        if not low <= value <= high:
            raise self.fault(key, "negative" if value < 0 <= low else "out of range")
        return value

    def size(self, key: bytes, null: int | None = None) -> int:
        """A number of bytes."""
        return self.number(key, 0, I64_MAX, null)

    def time(self) -> int:
        """The time in nanoseconds."""
        time = self.number(b"time_us", -LATEST_US, LATEST_US, NULL_I64)
        return time if time == NULL_I64 else time * 1000

    def line(self) -> int:
        """The line of a frame; 0 where it has none: torch writes that of Python 3.13 as 2^64 - 1."""
        value = self._values.get(b"line")
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.fault(b"line", told(value))
        return value if value is not None and 0 <= value <= I32_MAX else 0

    def text(self, key: bytes) -> bytes:
        """A text that must be there."""
        value = self._values.get(key)
        if not isinstance(value, bytes):
            raise self.fault(key, "missing" if value is None else told(value))
        return value

    def stack(self, key: bytes = b"frames") -> int:
        """The number of a stack."""
        value = self._values.get(key)
        if isinstance(value, Node):
            if value.kind == Kind.STACK:
                return value.row
            if value.kind == Kind.LIST and not value.items:
                return NO_STACK
        elif value is None:
            return NO_STACK
        raise self.fault(key, told(value))

    def pool(self, key: bytes) -> int:
        """The text of a pool's two numbers."""
        value = self._values.get(key)
        if value is None:
            return NULL_U32
        if isinstance(value, Node) and value.kind == Kind.PAIR:
            return value.row
        raise self.fault(key, told(value))


class Records:
    """All records of a snapshot, as growing columns."""

    def __init__(self) -> None:
        self.codes: dict[bytes, int] = {}
        for key in KEYS:
            self.code(key.encode())
        self.rows: dict[str, list[tuple[int, ...]]] = {group: [] for group in GROUPS}
        self.blocks_of: list[Node | None] = []  # of each segment
        self.histories: list[tuple[int, int]] = []  # bytes asked for, stack
        self._frames: dict[tuple[int, ...], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}
        self._makers: dict[Kind, Callable[[dict[bytes, Value], int], int]] = {
            Kind.EVENT: self._event, Kind.FRAME: self._frame, Kind.SEGMENT: self._segment, Kind.HISTORY: self._history,
            Kind.BLOCK: self._block, Kind.ANNOTATION: self._annotation,
        }  # fmt: skip

    def code(self, text: bytes) -> int:
        """The number of a text."""
        return self.codes.setdefault(text, len(self.codes))

    def optional(self, value: Value, *, nothing: bytes) -> int:
        """The number of a text; null where it is `nothing`, no text or missing."""
        return self.code(value) if isinstance(value, bytes) and value != nothing else NULL_U32

    def make(self, kind: Kind, values: dict[bytes, Value], at: int) -> int:
        """The number of the record that a dictionary stands for."""
        return self._makers[kind](values, at)

    def stack(self, frames: list[int]) -> int:
        """The number of a stack, innermost frame first."""
        key = tuple(frames)
        number = self._stacks.setdefault(key, len(self._stacks))
        if number == len(self.rows["stacks"]):
            self.rows["stack_frames"].extend((frame,) for frame in frames)
            self.rows["stacks"].append((len(self.rows["stack_frames"]),))
        return number

    def _add(self, group: str, *row: int) -> int:
        self.rows[group].append(row)
        return len(self.rows[group]) - 1

    def _frame(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("a frame", values, at)
        line = fields.line()
        row = (self.code(fields.text(b"filename")), line, self.code(fields.text(b"name")))
        number = self._frames.setdefault(row, len(self._frames))
        if number == len(self.rows["frames"]):
            self.rows["frames"].append(row)
        return number

    def _event(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("an event", values, at)
        action = fields.text(b"action")
        free = action == b"oom" and values.get(b"device_free") is not None
        return self._add(
            "events",
            self.code(action),
            fields.number(b"device_free" if free else b"addr", 0, U64_MAX, NULL_U64),
            fields.size(b"size"),
            fields.number(b"stream", -I64_MAX, I64_MAX, NULL_I64),
            fields.pool(b"pool_id"),
            fields.time(),
            fields.stack(),
            self.optional(values.get(b"compile_context"), nothing=b"N/A"),
            self.optional(values.get(b"user_metadata"), nothing=b""),
        )

    def _history(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("a history", values, at)
        self.histories.append((fields.size(b"real_size", NULL_I64), fields.stack()))
        return len(self.histories) - 1

    def _block(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("a block", values, at)
        address = fields.number(b"address", 0, U64_MAX, NULL_U64)
        size = fields.size(b"size")
        requested = fields.size(b"requested_size", NULL_I64)
        state = _STATES.get(fields.text(b"state"))
        if state is None:
            raise fields.fault(b"state", "none that is known")
        stack = fields.stack()
        history = values.get(b"history")  # of torch before 2.1, instead of `frames`
        if isinstance(history, Node) and history.kind == Kind.LIST and history.items:
            first = history.items[0]
            if isinstance(first, Node) and first.kind == Kind.HISTORY:
                asked, earlier = self.histories[first.row]
                requested = asked if requested == NULL_I64 else requested
                stack = earlier if stack == NO_STACK else stack
        return self._add("blocks", address, size, requested, state, stack)

    def _segment(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("a segment", values, at)
        blocks = values.get(b"blocks")
        if not (blocks is None or (isinstance(blocks, Node) and blocks.kind == Kind.LIST)):
            raise fields.fault(b"blocks", told(blocks))
        expandable = values.get(b"is_expandable")
        if not (expandable is None or isinstance(expandable, bool)):
            raise fields.fault(b"is_expandable", told(expandable))
        row = (
            fields.number(b"device", -1, I32_MAX, 0),
            fields.number(b"address", 0, U64_MAX),
            fields.size(b"total_size"),
            fields.size(b"allocated_size", NULL_I64),
            fields.size(b"active_size", NULL_I64),
            fields.size(b"requested_size", NULL_I64),
            fields.number(b"stream", -I64_MAX, I64_MAX, NULL_I64),
            self.optional(values.get(b"segment_type"), nothing=b""),
            fields.pool(b"segment_pool_id"),
            int(bool(expandable)),
            fields.stack(),
        )
        self.blocks_of.append(blocks)
        return self._add("segments", *row)

    def _annotation(self, values: dict[bytes, Value], at: int) -> int:
        fields = Fields("an annotation", values, at)
        device = fields.number(b"device", -1, I32_MAX, 0)
        stage, name = (self.optional(values.get(key), nothing=b"") for key in (b"stage", b"name"))
        return self._add("annotations", device, stage, name, fields.time())

    def columns(self) -> dict[str, dict[str, Any]]:
        """The columns, as arrays."""
        groups = {}
        for group, types in GROUPS.items():
            made = list(zip(*self.rows[group], strict=True)) or [()] * len(types)
            groups[group] = {
                name: np.array(made[at], dtype) for at, (name, dtype) in enumerate(types.items())
            }
        return groups
