"""Columns become the frames of a Trace. What is done here is done once per distinct text, not per event."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.ingest.columns import (
    ARG_FLOAT, ARG_INT, ARG_TEXT, NULL_I64, NULL_U32, Array, Columns, coded, is_nothing, nullable,
)  # fmt: skip
from foretrace.ingest.kineto_memory import MemoryEvents, allocation_table, counter_table
from foretrace.ingest.kineto_python import MODULE_PREFIX

_SIDE_BY_SIDE_FROM = 100_000  # spans: below, a second thread costs more than it saves
# "/path/model.py(123): forward"
_FRAME = re.compile(r"(?P<file>.*)\((?P<line>[0-9]{1,9})\): (?P<function>.*)", re.DOTALL)
_COPY = re.compile(r"(?:Memcpy|Copy)(?:Async)? ?(?P<direction>[HDP]to[HDP])")
_EITHER_MEMORY = re.compile(r"\(Host ->|-> Host\)")
# Bytes of an element, by the names that torch's collectives write
_ELEMENT_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1,
    "Short": 2, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip


def build(columns: Columns) -> dict[str, pl.DataFrame]:
    """All tables of schema.TABLES. Takes the arrays out of `columns` as it goes, so that they can be freed."""
    groups = columns.groups
    names = pl.Series(columns.names, dtype=schema.TEXT)
    texts = pl.Series(columns.texts, dtype=schema.TEXT)
    own_tracks = _tracks(columns)

    def of_memory() -> dict[str, pl.DataFrame]:
        events = MemoryEvents(groups.pop("memory"))
        counters, tracks = counter_table(events, groups.pop("counters"), names, texts, own_tracks)
        allocations = allocation_table(events)
        del events
        args = _args(groups.pop("args"), texts)
        return {
            "counters": counters,
            "tracks": tracks,
            "allocations": allocations,
            "args": args,
            "collectives": _collectives(args),
        }

    def of_spans() -> dict[str, pl.DataFrame]:
        stacks, extra = _stacks(columns, _running_at_start(groups["spans"], groups["python"]))
        return {
            "spans": _spans(groups.pop("spans"), names),
            "kernels": _kernels(groups.pop("kernels")),
            "ops": _ops(groups.pop("ops"), texts, extra),
            "python": _python(groups.pop("python")),
            "stacks": stacks,
            "modules": _modules(groups.pop("modules"), columns.names),
        }

    frames = _both(of_memory, of_spans, len(groups["spans"]["start"]))
    # Last, when what the others were made of is gone.
    numbers = pl.int_range(frames["spans"].height, dtype=pl.UInt32, eager=True)
    frames["spans"] = frames["spans"].insert_column(0, numbers.alias("id"))
    frames["copies"] = _copies(groups.pop("copies"), frames["spans"])
    frames["callers"] = pl.DataFrame(
        schema=schema.polars_schema("callers")
    )  # the recorder's, which the reader adds
    return {
        table: frames[table].select(
            pl.col(name).cast(dtype) for name, dtype in schema.polars_schema(table).items()
        )
        for table in schema.TABLES
    }


def _both(
    first: Callable[[], dict[str, pl.DataFrame]], second: Callable[[], dict[str, pl.DataFrame]], rows: int
) -> dict[str, pl.DataFrame]:
    """What both give, side by side where there is enough to do: what they call lets other threads run."""
    if rows < _SIDE_BY_SIDE_FROM:
        return {**first(), **second()}
    found: list[dict[str, pl.DataFrame] | BaseException] = []

    def guarded() -> None:
        try:
            found.append(first())
        except BaseException as error:  # raised again in the first thread
            found.append(error)

    beside = threading.Thread(target=guarded, name="foretrace-tables")
    beside.start()
    try:
        others = second()
    finally:
        beside.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return {**found[0], **others}


def _spans(group: dict[str, Array], names: pl.Series) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "track_id": nullable(group.pop("track")),
            "kind": nullable(group.pop("kind")).cat.to(schema.KIND),
            "name": coded(names, group.pop("name")),
            "start_ns": nullable(group.pop("start")),
            "dur_ns": nullable(group.pop("dur")),
            "depth": nullable(group.pop("depth")),
            "parent_id": nullable(group.pop("parent")),
            "launch_id": nullable(group.pop("launch")),
            "op_id": nullable(group.pop("op")),
            "step": nullable(group.pop("step")),
        }
    )


def _kernels(group: dict[str, Array]) -> pl.DataFrame:
    renamed = {"span": "span_id", "shared": "shared_bytes", "occupancy": "occupancy_pct", "graph": "graph_id",
               "graph_node": "graph_node_id"}  # fmt: skip
    return pl.DataFrame({renamed.get(name, name): nullable(group.pop(name)) for name in list(group)})


def _ops(group: dict[str, Array], texts: pl.Series, call_stacks: dict[int, int]) -> pl.DataFrame:
    stack = nullable(group.pop("stack"))
    if call_stacks:
        recorded = nullable(group.pop("call_stack")).replace_strict(
            list(call_stacks), list(call_stacks.values()), default=None, return_dtype=pl.UInt32
        )
        stack = pl.select(pl.coalesce(stack, recorded)).to_series()
    return pl.DataFrame(
        {
            "span_id": nullable(group.pop("span")),
            **{name: coded(texts, group.pop(name)) for name in ("shapes", "dtypes", "strides", "inputs")},
            "sequence": nullable(group.pop("sequence")),
            "forward_thread": nullable(group.pop("forward_thread")),
            "forward_id": nullable(group.pop("forward")),
            "flops": nullable(group.pop("flops")),
            "stack_id": stack,
            "module_id": nullable(group.pop("module")),
        }
    )


def _python(group: dict[str, Array]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "span_id": nullable(group["span"]),
            "caller_id": nullable(group["caller"]),
            "stack_id": nullable(group["stack"]),
            "module_id": nullable(group["module"]),
        }
    )


def _copies(group: dict[str, Array], spans: pl.DataFrame) -> pl.DataFrame:
    rows = group["span"]
    codes, which = np.unique(spans["name"].to_physical().to_numpy()[rows], return_inverse=True)
    told = [_copy(name) for name in pl.Series(codes).cat.to(schema.TEXT).to_list()]
    # One direction for each name, and those of sets behind them.
    directions = pl.Series([*(direction for direction, _ in told), "set"], dtype=pl.String)
    pageable = pl.Series([*(pageable for _, pageable in told), None], dtype=pl.Boolean)
    is_set = spans["kind"].to_physical().to_numpy()[rows] == schema.KINDS.index("set")
    place = pl.Series(np.where(is_set, len(told), which).astype(np.uint32))
    return pl.DataFrame(
        {
            "span_id": rows,
            "size_bytes": nullable(group["size"]),
            "direction": directions.gather(place),
            "pageable": pageable.gather(place),
        }
    )


def _copy(name: str) -> tuple[str | None, bool | None]:
    """Direction, and whether the host's side is pageable, from "Memcpy HtoD (Pageable -> Device)".

    ROCm writes "Host -> Device" of either, so that is not known there.
    """
    match = _COPY.match(name)
    direction = match["direction"] if match else None
    told = "(" in name and direction in ("HtoD", "DtoH") and not _EITHER_MEMORY.search(name)
    pageable = ("Pageable" in name) if told else None
    return (direction if direction in schema.DIRECTIONS else None), pageable


def _tracks(columns: Columns) -> pl.DataFrame:
    labels = _labels(columns)
    lanes = columns.groups.pop("lanes")
    rows = []
    for lane, (process, thread) in enumerate(columns.lanes):
        device, stream = int(lanes["device"][lane]), int(lanes["stream"][lane])
        on_device = device != NULL_I64 and abs(device) < 2**31
        rows.append(
            {
                "id": lane,
                "rank": None,
                "process": None if on_device else _thread_id(process),
                "device": device if on_device else None,
                "stream": stream if on_device and stream != NULL_I64 else None,
                "thread": None if on_device else _thread_id(thread),
                "name": _track_name(process, thread, device if on_device else None, stream, labels),
            }
        )
    return pl.DataFrame(rows, schema=schema.polars_schema("tracks"))


def _thread_id(value: int | str) -> int | None:
    return value if isinstance(value, int) and -(2**63) < value < 2**63 else None


def _labels(columns: Columns) -> dict[tuple[str, Any, Any], str]:
    """(metadata kind, process, thread) -> text; a process's label has no thread. The first one counts."""
    group = columns.groups.pop("labels")
    labels: dict[tuple[str, Any, Any], str] = {}
    for lane, name, text in zip(group["track"], group["name"], group["text"], strict=True):
        process, thread = columns.lanes[lane]
        kind = columns.names[name]
        labels.setdefault(
            (kind, process, None if kind.startswith("process") else thread), columns.texts[text]
        )
    return labels


def _track_name(
    process: int | str,
    thread: int | str,
    device: int | None,
    stream: int,
    labels: dict[tuple[str, Any, Any], str],
) -> str:
    recorded = labels.get(("thread_name", process, thread), "").strip()
    if device is not None:
        return f"GPU {device} {recorded or f'stream {stream if stream != NULL_I64 else thread}'}"
    return recorded or (f"thread {thread}" if isinstance(thread, int) else thread or "unnamed")


def _frame(name: str) -> tuple[str | None, int | None, str]:
    match = _FRAME.fullmatch(name)
    if not match:
        return None, None, name
    line = int(match["line"])
    return match["file"], line if line < 2**31 else None, match["function"]


def _running_at_start(spans: dict[str, Array], python: dict[str, Array]) -> Array:
    """The stacks of functions that ran when recording began, one within the other: the first calls of each thread.

    Of those torch writes the line of that moment, of all others the line at which the call began. A function that is called for the
    first time right then may be among them, and costs a line that would have been known.
    """
    rows = python["span"].astype(np.int64)
    track, start = spans["track"][rows], spans["start"][rows]
    end = start + np.where(spans["dur"][rows] == NULL_I64, 0, spans["dur"][rows])
    # Spans are in order of start, the longer first: only tracks are left to sort by, which are quick as small numbers.
    track = track.astype(np.min_scalar_type(int(track.max(initial=0))))
    order = np.argsort(track, kind="stable")
    running = np.zeros(len(rows), bool)
    for first in np.flatnonzero(np.diff(track[order].astype(np.int64), prepend=-1)):
        at = int(first)
        running[order[at]] = True
        while at + 1 < len(order) and track[order[at + 1]] == track[order[at]]:
            if start[order[at + 1]] >= end[order[at]]:
                break
            at += 1
            running[order[at]] = True
    at_start = np.unique(python["stack"][running])
    entered = np.isin(at_start, python["stack"][~running])
    return at_start[~entered]


def _stacks(columns: Columns, at_start: Array) -> tuple[pl.DataFrame, dict[int, int]]:
    """The frames table, and for each recorded "Call stack" text its stack."""
    group = columns.groups.pop("stacks")
    parents: list[int | None] = nullable(group["parent"]).to_list()
    frames = [_frame(columns.names[code]) for code in group["name"]]
    entered, stale = len(frames), set(at_start.tolist())
    called = {group["name"][row] for row in range(entered) if row not in stale}
    stale -= {row for row in stale if group["name"][row] in called}  # the function does begin there
    nodes: dict[tuple[int | None, tuple[str | None, int | None, str]], int] = {}
    of_text: dict[int, int] = {}
    recorded = columns.groups["ops"]["call_stack"]
    for code in [] if is_nothing(recorded) else np.unique(recorded).tolist():
        if code == NULL_U32 or not columns.texts[code]:
            continue
        node: int | None = None
        for part in reversed(columns.texts[code].split(";")):  # recorded innermost first
            key = (node, _frame(part.strip()))
            if key not in nodes:
                nodes[key] = len(frames)
                parents.append(node)
                frames.append(key[1])
            node = nodes[key]
        if node is not None:
            of_text[code] = node
    table = pl.DataFrame(
        {
            "id": range(len(frames)),
            "parent_id": parents,
            "file": [frame[0] for frame in frames],
            "line": [None if row in stale else frame[1] for row, frame in enumerate(frames)],
            "line_by": [
                None if frame[1] is None or row in stale else "entry" if row < entered else "ran"
                for row, frame in enumerate(frames)
            ],
            "start_line": [frame[1] if row in stale else None for row, frame in enumerate(frames)],
            "function": [frame[2] for frame in frames],
        },
        schema=schema.polars_schema("stacks"),
    )
    return table, of_text


def _modules(group: dict[str, Array], names: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": range(len(group["name"])),
            "parent_id": nullable(group["parent"]),
            "name": [names[code].removeprefix(MODULE_PREFIX) for code in group["name"]],
        },
        schema=schema.polars_schema("modules"),
    )


def _args(group: dict[str, Array], texts: pl.Series) -> pl.DataFrame:
    kind, value = group["type"], group["value"]
    places = group["span"].astype(np.uint64) << np.uint64(32) | group["key"]
    in_order = bool((places[1:] > places[:-1]).all())
    repeated = not in_order and len(np.unique(places)) < len(places)
    as_text = np.where(kind == ARG_TEXT, value, NULL_U32).astype(np.uint32)
    frame = pl.DataFrame(
        {
            "span_id": group["span"],
            "key": coded(texts, group.pop("key")),
            "int": nullable(np.where(kind == ARG_INT, value, NULL_I64)),
            "float": nullable(np.where(kind == ARG_FLOAT, value.view(np.float64), np.nan)),
            "text": coded(texts, as_text),
        }
    )
    return frame.unique(("span_id", "key"), keep="last", maintain_order=True) if repeated else frame


def _collectives(args: pl.DataFrame) -> pl.DataFrame:
    """One row per span with a "Collective name"."""
    if not (args["key"] == "Collective name").any():
        return pl.DataFrame(schema=schema.polars_schema("collectives"))
    spans = args.filter(pl.col("key") == "Collective name").select("span_id", "text")
    arguments = args.join(spans.select("span_id"), on="span_id", how="semi")

    def column(keys: Sequence[str], value: pl.Expr, name: str) -> pl.DataFrame:
        rows = arguments.filter(pl.col("key").cast(pl.String).is_in(keys)).select(
            "span_id", value.alias(name)
        )
        return rows.unique("span_id", keep="last", maintain_order=True)

    whole, text = pl.col("int"), pl.col("text").cast(pl.String)
    either = pl.coalesce(text, whole.cast(pl.String))
    number = pl.coalesce(whole, text.cast(pl.Int64, strict=False))
    frame = spans.select("span_id", pl.col("text").cast(pl.String).alias("collective")).drop_nulls(
        "collective"
    )
    for name, keys, value in (
        ("group", ("Process Group Name", "Process Group ID"), either), ("group_size", ("Group size",), number),
        ("ranks", ("Process Group Ranks",), text), ("dtype", ("dtype",), text),
        ("in_count", ("In msg nelems",), number), ("out_count", ("Out msg nelems",), number),
        ("seq", ("Seq",), number), ("comms_id", ("Comms Id",), either),
    ):  # fmt: skip
        frame = frame.join(column(keys, value, name), on="span_id", how="left", maintain_order="left")
    element = pl.col("dtype").replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    return frame.with_columns(size_bytes=pl.col("in_count") * element)
