"""The reader of memory snapshots in Python: a pickle machine with the operations of plain data, and nothing that can run code."""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

from foretrace.ingest.snapshot_columns import (
    BYTES_PER_TEXT,
    BYTES_PER_VALUE,
    HELD_AT_LEAST,
    LONGEST_NUMBER,
    LONGEST_TEXT,
    STORE_COST,
    TEXTS_AT_LEAST,
    SnapshotColumns,
    SnapshotFault,
)  # fmt: skip
from foretrace.ingest.snapshot_records import NO_ITEMS, Kind, Node, Records, Value, kind_of
from foretrace.ingest.snapshot_walk import Walk

_NAMES = {ord(operation.code): operation.name for operation in pickletools.opcodes}
_INTEGER, _LONG = re.compile(rb"-?[0-9]{1,1000}"), re.compile(rb"-?[0-9]{1,1000}L?")
_REAL = re.compile(rb"-?(?:[0-9]{1,400}(?:\.[0-9]{0,400})?(?:e[-+]?[0-9]{1,5})?|inf|nan)")
_ESCAPE = re.compile(rb"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})")
_NEWEST = 5  # protocol
BREAKS_OFF = "the pickle breaks off: what it says next is missing"


class _Absent:
    """What the memo holds where nothing was put."""


_ABSENT = _Absent()


def scan(pieces: Iterator[bytes]) -> SnapshotColumns:
    """The columns of a snapshot whose pickle comes in pieces; SnapshotFault says why there are none."""
    return Machine(pieces).run()


class Machine:
    """The stack, the memo and the place in the file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._buffer, self._place, self._before = pieces, b"", 0, 0
        self.at = 0  # of the operation that runs
        self.stack: list[Value] = []
        self.marks: list[int] = []
        self.memo: list[Value | _Absent] = []
        self._memorised = 0
        self._texts: dict[bytes, bytes] = {}  # one object for every text, however often it is written
        self.records = Records()
        self._nodes, self._frame = 0, (0, 0)  # the last frame: where it began, where it should end
        self._operations = self._table()

    def run(self) -> SnapshotColumns:
        """Runs until STOP."""
        while True:
            self.at = self._before + self._place
            code = self._take(1)[0]
            if code == ord("."):
                return self._stop()
            operation = self._operations.get(code)
            if operation is None:
                name = _NAMES.get(code)
                says = f"the operation {name}" if name else f"the byte 0x{code:02x}, which is no operation,"
                raise self.fault(f"{says} is none of a snapshot; nothing was loaded")
            operation()
            held = len(self.stack) + len(self.marks) + self._memorised + self._nodes
            if held > HELD_AT_LEAST + self.at // BYTES_PER_VALUE:
                raise self.fault("it holds more values than a snapshot of this size")

    def fault(self, says: str) -> SnapshotFault:
        """What is wrong with the operation that runs."""
        return SnapshotFault(says, self.at)

    def _take(self, count: int) -> bytes:
        """The next bytes."""
        end = self._place + count
        while end > len(self._buffer):
            piece = next(self._pieces, None)
            if piece is None:
                raise SnapshotFault(BREAKS_OFF, self._before + len(self._buffer))
            self._before += self._place
            self._buffer = self._buffer[self._place :] + piece
            self._place, end = 0, count
        taken = self._buffer[self._place : end]
        self._place = end
        return taken

    def _line(self) -> bytes:
        """The bytes up to the end of a line, without it."""
        length, searched = self._buffer.find(b"\n", self._place), 0
        while length < 0:
            searched = len(self._buffer) - self._place
            if searched > LONGEST_TEXT:
                raise self.fault("a line is longer than 16 MiB")
            self._take(searched + 1)
            self._place -= searched + 1
            length = self._buffer.find(b"\n", self._place + searched)
        line = self._take(length - self._place + 1)[:-1]
        if len(line) > LONGEST_TEXT:
            raise self.fault("a line is longer than 16 MiB")
        return line

    def _number(self, form: str, count: int) -> Any:
        return struct.unpack(form, self._take(count))[0]

    # --- values ----------------------------------------------------------------------------------------------------

    def _table(self) -> dict[int, Callable[[], None]]:
        push = self.stack.append
        simple: dict[str, Callable[[], None]] = {
            "(": lambda: self.marks.append(len(self.stack)),
            "N": lambda: push(None),
            "\x88": lambda: push(True),
            "\x89": lambda: push(False),
            "J": lambda: push(self._number("<i", 4)),
            "K": lambda: push(self._take(1)[0]),
            "M": lambda: push(self._number("<H", 2)),
            "G": lambda: push(float(self._number(">d", 8))),
            "I": self._int,
            "L": self._long,
            "F": self._float,
            "\x8a": lambda: self._long_of(self._take(1)[0]),
            "\x8b": lambda: self._long_of(self._number("<i", 4)),
            "V": self._unicode,
            "\x8c": lambda: self._text(self._take(1)[0]),
            "X": lambda: self._text(self._number("<I", 4)),
            "\x8d": lambda: self._text(self._number("<Q", 8)),
            "}": lambda: push(self._node(Kind.DICT, [])),
            "]": lambda: push(self._node(Kind.LIST, [])),
            ")": lambda: self._tuple(0),
            "\x85": lambda: self._tuple(1),
            "\x86": lambda: self._tuple(2),
            "\x87": lambda: self._tuple(3),
            "t": lambda: self._tuple(len(self.stack) - self._mark()),
            "l": self._list,
            "d": self._dict,
            "a": lambda: self._append(self._top(2) + 1),
            "e": lambda: self._append(self._mark()),
            "s": lambda: self._set_items(self._top(3) + 1),
            "u": lambda: self._set_items(self._mark()),
            "p": lambda: self._put(self._index()),
            "q": lambda: self._put(self._take(1)[0]),
            "r": lambda: self._put(self._number("<I", 4)),
            "\x94": lambda: self._put(self._memorised),
            "g": lambda: self._get(self._index()),
            "h": lambda: self._get(self._take(1)[0]),
            "j": lambda: self._get(self._number("<I", 4)),
            "\x80": self._protocol,
            "\x95": self._frame_begins,
        }
        return {ord(code): operation for code, operation in simple.items()}

    def _protocol(self) -> None:
        protocol = self._take(1)[0]
        if protocol > _NEWEST:
            raise self.fault(f"protocol {protocol} of pickle is not known")

    def _frame_begins(self) -> None:
        length = self._number("<Q", 8)
        self._frame = (self.at, self._before + self._place + length)

    def _stop(self) -> SnapshotColumns:
        began, ends = self._frame
        if ends > self._before + self._place:
            raise SnapshotFault("a frame claims more bytes than there are", began)
        if self.marks or len(self.stack) != 1:
            raise self.fault(f"{len(self.stack)} values are left where one should be")
        return Walk(self.records, self.at).columns(self._complete(self.stack[0]))

    def _int(self) -> None:
        line = self._line()
        if line in (b"00", b"01"):
            self.stack.append(line == b"01")
        elif _INTEGER.fullmatch(line):
            self.stack.append(int(line))
        else:
            raise self.fault("a number cannot be read")

    def _long(self) -> None:
        line = self._line()
        if not _LONG.fullmatch(line):
            raise self.fault("a number cannot be read")
        self.stack.append(int(line.removesuffix(b"L")))

    def _float(self) -> None:
        line = self._line()
        if not _REAL.fullmatch(line):
            raise self.fault("a number cannot be read")
        self.stack.append(float(line))

    def _long_of(self, length: int) -> None:
        if not 0 <= length <= LONGEST_NUMBER:
            raise self.fault(f"a number claims {length} bytes")
        self.stack.append(int.from_bytes(self._take(length), "little", signed=True))

    def _unicode(self) -> None:
        """A line of Latin-1 with escapes, as UTF-8."""

        def plain(match: re.Match[bytes]) -> str:
            return chr(int(match[1] or match[2], 16))

        line, parts, done = self._line(), [], 0
        for match in _ESCAPE.finditer(line):
            if match[2] and int(match[2], 16) > 0x10FFFF:
                raise self.fault("a text cannot be read")
            parts += [line[done : match.start()].decode("latin-1"), plain(match)]
            done = match.end()
        text = "".join([*parts, line[done:].decode("latin-1")]).encode("utf-8", "surrogatepass")
        self._add_text(text)

    def _text(self, length: int) -> None:
        if length > LONGEST_TEXT:
            raise self.fault(f"a text claims {length} bytes; the longest that is read has {LONGEST_TEXT}")
        text = self._take(length)
        self._add_text(text)

    def _add_text(self, text: bytes) -> None:
        self.records.code(text)
        self.stack.append(self._texts.setdefault(text, text))
        if len(self.records.codes) > TEXTS_AT_LEAST + self.at // BYTES_PER_TEXT:
            raise self.fault("it holds more texts than a snapshot of this size")

    # --- containers --------------------------------------------------------------------------------------------------

    def _node(self, kind: Kind, items: list[Any]) -> Node:
        node = Node(kind)
        self._nodes += 1
        self._extend(node, items)
        return node

    def _extend(self, node: Node, items: list[Value]) -> None:
        if items:
            self._nodes += len(items) + (0 if node.items else STORE_COST)
            if node.items:
                node.items += items
            else:
                node.items = items

    def _mark(self) -> int:
        """Where the values since the last mark begin."""
        if not self.marks:
            raise self.fault("a mark is missing")
        return self.marks.pop()

    def _top(self, count: int) -> int:
        """Where the top `count` values begin."""
        start = len(self.stack) - count
        if start < (self.marks[-1] if self.marks else 0):
            raise self.fault("a value is missing")
        return start

    def _popped(self, start: int) -> list[Value]:
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _under(self, start: int, kind: Kind) -> Node:
        """The list or dictionary that the values from `start` on go into."""
        node = self.stack[start - 1] if start > (self.marks[-1] if self.marks else 0) else None
        name = "list" if kind == Kind.LIST else "dictionary"
        if not isinstance(node, Node) or (not node.done and node.kind != kind):
            raise self.fault(f"there is no {name} to add to")
        if node.done:
            raise self.fault("it adds to what is already complete")
        return node

    def _tuple(self, count: int) -> None:
        node = self._node(Kind.LIST, self._popped(self._top(count)))
        self.stack.append(self._complete(node))

    def _list(self) -> None:
        node = self._node(Kind.LIST, self._popped(self._mark()))
        for item in node.items:
            self._complete(item)
        self.stack.append(node)

    def _dict(self) -> None:
        start = self._mark()
        self.stack.insert(start, self._node(Kind.DICT, []))
        self._set_items(start + 1)

    def _append(self, start: int) -> None:
        node = self._under(start, Kind.LIST)
        items = self._popped(start)
        self._complete_all(items, node)
        self._extend(node, items)

    def _set_items(self, start: int) -> None:
        node = self._under(start, Kind.DICT)
        items = self._popped(start)
        if len(items) % 2:
            raise self.fault("a key has no value")
        self._complete_all(items, node)
        self._extend(node, items)
        # One operation sets up to 1,000 items: a record is then whole, and its dictionary need not be kept.
        if len(items) > 2 and kind_of(_fields(node)) != Kind.DICT:
            self._complete(node)

    def _complete_all(self, items: list[Value], into: Node) -> None:
        for item in items:
            self._complete(item)
        if into.done:
            raise self.fault("it puts a value into itself")

    def _complete(self, value: Value) -> Value:
        """What goes into another value is as it will be; what it is can be told."""
        if not isinstance(value, Node) or value.done:
            return value
        if value.kind == Kind.DICT:
            fields = _fields(value)
            value.kind = kind_of(fields)
            if value.kind != Kind.DICT:
                value.row = self.records.make(value.kind, fields, self.at)
                self._drop(value)
        else:
            for item in value.items:
                self._complete(item)
            self._complete_list(value)
        value.done = True
        return value

    def _complete_list(self, node: Node) -> None:
        items = node.items
        if items and all(isinstance(item, Node) and item.kind == Kind.FRAME for item in items):
            node.kind, node.row = Kind.STACK, self.records.stack([item.row for item in items])
            self._drop(node)
        elif len(items) == 2 and all(type(item) is int and abs(item) < 2**55 for item in items):
            node.kind, node.row = Kind.PAIR, self.records.code(b"%d,%d" % tuple(items))
            self._drop(node)

    def _drop(self, node: Node) -> None:
        if node.items:
            self._nodes -= len(node.items) + STORE_COST
            node.items = NO_ITEMS

    # --- memo --------------------------------------------------------------------------------------------------------

    def _index(self) -> int:
        line = self._line()
        if not re.fullmatch(rb"[0-9]{1,18}", line):
            raise self.fault("a number of the memo cannot be read")
        return int(line)

    def _put(self, index: int) -> None:
        if index > self._memorised + 1:  # picklers count on from 0, the oldest from 1
            raise self.fault(f"the memo's number {index} is more than there can be")
        value = self.stack[self._top(1)]
        while len(self.memo) <= index:
            self.memo.append(_ABSENT)
        self._memorised += self.memo[index] is _ABSENT
        self.memo[index] = value

    def _get(self, index: int) -> None:
        value = self.memo[index] if index < len(self.memo) else _ABSENT
        if isinstance(value, _Absent):
            raise self.fault(f"the memo has no number {index}")
        self.stack.append(value)


def _fields(node: Node) -> dict[bytes, Value]:
    pairs = zip(node.items[::2], node.items[1::2], strict=True)
    return {key: value for key, value in pairs if isinstance(key, bytes)}
