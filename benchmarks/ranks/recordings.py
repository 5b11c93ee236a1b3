"""A simulated job as files: one recording per rank, as torch.profiler writes it, on that rank's own clock."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.ranks.simulate import Rank, Row, Simulated

EPOCH_NS = 1_790_000_000_000_000_000
_LISTED = 30  # members that torch writes of a group
_KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_NAMES = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv", "send": "send", "recv": "recv",
}  # fmt: skip


@dataclass(frozen=True)
class Style:
    """What a recording says, and how much of it there is."""

    numbered: bool = True  # Seq
    on_kernels: bool = True  # metadata of collectives stands at their kernels, else at their operators only
    marked: bool = True  # ProfilerStep#
    shuffled_names: bool = False  # names of groups differ between ranks
    compressed: bool = False
    operators: int = 1  # nested around each kernel: makes the recording larger
    device_is_local: bool = False
    launched: bool = True  # launches of kernels are recorded
    ends: str = "other"  # of a send or receive: its other end, both, or none


def write(simulated: Simulated, folder: Path, style: Style = Style(), *, missing: Iterable[int] = ()) -> Path:  # noqa: B008
    """The folder with a recording of each rank but the missing ones."""
    folder.mkdir(parents=True, exist_ok=True)
    absent = set(missing)
    for rank in simulated.ranks:
        if rank.number in absent:
            continue
        text = recording(simulated, rank, style)
        if style.compressed:
            (folder / f"rank{rank.number}.json.gz").write_bytes(gzip.compress(text.encode(), 1))
        else:
            (folder / f"rank{rank.number}.json").write_text(text)
    return folder


def recording(simulated: Simulated, rank: Rank, style: Style) -> str:
    """One rank's recording."""
    job = simulated.job
    groups = _groups(rank, job.world, style)
    header = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "computeMajor": 9, "computeMinor": 0,
                              "numSms": 132, "totalGlobalMem": 85_000_000_000}],
        "distributedInfo": {
            "backend": "nccl", "rank": rank.number, "world_size": job.world, "pg_count": len(groups),
            "pg_config": [
                {"pg_name": name, "pg_desc": description, "backend_config": "cuda:nccl", "pg_size": len(members),
                 "ranks": list(members)}
                for (members, description), name in groups.items()
            ],
            "nccl_version": "2.21.5",
        },
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": EPOCH_NS,
    }  # fmt: skip
    events = ",\n".join(
        _events(rank, groups, style, rank.number % job.per_node if style.device_is_local else 0)
    )
    return (
        json.dumps(header)[:-1]
        + ', "traceEvents": [\n'
        + events
        + f'\n], "traceName": "rank{rank.number}.json"}}'
    )


def _groups(rank: Rank, world: int, style: Style) -> dict[tuple[tuple[int, ...], str], str]:
    """Members and description of each group that the rank is in, with its name."""
    found = {(tuple(range(world)), "default_pg"): "0"}
    for row in rank.rows:
        found.setdefault((row.op.members, row.op.description), "")
    names = list(found)
    if style.shuffled_names and rank.number % 2:
        names.reverse()
    return {key: str(place) for place, key in enumerate(names)}


def _events(
    rank: Rank, groups: dict[tuple[tuple[int, ...], str], str], style: Style, device: int
) -> Iterator[str]:
    at = rank.local_us
    process = 4000 + rank.number
    number = 0
    for step, start, end in rank.marks if style.marked else ():
        yield _host("user_annotation", f"ProfilerStep#{step}", at(start), at(end), process)
    for start, end in rank.loads:
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        yield _host("user_annotation", name, at(start), at(end), process)
    for kernel in rank.kernels:
        number += 1
        launch = at(kernel.launch_us)
        for depth in range(style.operators):
            inset = 0.05 * depth
            name = ("aten::linear", "aten::matmul", "aten::mm")[min(depth, 2)]
            yield _host(
                "cpu_op", name, launch - 1.0 + inset, launch + 2.6 - inset, process, number + (depth << 24)
            )
        if style.launched:
            yield _launch(launch, number, process)
        yield _kernel(kernel.name, at(kernel.start_us), at(kernel.end_us), 7, number, device)
    for row in rank.rows:
        number += 1
        launch = at(row.launch_us)
        told = _metadata(row, groups, style)
        inner = json.dumps(told)[1:-1]
        yield _host("cpu_op", "record_param_comms", launch - 0.5, launch + 2.4, process, number, inner)
        if style.launched:
            yield _launch(launch, number, process)
        assert row.start_us is not None
        assert row.end_us is not None
        yield _kernel(
            _KERNELS[row.op.kind], at(row.start_us), at(row.end_us), row.op.stream, number, device,
            inner if style.on_kernels else "",
        )  # fmt: skip


def _metadata(row: Row, groups: dict[tuple[tuple[int, ...], str], str], style: Style) -> dict[str, Any]:
    op = row.op
    count, whole = len(op.members), op.size_bytes // 2
    sent = whole // count if op.kind == "all_gather" else whole
    received = whole // count if op.kind == "reduce_scatter" else round(whole * row.received)
    listed = ", ".join(map(str, op.members[:_LISTED])) + (", ..." if count > _LISTED else "")
    told: dict[str, Any] = {
        "Collective name": _NAMES[op.kind], "In msg nelems": sent, "Out msg nelems": received, "Group size": count,
        "dtype": "BFloat16", "In split size": "[]", "Out split size": "[]",
        "Process Group Name": groups[op.members, op.description], "Process Group Description": op.description,
        "Process Group Ranks": f"[{listed}]",
    }  # fmt: skip
    own = {"other": op.kind, "both": "both"}.get(style.ends) if op.source >= 0 else None
    if own in ("send", "both"):
        told["Dst Rank"] = op.destination
    if own in ("recv", "both"):
        told["Src Rank"] = op.source
    if style.numbered:
        told["Seq"] = row.seq
    return told


def _host(
    category: str,
    name: str,
    start: float,
    end: float,
    process: int,
    number: int | None = None,
    more: str = "",
) -> str:
    args = f', "args": {{"External id": {number}{", " + more if more else ""}}}' if number is not None else ""
    return (
        f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {process}, "ts": {start:.3f}, '
        f'"dur": {end - start:.3f}{args}}}'
    )


def _launch(at: float, number: int, process: int) -> str:
    return (
        f'{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": {process}, "tid": {process}, '
        f'"ts": {at:.3f}, "dur": 2.000, "args": {{"External id": {number}, "cbid": 211, "correlation": {number}}}}}'
    )


def _kernel(
    name: str, start: float, end: float, stream: int, number: int, device: int, more: str = ""
) -> str:
    return (
        f'{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": {device}, "tid": {stream}, "ts": {start:.3f}, '
        f'"dur": {end - start:.3f}, "args": {{"External id": {number}, "queued": 0, "device": {device}, "context": 1, '
        f'"stream": {stream}, "correlation": {number}, "registers per thread": 96, "shared memory": 0, '
        f'"grid": [132, 1, 1], "block": [256, 1, 1]{", " + more if more else ""}}}}}'
    )
