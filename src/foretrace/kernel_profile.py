"""The KernelProfile: what a profiler of single kernels (Nsight Compute) measured, one row for each launch that it replayed.

Null means "not measured"; never 0, -1 or "". Sizes are bytes, times nanoseconds, rates per second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

_TEXT, _COUNT, _NUMBER = pl.String, pl.Int64, pl.Float64

# Column -> type and what it holds.
LAUNCHES: Mapping[str, tuple[type[pl.DataType], str]] = {
    "id": (_COUNT, "row number"),
    "launch": (_COUNT, "the profiler's own number of the launch"),
    "process": (_COUNT, "process id"),
    "kernel": (_TEXT, "name, as the profiler prints it"),
    "device": (_COUNT, "device index"),
    "device_name": (_TEXT, "as the driver calls it"),
    "grid_x": (_COUNT, "blocks in x"),
    "grid_y": (_COUNT, "blocks in y"),
    "grid_z": (_COUNT, "blocks in z"),
    "block_x": (_COUNT, "threads per block in x"),
    "block_y": (_COUNT, "threads per block in y"),
    "block_z": (_COUNT, "threads per block in z"),
    "registers": (_NUMBER, "registers per thread"),
    "waves": (_NUMBER, "waves of blocks per SM"),
    "dur_ns": (_NUMBER, "time of the launch while it was measured"),
    "sm_pct": (_NUMBER, "compute throughput, of its peak"),
    "memory_pct": (_NUMBER, "throughput of the most used part of the memory system, of its peak"),
    "dram_pct": (_NUMBER, "throughput of device memory, of its peak"),
    "l1_pct": (_NUMBER, "throughput of the L1 cache, of its peak"),
    "l2_pct": (_NUMBER, "throughput of the L2 cache, of its peak"),
    "occupancy_pct": (_NUMBER, "active warps, of the most that an SM holds"),
    "theoretical_occupancy_pct": (_NUMBER, "what registers, shared memory and block size allow"),
    "limit_registers_count": (_NUMBER, "blocks per SM that registers allow"),
    "limit_shared_count": (_NUMBER, "blocks per SM that shared memory allows"),
    "limit_warps_count": (_NUMBER, "blocks per SM that warps allow"),
    "limit_blocks_count": (_NUMBER, "blocks per SM that the SM itself allows"),
    "limit_barriers_count": (_NUMBER, "blocks per SM that barriers allow"),
    "issue_pct": (_NUMBER, "cycles in which a scheduler issued an instruction"),
    "active_threads": (_NUMBER, "threads of a warp that an instruction runs for, of 32"),
    "unpredicated_threads": (_NUMBER, "of those, threads that are not predicated off"),
    "cycles_per_issue": (_NUMBER, "cycles between two instructions of a warp"),
    "dram_bytes": (_NUMBER, "bytes read from and written to device memory"),
    "dram_bytes_per_s": (_NUMBER, "the same, per second"),
    "peak_dram_bytes_per_s": (_NUMBER, "what device memory could move at its clock"),
    "fp32_flops_per_s": (_NUMBER, "fadd + fmul + 2 ffma"),
    "fp64_flops_per_s": (_NUMBER, "dadd + dmul + 2 dfma"),
    "tensor_flops_per_s": (_NUMBER, "of tensor cores"),
    "tensor_type": (_TEXT, "what most of the tensor cores' work was multiplied in"),
    "peak_fp32_flops_per_s": (_NUMBER, "two for each ffma that the SMs could execute at their clock"),
    "l1_hit_pct": (_NUMBER, "of sectors looked up in L1"),
    "l2_hit_pct": (_NUMBER, "of sectors looked up in L2"),
    "load_bytes_per_sector": (_NUMBER, "bytes that threads use of each sector of 32 that global loads move"),
    "store_bytes_per_sector": (_NUMBER, "the same of global stores"),
    "excess_sectors_pct": (_NUMBER, "sectors of global memory in excess of what threads ask for"),
    "bank_conflicts_count": (_NUMBER, "conflicts in shared memory"),
    "spills_count": (_NUMBER, "requests to local memory for registers that did not fit"),
}
RULES: Mapping[str, tuple[type[pl.DataType], str]] = {
    "id": (_COUNT, "row of `launches` that it is about"),
    "section": (_TEXT, "section of the report"),
    "rule": (_TEXT, "the profiler's name for the rule"),
    "kind": (_TEXT, "OPT: something to improve; WRN: a warning; INF: information"),
    "says": (_TEXT, "the rule's own words"),
    "speedup_type": (_TEXT, "global: of the kernel's time; local: of the part that the rule looks at"),
    "speedup_pct": (_NUMBER, "the profiler's estimate of what the change would gain"),
}
STALLS: Mapping[str, tuple[type[pl.DataType], str]] = {
    "id": (_COUNT, "row of `launches`"),
    "reason": (_TEXT, "what warps waited for"),
    "cycles": (_NUMBER, "cycles of a warp between two of its instructions"),
}


@dataclass(frozen=True)
class KernelProfile:
    """Launches, what the profiler's rules say of them, and what their warps waited for."""

    paths: tuple[Path, ...]
    launches: pl.DataFrame
    rules: pl.DataFrame
    stalls: pl.DataFrame
    notes: tuple[str, ...] = ()  # what reading had to assume or leave out

    @property
    def height(self) -> int:
        """How many launches were measured."""
        return self.launches.height


def frame(
    columns: Mapping[str, tuple[type[pl.DataType], str]], rows: Sequence[Mapping[str, object]]
) -> pl.DataFrame:
    """Rows as a table of these columns; what a row does not name is null."""
    return pl.DataFrame(
        [[row.get(name) for name in columns] for row in rows],
        schema={name: dtype for name, (dtype, _) in columns.items()},
        orient="row",
        strict=False,
    )


def together(profiles: Sequence[KernelProfile]) -> KernelProfile:
    """Several profiles as one; pages of the same report complete each other, so that no launch counts twice."""
    # The raw page first: it has more digits than the details page, and what warps waited for.
    joined, *others = sorted(profiles, key=lambda profile: profile.stalls.is_empty())
    for other in others:
        joined = _two(joined, other)
    return joined


_SAME = (
    "launch",
    "process",
    "kernel",
    "grid_x",
    "grid_y",
    "grid_z",
    "block_x",
    "block_y",
    "block_z",
    "device",
)


def _two(first: KernelProfile, second: KernelProfile) -> KernelProfile:
    """The launches of both; those that both have once, with what either knows."""
    seen = {row: number for number, row in enumerate(first.launches.select(_SAME).iter_rows())}
    numbers: dict[int, int] = {}
    added: list[dict[str, object]] = []
    launches = first.launches.to_dicts()
    for row in second.launches.to_dicts():
        known = seen.get(tuple(row[name] for name in _SAME))
        if known is None:
            known = len(launches) + len(added)
            added.append(row)
        else:
            kept = launches[known]
            launches[known] = {
                name: value if value is not None else row[name] for name, value in kept.items()
            }
        numbers[row["id"]] = known
    moved = {"rules": second.rules, "stalls": second.stalls}
    tables = {
        name: pl.concat((getattr(first, name), _renumbered(table, numbers))).unique(maintain_order=True)
        for name, table in moved.items()
    }
    every = [{**row, "id": number} for number, row in enumerate((*launches, *added))]
    stalls = tables["stalls"].unique(("id", "reason"), keep="first", maintain_order=True)
    return replace(
        first,
        paths=tuple(dict.fromkeys((*first.paths, *second.paths))),
        launches=frame(LAUNCHES, every),
        rules=tables["rules"],
        stalls=stalls,
        notes=tuple(dict.fromkeys((*first.notes, *second.notes))),
    )


def _renumbered(table: pl.DataFrame, numbers: Mapping[int, int]) -> pl.DataFrame:
    ids = [numbers[each] for each in table["id"]]
    return table.with_columns(id=pl.Series(ids, dtype=_COUNT))
