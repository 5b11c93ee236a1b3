"""The frames of a Snapshot from the columns that either reader filled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from foretrace.ingest import lenient
from foretrace.ingest.columns import NULL_U64, Array, nullable
from foretrace.ingest.secret_texts import mask_texts
from foretrace.ingest.snapshot_columns import SnapshotColumns
from foretrace.snapshot import ACTIONS, ANNOTATIONS, BLOCKS, EVENTS, FRAMES, HOST, SEGMENTS, STACKS, STATES
from foretrace.units import counted, visible

# These say where in memory something happened: without an address they say nothing.
_PLACED = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
)
_LISTED = 5


class Tables:
    """The frames, and what had to be left out; columns are let go as they are used."""

    def __init__(self, columns: SnapshotColumns) -> None:
        self.notes: list[str] = []
        self._groups = columns.groups
        decoded = [lenient.clean(text.decode("utf-8", "surrogateescape")) for text in columns.texts]
        if masked := mask_texts(decoded):
            self.notes.append(f"{counted(masked, 'text')} held a secret, which shows as <left out>")
        self._texts = pl.Series("texts", decoded, dtype=pl.String)
        self.segments = self._segments()
        self.blocks = self._blocks()
        self.events = self._events(decoded)
        self.annotations = self._annotations()
        self.frames = self._frames()
        self.stacks = self._stacks()

    def _text(self, codes: Array) -> pl.Series:
        """The texts of codes."""
        return self._texts.gather(nullable(codes))

    def _taken(self, group: str, rows: Array) -> dict[str, Array]:
        """The columns of a group in the order of the rows; as they are where that is their order."""
        columns = self._groups.pop(group)
        first = next(iter(columns.values()))
        if len(rows) == len(first) and bool((rows == np.arange(len(rows), dtype=rows.dtype)).all()):
            return columns
        return {name: columns.pop(name)[rows] for name in list(columns)}

    def _segments(self) -> pl.DataFrame:
        order = self._groups.pop("segment_rows")
        raw = self._taken("segments", order["row"])
        device = np.where(order["host"] == 1, HOST, raw["device"])
        return _frame(SEGMENTS, {
            "device": device, "address": raw["address"], "total_bytes": raw["total"],
            "allocated_bytes": nullable(raw["allocated"]), "active_bytes": nullable(raw["active"]),
            "requested_bytes": nullable(raw["requested"]), "stream": nullable(raw["stream"]), "kind": self._text(raw["kind"]),
            "pool": self._text(raw["pool"]), "expandable": raw["expandable"].astype(bool), "stack": raw["stack"],
        })  # fmt: skip

    def _blocks(self) -> pl.DataFrame:
        order = self._groups.pop("block_rows")
        raw = self._taken("blocks", order["row"])
        segment = order["segment"]
        device = self.segments["device"].to_numpy()[segment] if len(segment) else segment
        frame = _frame(BLOCKS, {
            "segment": segment, "device": device, "address": nullable(raw["address"]), "size_bytes": raw["size"],
            "requested_bytes": nullable(raw["requested"]), "state": _enum(raw["state"], STATES), "stack": raw["stack"],
        })  # fmt: skip
        if not frame["address"].null_count():
            return frame
        # As torch wrote them before 2.1: one behind the other.
        start = pl.lit(self.segments["address"]).gather(pl.col("segment"))
        before = pl.col("size_bytes").cum_sum().over("segment") - pl.col("size_bytes")
        return frame.with_columns(
            address=pl.coalesce("address", (start + before.cast(pl.UInt64)).cast(pl.UInt64))
        )

    def _events(self, texts: list[str]) -> pl.DataFrame:
        order = self._groups.pop("event_rows")
        raw = self._taken("events", order["row"])
        device = order["device"]
        number_of = {name: number for number, name in enumerate(ACTIONS)}
        known = np.array([number_of.get(text, len(ACTIONS)) for text in texts], np.uint8)
        action = known[raw["action"]]
        left_out = action == len(ACTIONS)
        if bool(left_out.any()):
            self._say_left_out(raw["action"][left_out], texts)
            raw = {name: raw.pop(name)[~left_out] for name in list(raw)}
            device, action = device[~left_out], action[~left_out]
        lost = (raw["address"] == NULL_U64) & np.isin(action, [number_of[name] for name in _PLACED])
        if bool(lost.any()):
            self.notes.append(f"left out: {counted(int(lost.sum()), 'event')} without an address")
            raw = {name: raw.pop(name)[~lost] for name in list(raw)}
            device, action = device[~lost], action[~lost]
        made: dict[str, Any] = {"device": device, "action": _enum(action, ACTIONS)}
        del raw["action"]
        for name, source in _EVENT_NUMBERS:
            made[name] = nullable(raw.pop(source)) if name != "stack" else pl.Series(raw.pop(source))
        for name, source in (("pool", "pool"), ("context", "context"), ("note", "note")):
            made[name] = self._text(raw.pop(source))
        return _frame(EVENTS, made)

    def _say_left_out(self, actions: Array, texts: list[str]) -> None:
        codes, counts = np.unique(actions, return_counts=True)
        names = ", ".join(visible(texts[code])[:40] for code in codes[:_LISTED])
        events = counted(int(counts.sum()), "event")
        self.notes.append(f"left out: {events} of an action that is not known ({names})")

    def _annotations(self) -> pl.DataFrame:
        raw = self._taken("annotations", self._groups.pop("annotation_rows")["row"])
        return _frame(ANNOTATIONS, {
            "device": raw["device"], "stage": self._text(raw["stage"]), "name": self._text(raw["name"]),
            "time_ns": nullable(raw["time"]),
        })  # fmt: skip

    def _frames(self) -> pl.DataFrame:
        raw = self._groups.pop("frames")
        made = {"file": self._text(raw["file"]), "line": raw["line"], "function": self._text(raw["name"])}
        return _frame(FRAMES, made)

    def _stacks(self) -> pl.DataFrame:
        ends = self._groups.pop("stacks")["end"].astype(np.int64)
        frame = self._groups.pop("stack_frames")["frame"]
        lengths = np.diff(ends, prepend=0)
        stack = np.repeat(np.arange(len(ends), dtype=np.int32), lengths)
        position = np.arange(len(frame), dtype=np.int64) - np.repeat(ends - lengths, lengths)
        return _frame(STACKS, {"stack": stack, "position": position, "frame": frame})


_EVENT_NUMBERS = (
    ("address", "address"), ("size_bytes", "size"), ("stream", "stream"), ("time_ns", "time"), ("stack", "stack"),
)  # fmt: skip


def _enum(numbers: Array, names: tuple[str, ...]) -> pl.Series:
    return pl.Series(numbers.astype(np.uint8)).cat.to(pl.Enum(names))


def _frame(types: Mapping[str, Any], made: dict[str, Any]) -> pl.DataFrame:
    """A frame with its columns in the order and the types of their declaration."""
    columns = []
    for name, dtype in types.items():
        values = made.pop(name)
        series = values if isinstance(values, pl.Series) else pl.Series(values)
        columns.append((series if series.dtype == dtype else series.cast(dtype)).alias(name))
    return pl.DataFrame(columns)
