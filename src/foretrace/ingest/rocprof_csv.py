"""rocprofv3's CSV files: a folder of them is one recording, and one alone is read for what it tells.

Which table a file is, its header says; `rocpd convert` writes the same with other capitals. `Agent_Id` is a node's number, or "Agent 4" or "GPU 0", as --agent-index asked for.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from foretrace.errors import ForetraceError, FormatError, InputError, MissingDataError
from foretrace.ingest import rocprof_rows, totals
from foretrace.ingest.formats import Format
from foretrace.ingest.json_document import MOST_BYTES
from foretrace.ingest.source import Progress, Source, open_source
from foretrace.ingest.span_tables import ARGS, DEVICE, HOST, Recorded, to_trace, whole
from foretrace.trace import Trace

FORMATS = (
    Format(
        "rocprofv3 CSV",
        "*_kernel_trace.csv, *_memory_copy_trace.csv, *_hip_api_trace.csv, *_counter_collection.csv, a folder of them",
        "rocprofv3 --sys-trace --output-format csv",
        "timeline",
        "torch's operators and shapes, bytes of copies; of a kernel trace alone, also the calls; without *_agent_info.csv, "
        "the device, and so its occupancy and peaks",
    ),
    Format(
        "rocprofv3 statistics",
        "*_kernel_stats.csv, *_hip_api_stats.csv",
        "rocprofv3 --kernel-trace --stats --output-format csv",
        "totals",
        "when anything ran, the median, the device: record without --stats",
    ),
)
# The columns that tell a table; the first that fits.
_TABLES = {
    "counters": {"counter_name", "counter_value", "kernel_name"},
    "kernels": {"kernel_name", "agent_id", "start_timestamp", "end_timestamp"},
    "copies": {"direction", "start_timestamp", "end_timestamp"},
    "calls": {"domain", "function", "start_timestamp", "end_timestamp"},
    "stats": {"name", "calls", "totaldurationns"},
    "agents": {"node_id", "agent_type"},
}
_TIMED = ("kernels", "counters", "copies", "calls")
_NUMBER = re.compile(r"(?:(?P<kind>GPU|CPU|Agent)[ _]*)?(?P<number>[0-9]{1,9})", re.IGNORECASE)
_SUFFIX = re.compile(r"_?[a-z]+(?:_[a-z]+)*\.csv(?:\.gz|\.zst|\.zip)?$", re.IGNORECASE)


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this is a table of rocprofv3."""
    return table_of(head) is not None


def table_of(head: bytes) -> str | None:
    """Which table begins like this."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0][:4096]
    if b"," not in line or b"\0" in line:
        return None
    try:
        names = {
            name.strip().lower() for name in next(csv.reader([line.decode("utf-8", "replace").strip()]), [])
        }
    except csv.Error:
        return None
    return next((table for table, columns in _TABLES.items() if columns <= names), None)


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """One table alone as a Trace; `reader` is for formats with several."""
    return _read(source.path, [source], pid, progress)


def parts(files: Sequence[Path]) -> tuple[Path, ...]:
    """The tables among these files; none where no two of them are."""
    found = tuple(file for file in files if ".csv" in file.name.lower() and _table_at(file))
    return found if len(found) > 1 else ()


def _table_at(file: Path) -> str | None:
    try:
        return table_of(open_source(file).head)
    except ForetraceError:
        return None  # naming the file itself tells why it cannot be read


def read_parts(
    folder: Path, files: Sequence[Path], *, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """All tables of a folder as one Trace: those with one beginning of their names are of one process."""
    return _read(folder, [open_source(file) for file in files], pid, progress)


def _read(path: Path, sources: Iterable[Source], pid: str | None, progress: Progress | None) -> Trace:
    groups: dict[str, dict[str, list[pl.DataFrame]]] = {}
    size = 0
    for source in sources:
        table = table_of(source.head)
        if table is None:
            raise FormatError(f"{source.path}: not a table of rocprofv3")
        size += source.size
        group = groups.setdefault(_SUFFIX.sub("", str(source.path)), {})
        made = _frame(source, progress)
        if missing := _TABLES[table] - set(made.columns):
            raise InputError(
                f"{source.path.name}: the CSV cannot be read: no column {', '.join(sorted(missing))}"
            )
        group.setdefault(table, []).append(made)
    if not any(table in group for group in groups.values() for table in _TIMED):
        statistics = [each for group in groups.values() for each in group.get("stats", [])]
        if not statistics:
            raise MissingDataError(
                f"{path}: only agents in it, no time; name the folder with the other tables"
            )
        return totals.to_trace(path, "rocprofv3-stats", _entries(statistics), file_bytes=size)
    if not any(
        _has_times(table, name)
        for group in groups.values()
        for name in _TIMED
        for table in group.get(name, [])
    ):
        raise MissingDataError(
            f"{path}: counters of kernels without start and end times, as older versions of rocprofv3 wrote; "
            "name the folder with the kernel trace beside it"
        )
    numbers = iter(range(0, 2**62, 2**40))  # of rows: those of each table begin elsewhere
    processes = [_Process(prefix, group, numbers) for prefix, group in groups.items()]
    devices = {each["id"]: each for process in processes for each in process.devices}
    recorded = Recorded(
        path, "rocprofv3-csv",
        pl.concat([process.calls() for process in processes]),
        pl.concat([pl.DataFrame(schema=DEVICE), *(work for process in processes for work in process.work())]),
        pl.concat([process.args for process in processes]),
        list(devices.values()),
    )  # fmt: skip
    return to_trace(recorded, pid=pid, file_bytes=size)


def _has_times(table: pl.DataFrame, name: str) -> bool:
    return name != "counters" or {"start_timestamp", "end_timestamp"} <= set(table.columns)


def _frame(source: Source, progress: Progress | None) -> pl.DataFrame:
    """The table with every value as text."""
    text = bytearray()
    for chunk in source.chunks(progress):
        text += chunk
        if len(text) > MOST_BYTES:
            raise InputError(f"{source.path.name}: too large for one table; record less")
    if source.broken:
        raise InputError(f"{source.path.name}: broken off: {source.broken[0][0]}")
    try:
        made = pl.read_csv(
            io.BytesIO(bytes(text).removeprefix(b"\xef\xbb\xbf")), infer_schema=False, truncate_ragged_lines=True,
            encoding="utf8-lossy",
        )  # fmt: skip
    except (pl.exceptions.PolarsError, ValueError) as error:
        what = " ".join(str(error).split())[:200]
        raise InputError(f"{source.path.name}: the CSV cannot be read: {what}") from error
    plain = [name.strip().lower() for name in made.columns]
    # Of a column that is there twice the first counts.
    return made.select(
        pl.col(name).alias(new)
        for name, new in dict(zip(reversed(made.columns), reversed(plain), strict=True)).items()
        if plain.index(new) == made.columns.index(name)
    )


class _Process:
    """The tables of one process."""

    def __init__(self, prefix: str, tables: Mapping[str, list[pl.DataFrame]], numbers: Iterator[int]) -> None:
        self.tables, self.numbers = tables, numbers
        self.agents = [row for each in tables.get("agents", []) for row in each.iter_rows(named=True)]
        gpus = [row for row in self.agents if str(row.get("agent_type") or "").upper() == "GPU"]
        self.devices = [rocprof_rows.gpu(place, _agent(row)) for place, row in enumerate(gpus)]
        self.device_of = {
            number: place
            for column in ("logical_node_id", "node_id")
            for place, row in enumerate(gpus)
            if (number := whole(row.get(column))) is not None
        }
        self.hosts = {
            whole(row.get("node_id"))
            for row in self.agents
            if str(row.get("agent_type") or "").upper() == "CPU"
        }
        self.process = self._process(prefix)
        self.args = pl.DataFrame(schema=ARGS)

    def _process(self, prefix: str) -> int | None:
        """As the calls or counters say; kernels do not, and their file's name begins with it."""
        for table in ("calls", "counters"):
            for each in self.tables.get(table, []):
                if "process_id" in each.columns:
                    known = each["process_id"].cast(pl.Int64, strict=False).drop_nulls().unique()
                    if len(known) == 1:
                        return int(known[0])
        return whole(re.split(r"[/\\]", prefix)[-1].rpartition("_")[2])

    def calls(self) -> pl.DataFrame:
        """Calls of the runtime, and roctx's ranges as annotations."""
        made = [pl.DataFrame(schema=HOST)]
        for each in self.tables.get("calls", []):
            marker = pl.col("domain").str.to_uppercase().str.contains("MARKER")
            kind = (
                pl.when(marker.fill_null(value=False)).then(pl.lit("annotation")).otherwise(pl.lit("runtime"))
            )
            process = (
                _column(each, "process_id").fill_null(self.process)
                if self.process
                else _column(each, "process_id")
            )
            made.append(
                each.with_columns(
                    process.alias("process"), _column(each, "thread_id").alias("thread"), kind.alias("kind"),
                    pl.col("function").alias("name"), pl.lit(None, pl.String).alias("track"), *_times(each),
                    _numbered(next(self.numbers)),
                ).select(pl.col(name).cast(dtype, strict=False) for name, dtype in HOST.items())
            )  # fmt: skip
        return pl.concat(made)

    def work(self) -> Iterator[pl.DataFrame]:
        """Kernels and copies; where kernels were not traced, those that counters were collected of."""
        made = [self._kernels(each) for each in self.tables.get("kernels", [])]
        counters = self.tables.get("counters", [])
        made = made or [self._kernels(_dispatches(each)) for each in counters]
        self._keep_counters(made, counters)
        for rows in made:
            work, args = rocprof_rows.kernels(rows.drop("dispatch"), self.devices)
            self.args = pl.concat([self.args, args.select(*ARGS)])
            yield work
        for each in self.tables.get("copies", []):
            yield self._copies(each)

    def _kernels(self, table: pl.DataFrame) -> pl.DataFrame:
        agents = self._devices(table, "agent_id")
        named = {
            **{f"items_{axis}": f"grid_size_{axis}" for axis in "xyz"},
            **{f"block_{axis}": f"workgroup_size_{axis}" for axis in "xyz"},
            "shared_bytes": "lds_block_size", "scratch_bytes": "scratch_size", "vgpr": "vgpr_count",
            "accum_vgpr": "accum_vgpr_count", "sgpr": "sgpr_count", "dispatch": "dispatch_id",
        }  # fmt: skip
        old = {"shared_bytes": "group_segment_size", "scratch_bytes": "private_segment_size"}
        values = {name: _column(table, column, old.get(name)) for name, column in named.items()}
        return table.with_columns(
            pl.lit(self.process, pl.Int64).alias("process"), pl.col("kernel_name").alias("name"), agents,
            _column(table, "stream_id", "queue_id").alias("stream"), *_times(table), _numbered(next(self.numbers)),
            *(value.alias(name) for name, value in values.items()),
            *(pl.lit(None, pl.Int64).alias(name) for name in ("graph_id", "graph_node_id")),
        ).select(*rocprof_rows.KERNEL, "dispatch")  # fmt: skip

    def _copies(self, table: pl.DataFrame) -> pl.DataFrame:
        to = self._devices(table, "destination_agent_id")
        source = self._devices(table, "source_agent_id")
        device = pl.select(pl.coalesce(to, source).alias("device")).to_series()
        rows = table.with_columns(
            pl.lit(self.process, pl.Int64).alias("process"), device, pl.col("direction").alias("name"),
            _column(table, "stream_id").alias("stream"), *_times(table), _numbered(next(self.numbers)),
        )  # fmt: skip
        kept = ("process", "name", "start_ns", "end_ns", "correlation", "row", "device", "stream")
        return rocprof_rows.copies(rows.select(*kept)).select(*DEVICE)

    def _keep_counters(self, kernels: Sequence[pl.DataFrame], counters: Sequence[pl.DataFrame]) -> None:
        """Values of counters as arguments of the kernels with their dispatch; of several instances the sum."""
        if not kernels or not counters:
            return
        dispatches = (
            pl.concat(kernels).select("row", "dispatch").drop_nulls().unique("dispatch", maintain_order=True)
        )
        for each in counters:
            values = each.select(
                dispatch=_column(each, "dispatch_id"), key="counter_name",
                float=pl.col("counter_value").cast(pl.Float64, strict=False),
            ).drop_nulls()  # fmt: skip
            summed = values.group_by("dispatch", "key", maintain_order=True).agg(pl.col("float").sum())
            joined = summed.join(dispatches, on="dispatch", how="inner")
            absent = [pl.lit(None, pl.Int64).alias("int"), pl.lit(None, pl.String).alias("text")]
            self.args = pl.concat([self.args, joined.with_columns(absent).select(*ARGS)])

    def _devices(self, table: pl.DataFrame, column: str) -> pl.Series:
        """The GPU's index behind each agent; null for a CPU's."""
        if column not in table.columns:
            return pl.Series("device", [None] * table.height, pl.Int64)
        texts = table[column].unique().drop_nulls().to_list()
        known = {text: self._device(text) for text in texts}
        return table[column].replace_strict(known, default=None, return_dtype=pl.Int64).alias("device")

    def _device(self, text: str) -> int | None:
        match = _NUMBER.fullmatch(text.strip())
        if match is None:
            return None
        kind, number = (match["kind"] or "agent").lower(), int(match["number"])
        if kind == "cpu" or (kind == "agent" and number in self.hosts):
            return None
        return number if kind == "gpu" else self.device_of.get(number, number)


def _column(table: pl.DataFrame, *names: str | None) -> pl.Expr:
    """The first of these columns that is there as whole numbers; null where none is."""
    name = next((name for name in names if name is not None and name in table.columns), None)
    return pl.lit(None, pl.Int64) if name is None else pl.col(name).cast(pl.Int64, strict=False)


def _times(table: pl.DataFrame) -> Iterator[pl.Expr]:
    for name, column in (
        ("start_ns", "start_timestamp"),
        ("end_ns", "end_timestamp"),
        ("correlation", "correlation_id"),
    ):
        yield _column(table, column).alias(name)


def _numbered(first: int) -> pl.Expr:
    return (pl.int_range(pl.len(), dtype=pl.Int64) + first).alias("row")


def _dispatches(counters: pl.DataFrame) -> pl.DataFrame:
    """One row for each dispatch of a table of counters; its grid and workgroup are single numbers there."""
    rows = (
        counters.unique("dispatch_id", keep="first", maintain_order=True)
        if "dispatch_id" in counters.columns
        else counters
    )
    one = [pl.lit("1").alias(f"{what}_size_{axis}") for what in ("grid", "workgroup") for axis in "yz"]
    whole_sizes = [
        pl.col(f"{what}_size").alias(f"{what}_size_x")
        for what in ("grid", "workgroup")
        if f"{what}_size" in rows.columns
    ]
    return rows.with_columns(*whole_sizes, *one)


def _agent(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of agents under the names that the JSON has."""
    facts: dict[str, Any] = {str(name).lower(): value for name, value in row.items()}
    texts = ("name", "product_name", "model_name", "vendor_name")
    return {name: value if name in texts else whole(value) for name, value in facts.items()}


def _entries(statistics: Sequence[pl.DataFrame]) -> list[totals.Entry]:
    """Sums by name: calls of the runtime, copies and kernels by what their names are like."""
    entries = []
    for table in statistics:
        for row in table.iter_rows(named=True):
            name, total = str(row.get("name") or ""), whole(row.get("totaldurationns"))
            if not name or total is None or total < 0 or name in _DOMAINS:
                continue
            kind = (
                "runtime"
                if name.startswith(("hip", "hsa", "__hip"))
                else "copy"
                if "MEMORY_COPY" in name
                else "kernel"
            )
            entries.append(
                totals.Entry(
                    (),
                    name,
                    kind,
                    total,
                    whole(row.get("calls")),
                    whole(row.get("minns")),
                    whole(row.get("maxns")),
                )
            )
    return entries


_DOMAINS = {
    "KERNEL_DISPATCH",
    "MEMORY_COPY",
    "HIP_API",
    "HSA_API",
    "MARKER_API",
    "MEMORY_ALLOCATION",
    "SCRATCH_MEMORY",
    "RCCL_API",
}
