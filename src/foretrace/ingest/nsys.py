"""Recordings of Nsight Systems: SQLite exports, and folders of Parquet or Arrow tables, as a Trace.

Schemas 2 and 3. NVTX ranges become annotations, those that torch writes operators (`torch_ranges`). Of several processes one is
read, as of Kineto's files. Environment variables that nsys stores are read into nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from foretrace import schema
from foretrace.errors import FormatError, UsageError
from foretrace.ingest import kineto, nsys_folder, nsys_frames, nsys_link, nsys_rows, step_marks
from foretrace.ingest.column_files import ColumnStore
from foretrace.ingest.columns import NULL_I64, Array
from foretrace.ingest.formats import Format
from foretrace.ingest.nsys_folder import TableFolder
from foretrace.ingest.nsys_rows import ACTIVITY, GRAPHS, Export, Part, Tables
from foretrace.ingest.processes import Process
from foretrace.ingest.secret_texts import mask_texts
from foretrace.ingest.source import Progress, Source
from foretrace.ingest.sqlite_tables import MAGIC, open_database
from foretrace.trace import Repair, Trace
from foretrace.units import visible

FORMAT = "nsys"
_LACKS = (
    "memory, stacks and modules; operators and shapes without `nsys profile --pytorch=autograd-shapes-nvtx`; kernels of CUDA graphs "
    "without --cuda-graph-trace=node"
)
FORMATS = (
    Format("Nsight Systems SQLite export", "*.sqlite, .gz, .zst, .zip", "nsys export --type sqlite REPORT", "all", _LACKS),
    Format("Nsight Systems tables", "a folder of *.parquet or *.arrow", "nsys export --type parquetdir REPORT, or arrowdir", "all", _LACKS),
)  # fmt: skip
_READ = (
    f"{ACTIVITY}RUNTIME",
    f"{ACTIVITY}KERNEL",
    f"{ACTIVITY}MEMCPY",
    f"{ACTIVITY}MEMSET",
    GRAPHS,
    "NVTX_EVENTS",
)
_MAJOR_VERSIONS = (2, 3)
_STEP = re.compile(r"ProfilerStep#([0-9]{1,9})")
_LISTED = 10
_MOST_DEVICES = 2**15
# Properties of a device as Kineto names them
_PROPERTIES = {
    "name": "name", "totalMemory": "totalGlobalMem", "smCount": "numSms", "computeMajor": "computeMajor",
    "computeMinor": "computeMinor", "maxThreadsPerBlock": "maxThreadsPerBlock", "maxRegistersPerBlock": "regsPerBlock",
    "threadsPerWarp": "warpSize", "maxShmemPerBlock": "sharedMemPerBlock", "maxRegistersPerSm": "regsPerMultiprocessor",
    "maxShmemPerBlockOptin": "sharedMemPerBlockOptin", "maxShmemPerSm": "sharedMemPerMultiprocessor",
}  # fmt: skip


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this, its table names included, may be an export of Nsight Systems."""
    tables = (b"StringIds", b"CUPTI_ACTIVITY_KIND_", b"NVTX_EVENTS")
    return head.startswith(MAGIC) and b"rocpd_" not in head and any(table in head for table in tables)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording in an SQLite export; `reader` names nothing here."""
    _no_reader(reader)
    with open_database(source) as database:
        facts = {"file_bytes": source.size, "compression": source.compression or None}
        return _read(database, source.path, pid, facts)


def parts(files: Sequence[Path]) -> tuple[Path, ...]:
    """The tables, Parquet or Arrow, that one export left among these files; none where there are several exports."""
    return nsys_folder.tables_among(files)


def read_parts(
    folder: Path, files: Sequence[Path], *, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording in the tables of a folder, Parquet or Arrow."""
    tables = TableFolder(folder.name, files)
    return _read(tables, folder, pid, {"file_bytes": tables.size_bytes, "compression": None})


def _no_reader(reader: str | None) -> None:
    if reader is not None:
        raise UsageError(f"no reader named {reader!r} for recordings of Nsight Systems: they have one")


def _read(tables: Tables, path: Path, pid: str | None, facts: dict[str, Any]) -> Trace:
    version = _checked(tables)
    store = ColumnStore()
    export = Export(tables, store)
    device = export.device_parts()
    processes = _by_device_time(device)
    chosen = _chosen(processes, pid, export)
    parts = [*export.host_parts(chosen), *(_owned(part, chosen, store) for part in device)]
    found = _processes(processes, export.host_counts, chosen)
    if pid is not None and not any(len(part) for part in parts):
        known = ", ".join(str(process.pid) for process in found[:_LISTED])
        raise UsageError(
            f"{path.name}: no process {visible(pid)} in it" + (f"; there are: {known}" if known else "")
        )
    others = sum(len(part) for part in device) - sum(len(part) for part in parts if part.process is not None)
    for part in parts:
        part.process = None  # known now, and large
    del device
    others += (
        sum(export.host_counts.values()) - export.host_counts.get(chosen or 0, 0) if chosen is not None else 0
    )
    spans = nsys_link.link(parts, store)
    repairs = {
        **export.repairs,
        "impossible-start": spans.left_out,
        "other-processes": others if len(found) > 1 else 0,
    }
    devices = _devices(tables)
    shapes = list(export.shapes.of)
    frames = nsys_frames.Frames(
        store, parts, spans, list(export.names.of), shapes, list(export.geometry.of), nsys_frames.track_table(list(export.tracks.of), _thread_names(export)),
        {device["id"]: device["numSms"] for device in devices if isinstance(device.get("numSms"), int) and device["numSms"] > 0},
    )  # fmt: skip
    meta = {
        **facts, **_clock(tables, spans.origin_ns), **version,
        "devices": devices, "distributed": None, "world_size": None, "header": {}, "windows": [], "window_end_ns": None,
        "recorded": ["record_shapes"] if shapes else [],
        "processes": [process.to_dict() for process in found] if len(found) > 1 else [],
        "events": frames["spans"].height + spans.left_out, "flows": 0, "skipped_events": 0, "lost_bytes": 0, "op_ids": 0, "op_id_range": 0,
        "masked_texts": frames.masked + mask_texts(shapes), "whole_graphs": export.whole_graphs,
        "steps": _profiler_steps(frames["spans"]),
    }  # fmt: skip
    meta["rank"], meta["rank_source"] = kineto.rank_of({}, path.name)
    told = tuple(
        Repair(code, kineto.REPAIRS[code], count) for code, count in sorted(repairs.items()) if count
    )
    return _settled(_Sparing(path, FORMAT, meta, told, frames.__getitem__, store=store))


def _checked(tables: Tables) -> dict[str, Any]:
    """What is told of the export's version; an error where it is not one that is read, or holds nothing of a program."""
    rows = tables.frame("META_DATA_EXPORT", {"name": pl.String, "value": pl.String}).drop_nulls()
    facts = dict(
        rows.filter(pl.col("name").is_in(("EXPORT_SCHEMA_VERSION", "EXPORT_PRODUCT_VERSION"))).iter_rows()
    )
    version = facts.get("EXPORT_SCHEMA_VERSION")
    if version is not None:
        major = version.split(".")[0]
        if not (major.isdecimal() and int(major) in _MAJOR_VERSIONS):
            raise FormatError(
                f"{tables.name}: an export of Nsight Systems with schema {visible(version[:20])}; Foretrace reads 2 and 3 "
                "(`nsys export` of another version writes them)"
            )
    if not any(tables.has(table) for table in _READ):
        raise FormatError(
            f"{tables.name}: an export of Nsight Systems without CUDA calls, kernels or NVTX ranges; record them with "
            "`nsys profile --trace cuda,nvtx`"
        )
    named = any(tables.has(table) for table in (f"{ACTIVITY}RUNTIME", f"{ACTIVITY}KERNEL"))
    if named and not tables.has("StringIds", "id", "value"):
        raise FormatError(
            f"{tables.name}: an export of Nsight Systems without its table StringIds, which holds the names; export it again "
            "without --tables"
        )
    return {"nsys_version": facts.get("EXPORT_PRODUCT_VERSION"), "nsys_schema": version}


def _by_device_time(parts: Sequence[Part]) -> dict[int, list[int]]:
    """Pieces of device work and their time, by process."""
    found: dict[int, list[int]] = {}
    for part in parts:
        if part.process is None:
            continue
        owner = np.where(part.process == NULL_I64, 0, nsys_rows.process_of(part.process))
        for process in np.unique(owner).tolist():
            mine = owner == process
            dur = part.dur[mine]
            total = found.setdefault(process, [0, 0])
            total[0] += int(mine.sum())
            total[1] += int(dur[dur != NULL_I64].sum())
    return found


def _chosen(processes: dict[int, list[int]], pid: str | None, export: Export) -> int | None:
    """The process to read: the asked one, else that with most device time; `None` for all, where none tells."""
    known = {process: facts for process, facts in processes.items() if process}
    if pid is not None:
        asked = [process for process in known if str(nsys_rows.process_number(process)) == pid]
        return asked[0] if asked else _on_host(export, pid)
    if known:
        return max(known, key=lambda process: (known[process][1], known[process][0], -process))
    return _on_host(export, None)


def _on_host(export: Export, pid: str | None) -> int | None:
    """The asked process, or the one with most calls and ranges; -1 where the asked one is not there."""
    counts: dict[int, int] = {}
    for table in (f"{ACTIVITY}RUNTIME", "NVTX_EVENTS"):
        for frame in export.tables.frames(table, {"globalTid": pl.Int64}):
            owner = nsys_rows.process_of(frame["globalTid"].drop_nulls().to_numpy())
            for process, count in zip(
                *(each.tolist() for each in np.unique(owner, return_counts=True)), strict=True
            ):
                counts[process] = counts.get(process, 0) + count
    if pid is not None:
        return next((process for process in counts if str(nsys_rows.process_number(process)) == pid), -1)
    return max(counts, key=lambda process: (counts[process], -process), default=None)


def _owned(part: Part, process: int | None, store: ColumnStore) -> Part:
    """The rows of one process, and those that name none."""
    if part.process is None or process is None:
        return part
    owner = np.where(part.process == NULL_I64, process, nsys_rows.process_of(part.process))
    rows = np.flatnonzero(owner == process).astype(np.uint32)
    if len(rows) == len(part):
        return part

    def cut(values: Array) -> Array:
        return store.gathered(values, rows)

    return Part(
        cut(part.start), cut(part.dur), cut(part.track), cut(part.name), cut(part.kind),
        None if part.correlation is None else cut(part.correlation), cut(part.process),
        {name: cut(values) for name, values in part.extra.items()},
    )  # fmt: skip


def _processes(device: dict[int, list[int]], host: dict[int, int], chosen: int | None) -> list[Process]:
    """The processes that called CUDA, marked ranges or ran device work, the one that is read first."""
    every = {process for process in {*device, *host} if process}
    order = sorted(
        every, key=lambda each: (each != chosen, -device.get(each, [0, 0])[1], -host.get(each, 0), each)
    )
    return [
        Process(
            nsys_rows.process_number(each), host.get(each, 0), device.get(each, [0, 0])[0], device.get(each, [0, 0])[1],
            each == chosen,
        )
        for each in order
    ]  # fmt: skip


def _devices(tables: Tables) -> list[dict[str, Any]]:
    columns = {
        name: pl.String if name == "name" else pl.Int64 for name in ("id", "maxWarpsPerSm", *_PROPERTIES)
    }
    devices: list[dict[str, Any]] = []
    for row in tables.frame("TARGET_INFO_GPU", columns).iter_rows(named=True):
        found = {name: row[recorded] for recorded, name in _PROPERTIES.items() if row[recorded] is not None}
        if row["maxWarpsPerSm"]:
            found["maxThreadsPerMultiprocessor"] = row["maxWarpsPerSm"] * (row["threadsPerWarp"] or 32)
        number = row["id"] if row["id"] is not None and 0 <= row["id"] < _MOST_DEVICES else len(devices)
        devices.append({"id": number, **found})
    return devices


def _thread_names(export: Export) -> dict[int, str]:
    rows = export.tables.frame("ThreadNames", {"globalTid": pl.Int64, "nameId": pl.Int64}).drop_nulls()
    named = {thread: export.text(name) for thread, name in rows.iter_rows()}
    names = list(named.values())
    mask_texts(names)
    return dict(zip(named, names, strict=True))


def _clock(tables: Tables, origin_ns: int) -> dict[str, int]:
    """When the recording began, by the system's clock where nsys noted it; times are since the profiler began."""
    types = {"utcEpochNs": pl.Int64, "systemClockNs": pl.Int64}
    for epoch, clock in tables.frame("TARGET_INFO_SESSION_START_TIME", types).iter_rows():
        if epoch is not None and 0 <= epoch < 2**62:
            base = epoch - (clock if clock is not None and 0 <= clock < 2**62 else 0)
            return {"base_ns": base, "epoch_ns": base + origin_ns}
    return {"base_ns": 0, "epoch_ns": origin_ns}


def _profiler_steps(spans: pl.DataFrame) -> list[list[int]]:
    """Marks that torch's profiler leaves as NVTX ranges too, where it ran beside nsys."""
    named = spans.select("kind", "name", "start_ns", "dur_ns")
    ranges = named.filter((pl.col("kind") == "annotation") & pl.col("dur_ns").is_not_null())
    marks = ranges.filter(pl.col("name").cast(pl.String).str.starts_with("ProfilerStep#"))
    found = []
    for name, start, dur in marks.select(pl.col("name").cast(pl.String), "start_ns", "dur_ns").iter_rows():
        match = _STEP.fullmatch(name)
        if match and int(match[1]) < 2**31:
            found.append([int(match[1]), start, start + dur])
    return found


@dataclass
class _Sparing(Trace):
    """A recording whose columns leave memory when a table is asked for again: between looks that have nothing in common."""

    store: ColumnStore = field(default_factory=ColumnStore, repr=False)

    def table(self, name: str, *, keep: bool = True) -> pl.DataFrame:
        """One table, whole."""
        self.store.release()
        return super().table(name, keep=keep)


def _settled(trace: _Sparing) -> Trace:
    """The recording with its steps, and spans in them; what was looked at for that does not stay in memory."""
    settled = step_marks.settled(_with_steps(trace))

    def load(table: str) -> pl.DataFrame:
        trace.store.release()
        frame = settled.table(table)
        trace.store.release()
        return frame

    return Trace(settled.path, settled.format, settled.meta, settled.repairs, load)


def _with_steps(trace: Trace) -> Trace:
    """The recording with its spans in the steps that torch's profiler marked, if any."""
    if not trace.steps:
        return trace
    spans = trace.spans.with_columns(step_marks.step_of(trace.spans, trace.steps)).select(
        *schema.TABLES["spans"]
    )

    def load(table: str) -> pl.DataFrame:
        return spans if table == "spans" else trace.table(table)

    return Trace(trace.path, trace.format, trace.meta, trace.repairs, load)
