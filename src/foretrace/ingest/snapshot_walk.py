"""From the root of a snapshot's pickle to the rows of its tables: which records stand where."""

from __future__ import annotations

from typing import Any

from foretrace.ingest.snapshot_columns import (
    BYTES_PER_ROW,
    DEEPEST_SETTINGS,
    MOST_DEVICES,
    MOST_SETTINGS,
    ROWS_AT_LEAST,
    SnapshotColumns,
    SnapshotFault,
)  # fmt: skip
from foretrace.ingest.snapshot_records import Kind, Node, Records, Value, told
from foretrace.snapshot import HOST


class Walk:
    """The last step of the Python reader; `at` is the byte where the pickle ends."""

    def __init__(self, records: Records, at: int) -> None:
        self._records, self._at, self._count, self._settings = records, at, 0, 0
        self._texts = list(records.codes)

    def columns(self, root: Value) -> SnapshotColumns:
        """The columns; SnapshotFault if the root is no snapshot."""
        bare = isinstance(root, Node) and root.kind == Kind.LIST and bool(root.items)
        members = _members(root)
        if bare:
            members = {b"segments": root}  # as torch wrote it before 2.0
        elif b"segments" not in members and b"device_traces" not in members:
            raise self._fault("it holds neither segments nor device_traces, so it is no memory snapshot")
        self._segments(members.get(b"segments"), "segments", host=0)
        self._segments(members.get(b"host_segments"), "host_segments", host=1)
        self._traces(members.get(b"device_traces"), "device_traces")
        self._host_traces(members.get(b"host_traces"))
        for node in self._items(
            members.get(b"external_annotations"), "external_annotations", Kind.ANNOTATION
        ):
            self._add("annotation_rows", node.row)
        settings = self._plain(members.get(b"allocator_settings"), 0)
        return SnapshotColumns(
            self._texts, self._records.columns(), settings if isinstance(settings, dict) else {}, bare
        )

    def _fault(self, says: str) -> SnapshotFault:
        return SnapshotFault(says, self._at)

    def _add(self, group: str, *row: int) -> None:
        self._count += 1
        if self._count > ROWS_AT_LEAST + self._at // BYTES_PER_ROW:
            raise self._fault("it stands for more rows than a file of this size can hold")
        self._records.rows[group].append(row)

    def _list(self, value: Value, what: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, Node) or value.kind != Kind.LIST:
            raise self._fault(f"{what} is {told(value)}")
        return value.items

    def _items(self, value: Value, what: str, kind: Kind) -> list[Node]:
        items = self._list(value, what)
        for item in items:
            if not isinstance(item, Node) or item.kind != kind:
                raise self._fault(f"in {what} stands {told(item)}")
        return items

    def _segments(self, value: Value, what: str, *, host: int) -> None:
        for node in self._items(value, what, Kind.SEGMENT):
            segment = len(self._records.rows["segment_rows"])
            self._add("segment_rows", node.row, host)
            for block in self._items(self._records.blocks_of[node.row], "blocks", Kind.BLOCK):
                self._add("block_rows", block.row, segment)

    def _traces(self, value: Value, what: str) -> None:
        traces = self._list(value, what)
        if len(traces) > MOST_DEVICES:
            raise self._fault(f"{what} has {len(traces)} devices")
        for device, trace in enumerate(traces):
            for node in self._items(trace, what, Kind.EVENT):
                self._add("event_rows", node.row, device)

    def _host_traces(self, value: Value) -> None:
        """One history, or a list of them."""
        for item in self._list(value, "host_traces"):
            one = isinstance(item, Node) and item.kind == Kind.EVENT
            for node in [item] if one else self._items(item, "host_traces", Kind.EVENT):
                self._add("event_rows", node.row, HOST)

    def _plain(self, value: Value, depth: int) -> Any:
        """A setting as plain Python."""
        self._settings += 1
        if self._settings > MOST_SETTINGS or depth > DEEPEST_SETTINGS:
            raise self._fault("allocator_settings holds more than settings")
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if not isinstance(value, Node):
            huge = isinstance(value, int) and not -(2**63) <= value < 2**64
            return "a number of more than 64 bits" if huge else value
        if value.kind == Kind.DICT:
            return {
                key.decode("utf-8", "surrogateescape"): self._plain(item, depth + 1)
                for key, item in _members(value).items()
            }
        if value.kind == Kind.LIST:
            return [self._plain(item, depth + 1) for item in value.items]
        if value.kind == Kind.PAIR:
            return [int(part) for part in self._texts[value.row].split(b",")]
        return told(value)


def _members(value: Value) -> dict[bytes, Value]:
    if not isinstance(value, Node) or value.kind != Kind.DICT:
        return {}
    pairs = zip(value.items[::2], value.items[1::2], strict=True)
    return {key: item for key, item in pairs if isinstance(key, bytes)}
