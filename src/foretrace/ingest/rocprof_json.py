"""rocprofv3's JSON (`--output-format json`): agents, kernel symbols and the records of buffers become a Trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import polars as pl

from foretrace.errors import FormatError
from foretrace.ingest import json_document, rocprof_rows
from foretrace.ingest.formats import Format
from foretrace.ingest.json_document import mapping, objects
from foretrace.ingest.source import Progress, Source
from foretrace.ingest.span_tables import ARGS, DEVICE, HOST, Recorded, frame, to_trace, whole
from foretrace.trace import Trace

FORMATS = (
    Format(
        "rocprofv3 JSON",
        "*_results.json, .gz",
        "rocprofv3 --sys-trace --output-format json",
        "timeline",
        "torch's operators and shapes; what was not traced, such as HIP calls without --hip-trace",
    ),
)
_BEGINS = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"')
_CALLS = ("hip_api", "hsa_api", "rccl_api", "rocdecode_api", "rocjpeg_api")
_GPU = 2  # ROCPROFILER_AGENT_TYPE_GPU


def accepts(head: bytes) -> bool:
    """Whether a file that begins like this is rocprofv3's JSON."""
    return bool(_BEGINS.match(head.removeprefix(b"\xef\xbb\xbf")))


def read(
    source: Source, *, reader: str | None = None, pid: str | None = None, progress: Progress | None = None
) -> Trace:
    """The recording as a Trace; `reader` is for formats with several."""
    document = json_document.load(source, progress)
    tools = objects(mapping(document).get("rocprofiler-sdk-tool"))
    if not tools:
        raise FormatError(f"{source.path.name}: no process in its list rocprofiler-sdk-tool")
    host: list[pl.DataFrame] = []
    device: list[pl.DataFrame] = []
    args: list[pl.DataFrame] = []
    devices: dict[int, dict[str, Any]] = {}
    first_row = 0
    for tool in tools:
        found = _Tool(tool, first_row)
        devices |= {each["id"]: each for each in found.devices if each["id"] not in devices}
        kernels, of_kernels = rocprof_rows.kernels(found.kernels(), found.devices)
        host.append(found.calls())
        device += [kernels, rocprof_rows.copies(found.copies())]
        args += [of_kernels, found.counters()]
        first_row = found.next_row
    recorded = Recorded(
        source.path, "rocprofv3-json", pl.concat(host), pl.concat(device), pl.concat(args, how="diagonal_relaxed"),
        list(devices.values()), {"compression": source.compression or None},
    )  # fmt: skip
    return to_trace(recorded, pid=pid, file_bytes=source.size)


class _Tool:
    """One process of the document."""

    def __init__(self, tool: Mapping[str, Any], first_row: int) -> None:
        self.records = mapping(tool.get("buffer_records"))
        self.callbacks = mapping(tool.get("callback_records"))
        self.process = whole(mapping(tool.get("metadata")).get("pid"))
        self.next_row = first_row
        strings = mapping(tool.get("strings"))
        self.operations = [_texts(each.get("operations")) for each in objects(strings.get("buffer_records"))]
        self.markers = {each.get("key"): each.get("value") for each in objects(strings.get("marker_api"))
                        if isinstance(each.get("key"), int)}  # fmt: skip
        self.symbols = {each.get("kernel_id"): each for each in objects(tool.get("kernel_symbols"))
                        if isinstance(each.get("kernel_id"), int)}  # fmt: skip
        agents = [each for each in objects(tool.get("agents")) if each.get("type") == _GPU]
        self.device_of = {_handle(each.get("id")): place for place, each in enumerate(agents)}
        self.devices = [rocprof_rows.gpu(place, _agent(each)) for place, each in enumerate(agents)]
        self.row_of_dispatch: dict[int, int] = {}
        self.counter_names = {
            _handle(each.get("id")): str(each.get("name")) for each in objects(tool.get("counters"))
        }

    def kernels(self) -> pl.DataFrame:
        """Rows of rocprof_rows.KERNEL."""
        rows = []
        for record, info in self._dispatches():
            symbol = self.symbols.get(whole(info.get("kernel_id")), {})
            grid, block = mapping(info.get("grid_size")), mapping(info.get("workgroup_size"))
            dispatch = whole(info.get("dispatch_id"))
            if dispatch is not None:
                self.row_of_dispatch[dispatch] = self.next_row
            rows.append(
                {
                    **self._span(record), "device": self.device_of.get(_handle(info.get("agent_id"))),
                    "stream": _stream(record, info), "name": _kernel_name(symbol, info.get("kernel_id")),
                    **{f"items_{axis}": whole(grid.get(axis)) for axis in "xyz"},
                    **{f"block_{axis}": whole(block.get(axis)) for axis in "xyz"},
                    "shared_bytes": whole(info.get("group_segment_size")),
                    "scratch_bytes": whole(info.get("private_segment_size")),
                    "vgpr": whole(symbol.get("arch_vgpr_count")), "accum_vgpr": whole(symbol.get("accum_vgpr_count")),
                    "sgpr": whole(symbol.get("sgpr_count")), "graph_id": None, "graph_node_id": None,
                }
            )  # fmt: skip
        return frame(rows, rocprof_rows.KERNEL)

    def _dispatches(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Records of kernels; where only counters were collected, those of the counters."""
        traced = objects(self.records.get("kernel_dispatch"))
        for record in traced:
            yield record, mapping(record.get("dispatch_info"))
        if not traced:
            for record in objects(self.callbacks.get("counter_collection")):
                data = mapping(record.get("dispatch_data"))
                yield {**data, "thread_id": record.get("thread_id")}, mapping(data.get("dispatch_info"))

    def copies(self) -> pl.DataFrame:
        """Copies, each on the device that it goes to or comes from."""
        rows = []
        for record in objects(self.records.get("memory_copy")):
            target, origin = (_handle(record.get(key)) for key in ("dst_agent_id", "src_agent_id"))
            device = self.device_of.get(target, self.device_of.get(origin))
            rows.append(
                {**self._span(record), "name": self._operation(record) or "MEMORY_COPY", "device": device,
                 "stream": _handle(record.get("stream_id")), "size_bytes": whole(record.get("bytes"))}
            )  # fmt: skip
        return frame(rows, {**{name: DEVICE[name] for name in ("process", "start_ns", "end_ns", "correlation", "row")},
                            "name": pl.String, "device": pl.Int64, "stream": pl.Int64, "size_bytes": pl.Int64})  # fmt: skip

    def calls(self) -> pl.DataFrame:
        """Calls of the runtime, and roctx's ranges as annotations."""
        rows = []
        for kind in _CALLS:
            for record in objects(self.records.get(kind)):
                name = self._operation(record) or kind
                rows.append({**self._span(record), "kind": "runtime", "name": name})
        for record in objects(self.records.get("marker_api")):
            text = self.markers.get(whole(mapping(record.get("correlation_id")).get("internal")))
            name = text if isinstance(text, str) and text else self._operation(record) or "marker"
            rows.append({**self._span(record), "kind": "annotation", "name": name})
        return frame(rows, HOST)

    def counters(self) -> pl.DataFrame:
        """Values of hardware counters, as arguments of their kernels: of several instances the sum."""
        rows: dict[tuple[int, str], float] = {}
        for record in objects(self.callbacks.get("counter_collection")):
            info = mapping(mapping(record.get("dispatch_data")).get("dispatch_info"))
            row = self.row_of_dispatch.get(whole(info.get("dispatch_id")) or 0)
            for each in objects(record.get("records")):
                name, value = self.counter_names.get(_handle(each.get("counter_id"))), each.get("value")
                if row is not None and name and isinstance(value, int | float):
                    rows[row, name] = rows.get((row, name), 0.0) + float(value)
        made = [{"row": row, "key": name, "float": value} for (row, name), value in rows.items()]
        return frame(made, ARGS)

    def _span(self, record: Mapping[str, Any]) -> dict[str, Any]:
        row, self.next_row = self.next_row, self.next_row + 1
        return {
            "process": self.process, "thread": whole(record.get("thread_id")), "row": row,
            "start_ns": whole(record.get("start_timestamp")), "end_ns": whole(record.get("end_timestamp")),
            "correlation": whole(mapping(record.get("correlation_id")).get("internal")),
        }  # fmt: skip

    def _operation(self, record: Mapping[str, Any]) -> str | None:
        kind, operation = record.get("kind"), record.get("operation")
        if (
            not isinstance(kind, int)
            or not isinstance(operation, int)
            or not 0 <= kind < len(self.operations)
        ):
            return None
        names = self.operations[kind]
        return names[operation] if 0 <= operation < len(names) else None


def _texts(value: object) -> list[str]:
    return (
        [str(each) for each in value]
        if isinstance(value, Iterable) and not isinstance(value, str | dict)
        else []
    )


def _handle(value: object) -> int | None:
    return whole(value.get("handle")) if isinstance(value, dict) else whole(value)


def _stream(record: Mapping[str, Any], info: Mapping[str, Any]) -> int | None:
    """The HIP stream; in recordings of versions that do not tell it, the queue."""
    stream = _handle(record.get("stream_id"))
    return stream if stream is not None else _handle(info.get("queue_id"))


def _kernel_name(symbol: Mapping[str, Any], kernel_id: object) -> str:
    for key in ("formatted_kernel_name", "demangled_kernel_name", "kernel_name"):
        if isinstance(name := symbol.get(key), str) and name:
            return name.removesuffix(".kd")
    return f"kernel {kernel_id}"


def _agent(agent: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's facts, with the size of its memory."""
    sizes = [size for bank in objects(agent.get("mem_banks")) if (size := whole(bank.get("size_in_bytes")))]
    return {**agent, "memory_bytes": sum(sizes) or None}
