"""rocpd: the SQLite database that rocprofv3 writes by default, and rocprof-sys too.

Its tables carry the id of the recording in their names (`rocpd_region_0001...`), and merged databases hold several sets; ids
are unique within one `guid` only, so every join is on both. The tables themselves are read, not the views over them: what a
view does is up to whoever made the file. The environment of the process, which is stored too, is never read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import polars as pl

from foretrace.errors import FormatError
from foretrace.ingest import rocprof_rows
from foretrace.ingest.formats import Format
from foretrace.ingest.source import Progress, Source
from foretrace.ingest.span_tables import ARGS, HOST, Recorded, to_trace, whole
from foretrace.ingest.sqlite_tables import MAGIC, Database, open_database
from foretrace.trace import Trace

FORMATS = (
    Format(
        "rocpd database",
        "*_results.db, .gz",
        "rocprofv3 --sys-trace",
        "timeline",
        "torch's operators and shapes; what was not traced, such as HIP calls without --hip-trace",
    ),
)
_VERSIONS = ("3", "4")  # of the schema, by its first number: 4 adds indexes and columns
_UUID = r"(?:_[0-9A-Fa-f_]+)?"
_INT, _TEXT, _REAL = pl.Int64, pl.String, pl.Float64
_OF_RECORDING = ("guid", "id")
_SPAN = {"id": _INT, "guid": _TEXT, "pid": _INT, "tid": _INT, "start": _INT, "end": _INT, "event_id": _INT}


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this, with the names of its tables after it, is such a database."""
    return (
        head.startswith(MAGIC)
        and re.search(rb"rocpd_(?:kernel_dispatch|metadata|info_agent|region)", head) is not None
    )


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording as a Trace; `reader` is for formats with several."""
    with open_database(source) as database:
        tables = _Tables(database)
        _check_version(tables)
        devices, device_of = _agents(tables)
        kernels, args = rocprof_rows.kernels(_kernels(tables, device_of), devices)
        copies = rocprof_rows.copies(_copies(tables, device_of))
        host = _calls(tables)
        counters = _counters(tables)
    recorded = Recorded(
        source.path, "rocpd", host, pl.concat([kernels, copies]), pl.concat([args.select(*ARGS), counters]), devices,
        {"compression": source.compression or None},
    )  # fmt: skip
    return to_trace(recorded, pid=pid, file_bytes=source.size)


class _Tables:
    """The database's tables under their plain names."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.first_row = 0

    def get(self, name: str, types: Mapping[str, Any]) -> pl.DataFrame:
        """All tables of this name as one frame, with the guid that they are of; empty where there is none."""
        pattern = re.compile(rf"{name}{_UUID}", re.IGNORECASE)
        real = [
            table
            for table in self.database.columns
            if pattern.fullmatch(table) and table not in self.database.views
        ]
        found = [self.database.frame(table, types) for table in sorted(real)]
        return pl.concat([pl.DataFrame(schema=dict(types)), *found])

    def numbered(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The frame with row numbers that no other frame has."""
        made = frame.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64) + self.first_row)
        self.first_row += frame.height
        return made

    def with_names(self, frame: pl.DataFrame, table: str, column: str, **wanted: str) -> pl.DataFrame:
        """The frame with columns of another table, which its `column` names by id."""
        types = {"id": _INT, "guid": _TEXT, **{name: _TYPES.get(name, _INT) for name in wanted.values()}}
        other = self.get(table, types).unique(_OF_RECORDING, keep="first")
        renamed = other.select(
            "guid", pl.col("id").alias(column), *(pl.col(name).alias(new) for new, name in wanted.items())
        )
        return frame.join(renamed, on=["guid", column], how="left", nulls_equal=True, maintain_order="left")


_TYPES = {
    "string": _TEXT,
    "display_name": _TEXT,
    "kernel_name": _TEXT,
    "name": _TEXT,
    "type": _TEXT,
    "extdata": _TEXT,
}


def _check_version(tables: _Tables) -> None:
    metadata = tables.get("rocpd_metadata", {"tag": _TEXT, "value": _TEXT})
    versions = metadata.filter(pl.col("tag") == "schema_version")["value"].drop_nulls().unique().to_list()
    unknown = [version for version in versions if version.strip().partition(".")[0] not in _VERSIONS]
    if unknown:
        raise FormatError(
            f"{tables.database.name}: rocpd schema version {unknown[0][:20]} is not known here, versions "
            f"{' and '.join(_VERSIONS)} are; write the CSVs of it: rocpd convert -i FILE --output-format csv"
        )
    kernels = tables.get("rocpd_kernel_dispatch", {"id": _INT})
    if kernels.is_empty() and tables.get("rocpd_region", {"id": _INT}).is_empty():
        raise FormatError(
            f"{tables.database.name}: a rocpd database without kernels and regions; record with rocprofv3 --sys-trace"
        )


def _agents(tables: _Tables) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """Properties of the GPUs, and for each agent the GPU's index; null for a CPU."""
    types = {
        "id": _INT, "guid": _TEXT, "type": _TEXT, "absolute_index": _INT, "type_index": _INT, "name": _TEXT,
        "model_name": _TEXT, "product_name": _TEXT, "extdata": _TEXT,
    }  # fmt: skip
    agents = tables.get("rocpd_info_agent", types)
    devices: dict[int, dict[str, Any]] = {}
    rows = []
    for agent in agents.iter_rows(named=True):
        device = None
        if str(agent["type"]).upper() == "GPU":
            device = agent["type_index"] if agent["type_index"] is not None else agent["absolute_index"]
        if device is not None and not 0 <= device < 2**31:
            device = None
        rows.append({"guid": agent["guid"], "agent_id": agent["id"], "device": device})
        if device is not None and device not in devices:
            devices[device] = rocprof_rows.gpu(
                device, {**_facts(agent["extdata"]), **{k: v for k, v in agent.items() if v}}
            )
    schema = {"guid": _TEXT, "agent_id": _INT, "device": _INT}
    return list(devices.values()), pl.DataFrame(rows, schema=schema).unique(
        ("guid", "agent_id"), keep="first"
    )


def _facts(extdata: str | None) -> dict[str, Any]:
    """What an agent's `extdata` holds beside its columns."""
    try:
        found = json.loads(extdata or "{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    banks = found.get("mem_banks")
    sizes = (
        [whole(bank.get("size_in_bytes")) or 0 for bank in banks if isinstance(bank, dict)]
        if isinstance(banks, list)
        else []
    )
    return {**found, "memory_bytes": sum(sizes) or None}


def _kernels(tables: _Tables, device_of: pl.DataFrame) -> pl.DataFrame:
    axes = [f"{what}_size_{axis}" for what in ("grid", "workgroup") for axis in "xyz"]
    types = {
        **_SPAN, "agent_id": _INT, "kernel_id": _INT, "queue_id": _INT, "stream_id": _INT, "private_segment_size": _INT,
        "group_segment_size": _INT, "graph_exec_id": _INT, "graph_node_id": _INT, **dict.fromkeys(axes, _INT),
    }  # fmt: skip
    rows = tables.numbered(tables.get("rocpd_kernel_dispatch", types))
    rows = rows.join(device_of, on=["guid", "agent_id"], how="left", nulls_equal=True, maintain_order="left")
    rows = tables.with_names(
        rows, "rocpd_info_kernel_symbol", "kernel_id", display_name="display_name", kernel_name="kernel_name",
        vgpr="arch_vgpr_count", accum_vgpr="accum_vgpr_count", sgpr="sgpr_count",
    )  # fmt: skip
    rows = _linked(tables, rows)
    name = pl.coalesce("display_name", "kernel_name", pl.format("kernel {}", "kernel_id"), pl.lit("kernel"))
    return rows.select(
        "row", "device", "correlation", "vgpr", "accum_vgpr", "sgpr", "graph_node_id", process="process_number",
        start_ns="start", end_ns="end", name=name.str.strip_suffix(".kd"),
        # The default stream is recorded as 0; a recording without streams has queues.
        stream=pl.coalesce("stream_id", "queue_id"), shared_bytes="group_segment_size",
        scratch_bytes="private_segment_size", graph_id="graph_exec_id",
        **{f"items_{axis}": f"grid_size_{axis}" for axis in "xyz"},
        **{f"block_{axis}": f"workgroup_size_{axis}" for axis in "xyz"},
    ).select(pl.col(column).cast(dtype) for column, dtype in rocprof_rows.KERNEL.items())  # fmt: skip


def _copies(tables: _Tables, device_of: pl.DataFrame) -> pl.DataFrame:
    types = {
        **_SPAN, "name_id": _INT, "dst_agent_id": _INT, "src_agent_id": _INT, "size": _INT, "stream_id": _INT, "queue_id": _INT,
    }  # fmt: skip
    rows = tables.numbered(tables.get("rocpd_memory_copy", types))
    for side in ("dst", "src"):
        of_side = device_of.rename({"agent_id": f"{side}_agent_id", "device": side})
        rows = rows.join(
            of_side, on=["guid", f"{side}_agent_id"], how="left", nulls_equal=True, maintain_order="left"
        )
    rows = _linked(tables, tables.with_names(rows, "rocpd_string", "name_id", name="string"))
    return rows.select(
        "row", "correlation", process="process_number", start_ns="start", end_ns="end",
        name=pl.col("name").fill_null("MEMORY_COPY"), device=pl.coalesce("dst", "src"),
        stream=pl.coalesce("stream_id", "queue_id"), size_bytes="size",
    )  # fmt: skip


def _calls(tables: _Tables) -> pl.DataFrame:
    """Regions: markers are annotations, all else are calls of a runtime."""
    rows = tables.numbered(tables.get("rocpd_region", {**_SPAN, "name_id": _INT}))
    rows = _linked(tables, tables.with_names(rows, "rocpd_string", "name_id", name="string"))
    rows = tables.with_names(rows, "rocpd_info_thread", "tid", thread="tid", track="name")
    rows = tables.with_names(rows, "rocpd_string", "category_id", category="string")
    marker = pl.col("category").str.to_uppercase().str.contains("MARKER|ROCTX").fill_null(value=False)
    kind = pl.when(marker).then(pl.lit("annotation")).otherwise(pl.lit("runtime"))
    message = pl.when(marker).then(_messages(rows))
    return rows.select(
        "row", "correlation", "thread", name=pl.coalesce(message, "name"), kind=kind, process="process_number",
        start_ns="start", end_ns="end",
        track=pl.when(pl.col("track").str.strip_chars() != "").then("track"),
    ).select(*HOST)  # fmt: skip


def _messages(rows: pl.DataFrame) -> pl.Series:
    """The text of a marker, which is in its event's `extdata`; null where there is none."""
    texts = rows["extdata"].drop_nulls().unique().to_list()
    told = {text: found for text in texts if isinstance(found := _facts(text).get("message"), str) and found}
    return rows["extdata"].replace_strict(told, default=None, return_dtype=pl.String).alias("message")


def _linked(tables: _Tables, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with the correlation id of their event and the number of their process."""
    rows = tables.with_names(
        rows, "rocpd_event", "event_id", stack_id="stack_id", correlation_id="correlation_id", category_id="category_id",
        extdata="extdata",
    )  # fmt: skip
    # rocprofv3's own id of a call is the stack's; the other is one that the program pushed, and often 0.
    rows = rows.with_columns(correlation=pl.coalesce("stack_id", "correlation_id"))
    return tables.with_names(rows, "rocpd_info_process", "pid", process_number="pid")


def _counters(tables: _Tables) -> pl.DataFrame:
    """Values of hardware counters as arguments of their kernels: of several instances the sum."""
    values = tables.get("rocpd_pmc_event", {"guid": _TEXT, "event_id": _INT, "pmc_id": _INT, "value": _REAL})
    if values.is_empty():
        return pl.DataFrame(schema=ARGS)
    values = tables.with_names(values, "rocpd_info_pmc", "pmc_id", key="name")
    kernels = tables.get("rocpd_kernel_dispatch", {"id": _INT, "guid": _TEXT, "event_id": _INT})
    kernels = kernels.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls("event_id")
    summed = (
        values.drop_nulls(["key", "value", "event_id"])
        .group_by("guid", "event_id", "key")
        .agg(float=pl.col("value").sum())
    )
    joined = summed.join(kernels, on=["guid", "event_id"], how="inner", nulls_equal=True).sort("row", "key")
    return joined.select("row", "key", int=pl.lit(None, _INT), float="float", text=pl.lit(None, _TEXT))
