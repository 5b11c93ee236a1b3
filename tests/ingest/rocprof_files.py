"""Recordings of rocprofv3, made by hand: one short program as CSVs, JSON and a rocpd database.

A call launches a kernel of 4,096 x 4 work-items in workgroups of 256, another copies 1 MiB to the device, a roctx range is
around both. The GPU is a die of an MI250X: gfx90a with 104 compute units.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

KERNEL, COPY, RANGE, LAUNCH, COPY_CALL = (
    "scale(float*, int)", "MEMORY_COPY_HOST_TO_DEVICE", "step 1", "hipLaunchKernel", "hipMemcpyAsync",
)  # fmt: skip
START = 1_000_000_000
# Start, end and correlation id of what ran, in nanoseconds after START.
TIMES = {RANGE: (0, 50_000, 10), LAUNCH: (1_000, 5_000, 11), COPY_CALL: (6_000, 9_000, 12), KERNEL: (8_000, 28_000, 11),
         COPY: (30_000, 34_000, 12)}  # fmt: skip
COUNTER, COUNTED = "SQ_WAVES", (40.0, 24.0)  # of two shader engines: the sum is the kernel's
PROCESS, THREAD = 4711, 4712

KERNEL_HEADER = (
    '"Kind","Agent_Id","Queue_Id","Stream_Id","Thread_Id","Dispatch_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    '"Start_Timestamp","End_Timestamp","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Workgroup_Size_X","Workgroup_Size_Y","Workgroup_Size_Z","Grid_Size_X","Grid_Size_Y","Grid_Size_Z"\n'
)
CALL_HEADER = (
    '"Domain","Function","Process_Id","Thread_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
)
COPY_HEADER = '"Kind","Direction","Stream_Id","Source_Agent_Id","Destination_Agent_Id","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
COUNTER_HEADER = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id","Kernel_Name",'
    '"Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count","Counter_Name",'
    '"Counter_Value","Start_Timestamp","End_Timestamp"\n'
)
AGENT_HEADER = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Max_Waves_Per_Simd","Lds_Size_In_Kb","Wave_Front_Size","Cu_Count","Simd_Per_Cu",'
    '"Name","Vendor_Name","Product_Name","Model_Name"\n'
)
STATS_HEADER = '"Name","Calls","TotalDurationNs","AverageNs","Percentage","MinNs","MaxNs","StdDev"\n'


def _at(name: str) -> str:
    start, end, correlation = TIMES[name]
    return f"{correlation},{START + start},{START + end}"


def csv_tables(*, agent: str = '"Agent 4"', process: int = PROCESS) -> dict[str, str]:
    """The text of each file by its name."""
    host = '"Agent 0"' if agent.startswith('"') else "0"
    calls = "".join(
        f'"HIP_RUNTIME_API","{name}",{process},{THREAD},{_at(name)}\n' for name in (LAUNCH, COPY_CALL)
    )
    counted = "".join(
        f'11,1,{agent},2,{process},{THREAD},16384,7,"{KERNEL}",256,0,0,124,4,80,"{COUNTER}",{value},{START + 8_000},'
        f"{START + 28_000}\n"
        for value in COUNTED
    )
    return {
        f"{process}_kernel_trace.csv": KERNEL_HEADER
        + f'"KERNEL_DISPATCH",{agent},2,1,{THREAD},1,7,"{KERNEL}",{_at(KERNEL)},0,0,124,4,80,256,1,1,4096,4,1\n',
        f"{process}_memory_copy_trace.csv": COPY_HEADER
        + f'"MEMORY_COPY","{COPY}",1,{host},{agent},{_at(COPY)}\n',
        f"{process}_hip_api_trace.csv": CALL_HEADER + calls,
        f"{process}_marker_api_trace.csv": CALL_HEADER + f'"MARKER_CORE_API","{RANGE}",{process},{THREAD},{_at(RANGE)}\n',
        f"{process}_counter_collection.csv": COUNTER_HEADER + counted,
        f"{process}_agent_info.csv": AGENT_HEADER
        + '0,0,"CPU",0,0,0,64,0,"EPYC","CPU","EPYC",""\n4,1,"GPU",8,64,64,104,4,"gfx90a","AMD","AMD Instinct MI250X",""\n',
        f"{process}_kernel_stats.csv": STATS_HEADER + f'"{KERNEL}",1,20000,20000.0,100.0,20000,20000,0.0\n',
    }  # fmt: skip


def csv_folder(folder: Path, *, agent: str = '"Agent 4"', process: int = PROCESS) -> Path:
    """The folder with the files as rocprofv3 lays them out."""
    inside = folder / "host"
    inside.mkdir(parents=True, exist_ok=True)
    for name, text in csv_tables(agent=agent, process=process).items():
        (inside / name).write_text(text)
    return folder


def json_document() -> dict[str, Any]:
    """The same as JSON."""

    def span(name: str, kind: int, operation: int) -> dict[str, Any]:
        start, end, correlation = TIMES[name]
        return {"kind": kind, "operation": operation, "thread_id": THREAD, "start_timestamp": START + start,
                "end_timestamp": START + end, "correlation_id": {"internal": correlation, "external": 0}}  # fmt: skip

    agents = [
        {"id": {"handle": 1}, "type": 1, "cu_count": 64, "name": "EPYC"},
        {"id": {"handle": 2}, "type": 2, "cu_count": 104, "simd_per_cu": 4, "max_waves_per_simd": 8, "wave_front_size": 64,
         "lds_size_in_kb": 64, "name": "gfx90a", "product_name": "AMD Instinct MI250X",
         "mem_banks": [{"size_in_bytes": 64 << 30}]},
    ]  # fmt: skip
    info = {
        "agent_id": {"handle": 2}, "queue_id": {"handle": 2}, "kernel_id": 7, "dispatch_id": 1, "private_segment_size": 0,
        "group_segment_size": 0, "workgroup_size": {"x": 256, "y": 1, "z": 1}, "grid_size": {"x": 4096, "y": 4, "z": 1},
    }  # fmt: skip
    tool = {
        "metadata": {"pid": PROCESS}, "agents": agents, "counters": [{"id": {"handle": 5}, "name": COUNTER}],
        "kernel_symbols": [{"kernel_id": 7, "formatted_kernel_name": KERNEL, "arch_vgpr_count": 124, "accum_vgpr_count": 4,
                            "sgpr_count": 80}],
        "strings": {
            "buffer_records": [
                {"kind": "NONE", "operations": []},
                {"kind": "HIP_RUNTIME_API", "operations": [LAUNCH, COPY_CALL]},
                {"kind": "MEMORY_COPY", "operations": ["MEMORY_COPY_NONE", COPY]},
                {"kind": "KERNEL_DISPATCH", "operations": []},
                {"kind": "MARKER_CORE_API", "operations": ["roctxRangePushA"]},
            ],
            "marker_api": [{"key": TIMES[RANGE][2], "value": RANGE}],
        },
        "buffer_records": {
            "kernel_dispatch": [{**span(KERNEL, 3, 2), "dispatch_info": info, "stream_id": {"handle": 1}}],
            "hip_api": [span(LAUNCH, 1, 0), span(COPY_CALL, 1, 1)],
            "memory_copy": [{**span(COPY, 2, 1), "src_agent_id": {"handle": 1}, "dst_agent_id": {"handle": 2},
                             "stream_id": {"handle": 1}, "bytes": 1 << 20}],
            "marker_api": [span(RANGE, 4, 0)],
        },
        "callback_records": {"counter_collection": [
            {"thread_id": THREAD, "dispatch_data": {"dispatch_info": info},
             "records": [{"counter_id": {"handle": 5}, "value": value} for value in COUNTED]}]},
    }  # fmt: skip
    return {"rocprofiler-sdk-tool": [tool]}


def json_file(folder: Path) -> Path:
    """The document as a file."""
    path = folder / f"{PROCESS}_results.json"
    path.write_text(json.dumps(json_document()))
    return path


# Tables of rocpd's schema 3 that hold what is read, with their columns; `event` and others have more.
ROCPD_TABLES = {
    "metadata": "tag, value",
    "string": "guid, string",
    "info_node": "guid, hash, machine_id, hostname",
    "info_process": "guid, nid, pid, command, environment",
    "info_thread": "guid, nid, pid, tid, name",
    "info_agent": "guid, nid, pid, type, absolute_index, logical_index, type_index, name, model_name, product_name, extdata",
    "info_queue": "guid, nid, pid, name",
    "info_stream": "guid, nid, pid, name",
    "info_pmc": "guid, nid, pid, agent_id, name, symbol",
    "info_kernel_symbol": "guid, nid, pid, code_object_id, kernel_name, display_name, sgpr_count, arch_vgpr_count, accum_vgpr_count",
    "event": "guid, category_id, stack_id, parent_stack_id, correlation_id, extdata",
    "pmc_event": "guid, event_id, pmc_id, value",
    "region": "guid, nid, pid, tid, start, end, name_id, event_id",
    "kernel_dispatch": "guid, nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
    "private_segment_size, group_segment_size, workgroup_size_x, workgroup_size_y, workgroup_size_z, grid_size_x, grid_size_y, "
    "grid_size_z, region_name_id, event_id",
    "memory_copy": "guid, nid, pid, tid, start, end, name_id, dst_agent_id, src_agent_id, size, queue_id, stream_id, event_id",
}  # fmt: skip


def rocpd_file(
    path: Path, *, guid: str = "0000aaaa-1", process: int = PROCESS, version: str = "3", without: str = ""
) -> Path:
    """The same as a database; a second call with another guid adds another recording to it."""
    suffix = "_" + guid.replace("-", "_")
    strings = [
        "",
        "KERNEL_DISPATCH",
        KERNEL,
        LAUNCH,
        COPY_CALL,
        COPY,
        "HIP_RUNTIME_API",
        "MARKER_CORE_API",
        "roctxRangePushA",
    ]
    number = {text: place for place, text in enumerate(strings, 1)}
    facts = {"cu_count": 104, "simd_per_cu": 4, "max_waves_per_simd": 8, "wave_front_size": 64, "lds_size_in_kb": 64,
             "mem_banks": [{"size_in_bytes": 64 << 30}]}  # fmt: skip
    at = {name: (START + start, START + end) for name, (start, end, _) in TIMES.items()}
    rows: dict[str, list[tuple[Any, ...]]] = {
        "metadata": [("schema_version", version), ("guid", guid)],
        "string": [(guid, text) for text in strings],
        "info_node": [(guid, 1, "m", "host")],
        "info_process": [(guid, 1, process, "train", '{"SECRET_TOKEN": "hunter2"}')],
        "info_thread": [(guid, 1, 1, THREAD, "")],
        "info_agent": [(guid, 1, 1, "CPU", 0, 0, 0, "EPYC", "", "EPYC", "{}"),
                       (guid, 1, 1, "GPU", 4, 1, 0, "gfx90a", "", "AMD Instinct MI250X", json.dumps(facts))],
        "info_queue": [(guid, 1, 1, "queue")],
        "info_stream": [(guid, 1, 1, "stream")],
        "info_pmc": [(guid, 1, 1, 2, COUNTER, COUNTER)],
        "info_kernel_symbol": [(guid, 1, 1, 1, f"{KERNEL}.kd", KERNEL, 80, 124, 4)],
        "event": [
            (guid, number["MARKER_CORE_API"], 10, 0, 0, json.dumps({"message": RANGE})),
            (guid, number["HIP_RUNTIME_API"], 11, 0, 0, "{}"), (guid, number["HIP_RUNTIME_API"], 12, 0, 0, "{}"),
            (guid, number["KERNEL_DISPATCH"], 11, 0, 0, "{}"), (guid, None, 12, 0, 0, "{}"),
        ],
        "pmc_event": [(guid, 4, 1, value) for value in COUNTED],
        "region": [(guid, 1, 1, 1, *at[RANGE], number["roctxRangePushA"], 1), (guid, 1, 1, 1, *at[LAUNCH], number[LAUNCH], 2),
                   (guid, 1, 1, 1, *at[COPY_CALL], number[COPY_CALL], 3)],
        "kernel_dispatch": [(guid, 1, 1, 1, 2, 1, 1, 1, 1, *at[KERNEL], 0, 0, 256, 1, 1, 4096, 4, 1, 1, 4)],
        "memory_copy": [(guid, 1, 1, 1, *at[COPY], number[COPY], 2, 1, 1 << 20, 1, 1, 5)],
    }  # fmt: skip
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("begin")
        for table, columns in ROCPD_TABLES.items():
            if table == without:
                continue
            named = ", ".join(f'"{column.strip()}"' for column in columns.split(","))
            database.execute(f'create table "rocpd_{table}{suffix}" ("id" integer primary key, {named})')
            marks = ", ".join("?" * len(columns.split(",")))
            database.executemany(
                f'insert into "rocpd_{table}{suffix}" ({named}) values ({marks})', rows[table]
            )
            database.execute(
                f'create view if not exists "rocpd_{table}" as select * from "rocpd_{table}{suffix}"'
            )
        database.execute("commit")
    return path
