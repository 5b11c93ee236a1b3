"""Exports of Nsight Systems, made by hand: from rows, or from the same Recording that a Kineto file is written from."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.builders import PROCESS, Recording

DEVICE = ("start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid")
GRID = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
# Columns that are read, of the tables that are; nsys 2023.4 (schema 3.7.2) has more.
COLUMNS: dict[str, tuple[str, ...]] = {
    "StringIds": ("id", "value"),
    "META_DATA_EXPORT": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
    "TARGET_INFO_GPU": ("id", "name", "totalMemory", "smCount", "computeMajor", "computeMinor"),
    "ThreadNames": ("nameId", "priority", "globalTid"),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (*DEVICE, "demangledName", "shortName", "registersPerThread", *GRID, "staticSharedMemory",
                                   "dynamicSharedMemory", "graphNodeId"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (*DEVICE, "bytes", "copyKind", "srcKind", "dstKind"),
    "CUPTI_ACTIVITY_KIND_MEMSET": (*DEVICE, "value", "bytes", "memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*DEVICE, "graphId", "graphExecId"),
    "NVTX_EVENTS": ("start", "end", "eventType", "text", "globalTid", "textId", "domainId"),
}  # fmt: skip
_DIRECTIONS = {"HtoD": 1, "DtoH": 2, "DtoD": 8}
_MEMORIES = {"Pageable": 0, "Pinned": 1, "Device": 2}


def process_id(process: int = PROCESS) -> int:
    return (1 << 48) | (process << 24)


def thread_id(thread: int, process: int = PROCESS) -> int:
    return process_id(process) | thread


class Export:
    """Rows of an export; `text` gives the id of a name."""

    def __init__(self, version: str | None = "3.7.2") -> None:
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self._texts: dict[str, int] = {}
        if version is not None:
            self.add("META_DATA_EXPORT", name="EXPORT_SCHEMA_VERSION", value=version)

    def add(self, table: str, **values: Any) -> Export:
        self.rows.setdefault(table, []).append(values)
        return self

    def text(self, text: str) -> int:
        if text not in self._texts:
            self._texts[text] = len(self._texts) + 1
            self.add("StringIds", id=self._texts[text], value=text)
        return self._texts[text]

    def gpu(self, **values: Any) -> Export:
        return self.add("TARGET_INFO_GPU", **values)

    def call(self, name: str, start: int, end: int, correlation: int, *, thread: int | None = None) -> Export:
        return self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=0, correlationId=correlation,
            globalTid=thread_id(PROCESS) if thread is None else thread, nameId=self.text(f"{name}_v7000"), returnValue=0,
        )  # fmt: skip

    def range(self, text: str, start: int, end: int, *, thread: int | None = None, kind: int = 59) -> Export:
        return self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=kind, text=text, domainId=0,
            globalTid=thread_id(PROCESS) if thread is None else thread,
        )  # fmt: skip

    def work(self, table: str, start: int, end: int, correlation: int, *, stream: int = 7, device: int = 0,
             process: int | None = None, **values: Any) -> Export:  # fmt: skip
        return self.add(
            f"CUPTI_ACTIVITY_KIND_{table}", start=start, end=end, deviceId=device, contextId=1, streamId=stream,
            correlationId=correlation, globalPid=process_id() if process is None else process, **values,
        )  # fmt: skip

    def kernel(self, name: str, start: int, end: int, correlation: int, **values: Any) -> Export:
        return self.work(
            "KERNEL", start, end, correlation, demangledName=self.text(name), shortName=self.text(name.split("<")[0]), **values
        )  # fmt: skip

    def write(self, path: Path, *, columns: Mapping[str, tuple[str, ...]] = COLUMNS) -> Path:
        """The export as an SQLite file with the tables that have rows."""
        path.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as database, database:
            for setting in ("journal_mode=off", "synchronous=off"):  # nobody waits for the disk
                database.execute(f"pragma {setting}")
            for table, rows in self.rows.items():
                names = columns.get(table, tuple(rows[0]))
                database.execute(
                    f"create table {table} ({', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)})"
                )
                marks = ", ".join("?" * len(names))
                database.executemany(
                    f"insert into {table} values ({marks})",
                    ([row.get(name) for name in names] for row in rows),
                )
        return path


def of_recording(recording: Recording) -> Export:
    """What Nsight Systems would have exported of the same spans, torch's operators marked by emit_nvtx."""
    export = Export()
    for device in recording.header.get("deviceProperties", ()):
        export.gpu(
            id=device["id"], name=device["name"], smCount=device.get("numSms"), totalMemory=device.get("totalGlobalMem"),
            computeMajor=device.get("computeMajor"), computeMinor=device.get("computeMinor"),
        )  # fmt: skip
    for number, event in enumerate(recording.events):
        _add(export, event, number)
    return export


def _add(export: Export, event: dict[str, Any], number: int) -> None:
    start, args = _ns(event["ts"]), event.get("args", {})
    end = start + _ns(event["dur"])
    category, name = event["cat"], event["name"]
    if category in ("cpu_op", "user_annotation"):
        text = name if category == "user_annotation" else _operator(name, args, number)
        export.range(text, start, end, thread=thread_id(event["tid"]))
    elif category == "cuda_runtime":
        export.call(name, start, end, args.get("correlation", 0), thread=thread_id(event["tid"]))
    else:
        _add_work(export, category, name, start, end, args)


def _add_work(export: Export, category: str, name: str, start: int, end: int, args: dict[str, Any]) -> None:
    where = {"stream": args["stream"], "device": args["device"]}
    correlation = args.get("correlation", 0)
    if category == "kernel":
        sizes = dict(
            zip(GRID, (*args.get("grid", (None,) * 3), *args.get("block", (None,) * 3)), strict=True)
        )
        shared = args.get("shared memory")
        export.kernel(
            name, start, end, correlation, **where, **sizes, registersPerThread=args.get("registers per thread"),
            staticSharedMemory=shared, dynamicSharedMemory=None if shared is None else 0,
        )  # fmt: skip
    elif category == "gpu_memcpy":
        match = re.fullmatch(r"Memcpy (\w+) \((\w+) -> (\w+)\)", name)
        assert match, name
        export.work(
            "MEMCPY", start, end, correlation, **where, bytes=args.get("bytes"), copyKind=_DIRECTIONS[match[1]],
            srcKind=_MEMORIES[match[2]], dstKind=_MEMORIES[match[3]],
        )  # fmt: skip
    else:
        export.work("MEMSET", start, end, correlation, **where, bytes=args.get("bytes"), value=0, memKind=2)


def _operator(name: str, args: dict[str, Any], number: int) -> str:
    sequence, dims = args.get("Sequence number"), args.get("Input Dims")
    text = name if sequence is None else f"{name}, seq = {sequence}"
    text += f", op_id = {number + 1}"
    return text if dims is None else f"{text}, sizes = {dims}"


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)
