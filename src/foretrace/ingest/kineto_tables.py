"""Columns become the frames of a Trace. What is done here is done once per distinct text, not per event."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.ingest.columns import (
    ARG_FLOAT, ARG_INT, ARG_TEXT, NULL_I32, NULL_I64, NULL_U32, NULL_U64, Array, Columns,
)  # fmt: skip
from foretrace.ingest.kineto_python import MODULE_PREFIX

# "/path/model.py(123): forward"
_FRAME = re.compile(r"(?P<file>.*)\((?P<line>[0-9]{1,9})\): (?P<function>.*)", re.DOTALL)
_COPY = re.compile(r"(?:Memcpy|Copy)(?:Async)? ?(?P<direction>[HDP]to[HDP])")
# c10::DeviceType, in its own order
_DEVICE_TYPES = {
    0: "cpu",
    1: "cuda",
    6: "hip",
    9: "xla",
    12: "xpu",
    15: "meta",
    16: "hpu",
    20: "privateuseone",
}
# Bytes of an element, by the names that torch's collectives write
_ELEMENT_BYTES = {
    "Float": 4, "Double": 8, "Half": 2, "BFloat16": 2, "Int": 4, "Long": 8, "Byte": 1, "Char": 1, "Bool": 1,
    "Short": 2, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
_NULLS: dict[str, int] = {"u4": NULL_U32, "u8": NULL_U64, "i4": NULL_I32, "i8": NULL_I64}


def build(columns: Columns) -> dict[str, pl.DataFrame]:
    """All tables of schema.TABLES. Takes the arrays out of `columns` as it goes, so that they can be freed."""
    groups = columns.groups
    names = pl.Series(columns.names, dtype=schema.TEXT)
    texts = pl.Series(columns.texts, dtype=schema.TEXT)
    tracks = _tracks(columns)
    counters, tracks = _counters(columns, names, texts, tracks)
    stacks, extra = _stacks(columns)
    args = _args(groups.pop("args"), texts)
    frames = {
        "spans": _spans(groups.pop("spans"), names),
        "tracks": tracks,
        "kernels": _kernels(groups.pop("kernels")),
        "ops": _ops(groups.pop("ops"), texts, extra),
        "python": _python(groups.pop("python")),
        "counters": counters,
        "allocations": _allocations(groups.pop("memory")),
        "stacks": stacks,
        "modules": _modules(groups.pop("modules"), columns.names),
        "collectives": _collectives(args),
        "args": args,
    }
    frames["copies"] = _copies(groups.pop("copies"), frames["spans"])
    return {
        table: frames[table].select(
            pl.col(name).cast(dtype) for name, dtype in schema.polars_schema(table).items()
        )
        for table in schema.TABLES
    }


def _nullable(values: Array) -> pl.Series:
    """A series with real nulls where the array has its type's NULL."""
    series = pl.Series(values)
    if values.dtype.kind == "f":
        return series.fill_nan(None)
    null = values == _NULLS[values.dtype.str[1:]]
    return series.set(pl.Series(null), None) if null.any() else series


def _coded(texts: pl.Series, codes: Array) -> pl.Series:
    """The text behind each code."""
    return texts.gather(_nullable(codes))


def _spans(group: dict[str, Array], names: pl.Series) -> pl.DataFrame:
    kinds = pl.Series(schema.KINDS, dtype=schema.KIND)
    count = len(group["start"])
    return pl.DataFrame(
        {
            "id": np.arange(count, dtype=np.uint32),
            "track_id": group.pop("track"),
            "kind": kinds.gather(group.pop("kind")),
            "name": names.gather(group.pop("name")),
            "start_ns": group.pop("start"),
            "dur_ns": _nullable(group.pop("dur")),
            "depth": group.pop("depth"),
            "parent_id": _nullable(group.pop("parent")),
            "launch_id": _nullable(group.pop("launch")),
            "op_id": _nullable(group.pop("op")),
            "step": _nullable(group.pop("step")),
        }
    )


def _kernels(group: dict[str, Array]) -> pl.DataFrame:
    renamed = {"span": "span_id", "shared": "shared_bytes", "occupancy": "occupancy_pct", "graph": "graph_id",
               "graph_node": "graph_node_id"}  # fmt: skip
    return pl.DataFrame({renamed.get(name, name): _nullable(values) for name, values in group.items()})


def _ops(group: dict[str, Array], texts: pl.Series, call_stacks: dict[int, int]) -> pl.DataFrame:
    stack = _nullable(group["stack"])
    if call_stacks:
        recorded = _nullable(group["call_stack"]).replace_strict(
            list(call_stacks), list(call_stacks.values()), default=None, return_dtype=pl.UInt32
        )
        stack = pl.select(pl.coalesce(stack, recorded)).to_series()
    return pl.DataFrame(
        {
            "span_id": group["span"],
            **{name: _coded(texts, group[name]) for name in ("shapes", "dtypes", "strides", "inputs")},
            "sequence": _nullable(group["sequence"]),
            "forward_thread": _nullable(group["forward_thread"]),
            "forward_id": _nullable(group["forward"]),
            "flops": _nullable(group["flops"]),
            "stack_id": stack,
            "module_id": _nullable(group["module"]),
        }
    )


def _python(group: dict[str, Array]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "span_id": group["span"],
            "caller_id": _nullable(group["caller"]),
            "stack_id": _nullable(group["stack"]),
            "module_id": _nullable(group["module"]),
        }
    )


def _copies(group: dict[str, Array], spans: pl.DataFrame) -> pl.DataFrame:
    rows = spans.select("name", "kind")[group["span"]]
    described = {name: _copy(name) for name in rows["name"].unique().cast(pl.String).to_list()}
    is_set = rows["kind"] == "set"
    named = rows["name"].cast(pl.String)
    direction = named.replace_strict(
        {name: each[0] for name, each in described.items()}, return_dtype=pl.String
    )
    pageable = named.replace_strict(
        {name: each[1] for name, each in described.items()}, return_dtype=pl.Boolean
    )
    return pl.DataFrame(
        {
            "span_id": group["span"],
            "size_bytes": _nullable(group["size"]),
            "direction": direction.set(is_set, "set"),
            "pageable": pageable.set(is_set, None),
        }
    )


def _copy(name: str) -> tuple[str | None, bool | None]:
    """Direction, and whether the host's side is pageable, from "Memcpy HtoD (Pageable -> Device)"."""
    match = _COPY.match(name)
    direction = match["direction"] if match else None
    pageable = ("Pageable" in name) if "(" in name and direction in ("HtoD", "DtoH") else None
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


def _counters(
    columns: Columns, names: pl.Series, texts: pl.Series, tracks: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Recorded counters and the allocators' totals, series by series; each allocator gets a track."""
    group, memory = columns.groups.pop("counters"), columns.groups["memory"]
    devices, which = _memory_devices(memory)
    columns_of = (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"))
    known = [np.flatnonzero(memory[column] != NULL_I64) for column, _ in columns_of]
    rows = np.concatenate(known)
    series = np.repeat(np.arange(len(known)), [len(each) for each in known])
    order = np.lexsort((series, which[rows]))  # stable: within a series, in order of time
    rows, series = rows[order], series[order]
    used, place = np.unique(which[rows], return_inverse=True)
    label = pl.Series([name for _, name in columns_of], dtype=schema.TEXT)
    totals = pl.DataFrame(
        {
            "track_id": (tracks.height + place).astype(np.uint32),
            "at_ns": memory["at"][rows],
            "name": label.gather(series),
            "value": np.where(series == 0, memory["allocated"][rows], memory["reserved"][rows]).astype(
                np.float64
            ),
        }
    )
    labels = [_memory_track(tracks.height + index, devices[code]) for index, code in enumerate(used)]
    tracks = pl.concat((tracks, pl.DataFrame(labels, schema=schema.polars_schema("tracks"))))
    return pl.concat((_recorded_counters(group, names, texts), totals)), tracks


def _memory_track(track: int, device: str) -> dict[str, Any]:
    index = device.partition(":")[2]
    return {"id": track, "device": int(index) if index else None, "name": f"{device} memory"}


def _recorded_counters(group: dict[str, Array], names: pl.Series, texts: pl.Series) -> pl.DataFrame:
    """Counter events; one that holds several values is told apart by their keys."""
    name = names.gather(group["name"]).cast(pl.String)
    key = texts.gather(group["key"]).cast(pl.String)
    several = pl.struct("name", "key").n_unique() > pl.col("name").n_unique()
    frame = pl.DataFrame({"track_id": group["track"], "at_ns": group["at"], "name": name, "key": key,
                          "value": group["value"]})  # fmt: skip
    label = pl.when(several).then(pl.col("name") + " " + pl.col("key")).otherwise("name")
    return frame.select("track_id", "at_ns", label.cast(schema.TEXT).alias("name"), "value")


def _memory_devices(memory: dict[str, Array]) -> tuple[list[str], Array]:
    """The names of the allocators' devices (cpu, cuda:0, ...), and for each event which one it is of."""
    pairs = (
        memory["device_type"] * np.int64(1 << 32) + memory["device_id"]
    )  # a null wraps round, alike each time
    _, first, which = np.unique(pairs, return_index=True, return_inverse=True)
    names = [_device_name(int(memory["device_type"][at]), int(memory["device_id"][at])) for at in first]
    return names, which


def _device_name(kind: int, index: int) -> str:
    if kind == NULL_I64:
        return "unknown"
    name = _DEVICE_TYPES.get(kind, f"device type {kind}")
    return name if name == "cpu" or index == NULL_I64 or not 0 <= index < 2**31 else f"{name}:{index}"


def _allocations(memory: dict[str, Array]) -> pl.DataFrame:
    """Allocations paired with the next free of the same address on the same device."""
    devices, device_code = _memory_devices(memory)
    at, size, address = memory["at"], memory["bytes"], memory["address"]
    position = np.arange(len(at))
    order = np.lexsort((position, address, device_code))
    begins, ends = order[:-1], order[1:]
    paired = (
        (address[begins] == address[ends]) & (address[begins] != NULL_U64)
        & (device_code[begins] == device_code[ends]) & (size[begins] > 0) & (size[ends] < 0)
    )  # fmt: skip
    freed_at = np.full(len(at), NULL_I64, np.int64)
    freed_at[begins[paired]] = at[ends[paired]]
    matched_free = np.zeros(len(at), bool)
    matched_free[ends[paired]] = True
    is_alloc = size > 0
    rows = np.flatnonzero(is_alloc | (~matched_free & (size < 0)))
    alloc = is_alloc[rows]
    known = address[rows] != NULL_U64
    return pl.DataFrame(
        {
            "start_ns": _nullable(np.where(alloc, at[rows], NULL_I64)),
            "end_ns": _nullable(np.where(alloc, freed_at[rows], at[rows])),
            "size_bytes": np.abs(size[rows]),
            "device": pl.Series(devices, dtype=pl.String).gather(device_code[rows]),
            "address": _nullable(np.where(known, address[rows], np.uint64(NULL_U64))),
            "op_id": _nullable(np.where(alloc, memory["op"][rows], np.uint32(NULL_U32))),
            "stack_id": _nullable(np.where(alloc, memory["stack"][rows], np.uint32(NULL_U32))),
            "module_id": _nullable(np.where(alloc, memory["module"][rows], np.uint32(NULL_U32))),
        }
    )


def _frame(name: str) -> tuple[str | None, int | None, str]:
    match = _FRAME.fullmatch(name)
    if not match:
        return None, None, name
    line = int(match["line"])
    return match["file"], line if line < 2**31 else None, match["function"]


def _stacks(columns: Columns) -> tuple[pl.DataFrame, dict[int, int]]:
    """The frames table, and for each recorded "Call stack" text its stack."""
    group = columns.groups.pop("stacks")
    parents: list[int | None] = _nullable(group["parent"]).to_list()
    frames = [_frame(columns.names[code]) for code in group["name"]]
    nodes: dict[tuple[int | None, tuple[str | None, int | None, str]], int] = {}
    of_text: dict[int, int] = {}
    for code in np.unique(columns.groups["ops"]["call_stack"]).tolist():
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
            "line": [frame[1] for frame in frames],
            "function": [frame[2] for frame in frames],
        },
        schema=schema.polars_schema("stacks"),
    )
    return table, of_text


def _modules(group: dict[str, Array], names: Sequence[str]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "id": range(len(group["name"])),
            "parent_id": _nullable(group["parent"]),
            "name": [names[code].removeprefix(MODULE_PREFIX) for code in group["name"]],
        },
        schema=schema.polars_schema("modules"),
    )


def _args(group: dict[str, Array], texts: pl.Series) -> pl.DataFrame:
    kind, value = group["type"], group["value"]
    as_text = np.where(kind == ARG_TEXT, value, NULL_U32).astype(np.uint32)
    frame = pl.DataFrame(
        {
            "span_id": group["span"],
            "key": texts.gather(group["key"]),
            "int": _nullable(np.where(kind == ARG_INT, value, NULL_I64)),
            "float": _nullable(np.where(kind == ARG_FLOAT, value.view(np.float64), np.nan)),
            "text": _coded(texts, as_text),
        }
    )
    return frame.unique(("span_id", "key"), keep="last", maintain_order=True)


def _collectives(args: pl.DataFrame) -> pl.DataFrame:
    """One row per span with a "Collective name"."""
    spans = args.filter(pl.col("key") == "Collective name").select("span_id", "text")
    mine = args.join(spans.select("span_id"), on="span_id", how="semi")

    def column(keys: Sequence[str], value: pl.Expr, name: str) -> pl.DataFrame:
        rows = mine.filter(pl.col("key").cast(pl.String).is_in(keys)).select("span_id", value.alias(name))
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
