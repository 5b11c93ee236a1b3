"""What rocprofv3's three outputs (database, CSV, JSON) have in common: GPU agents, kernels, copies and calls as rows.

The grid is counted in work-items there: blocks are the grid divided by the workgroup.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from foretrace.ingest import amd_occupancy
from foretrace.ingest.span_tables import ARGS, DEVICE

# Columns of a kernel as the three outputs tell it, beside those of a span.
KERNEL: dict[str, Any] = {
    **dict.fromkeys(("process", "start_ns", "end_ns", "correlation", "row", "device", "stream"), pl.Int64),
    "name": pl.String,
    **{f"{what}_{axis}": pl.Int64 for what in ("items", "block") for axis in "xyz"},
    **dict.fromkeys(("shared_bytes", "scratch_bytes", "vgpr", "accum_vgpr", "sgpr", "graph_id", "graph_node_id"), pl.Int64),
}  # fmt: skip
_COPY = re.compile(r"(?P<source>HOST|DEVICE)_TO_(?P<target>HOST|DEVICE)")
_KEPT_AS_ARGUMENTS = {
    "vgpr": "VGPRs", "accum_vgpr": "accumulation VGPRs", "sgpr": "SGPRs", "scratch_bytes": "scratch bytes",
}  # fmt: skip
_LARGEST = 2**31 - 1


def gpu(device: int, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Properties of an agent under the names that Kineto gives them; what is not told is left out."""
    arch = str(facts.get("name") or "")
    name = next(
        (text for key in ("product_name", "model_name", "name") if (text := _told(facts.get(key)))), None
    )
    waves, simds, lanes = (
        _number(facts.get(key)) for key in ("max_waves_per_simd", "simd_per_cu", "wave_front_size")
    )
    lds = _number(facts.get("lds_size_in_kb"))
    found = {
        "id": device,
        "name": name,
        "gcnArchName": arch or None,
        "numSms": _number(facts.get("cu_count")),
        "totalGlobalMem": _number(facts.get("memory_bytes")),
        "warpSize": lanes,
        "maxThreadsPerMultiprocessor": waves * simds * lanes if waves and simds and lanes else None,
        "maxSharedMemoryPerMultiProcessor": lds * 1024 if lds else None,
    }
    return {key: value for key, value in found.items() if value is not None}


def _told(value: object) -> str | None:
    return value.strip() if isinstance(value, str) and value.strip() not in ("", "ip discovery") else None


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**62 else None


def kernels(rows: pl.DataFrame, devices: Sequence[Mapping[str, Any]]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Rows of KERNEL as device work, with blocks and occupancy where they are told, and what has no column as arguments."""
    sizes = [f"{what}_{axis}" for what in ("items", "block") for axis in "xyz"]
    rows = rows.with_columns(
        pl.when(pl.col(name).is_between(1, _LARGEST)).then(name).alias(name) for name in sizes
    ).with_columns(
        ((pl.col(f"items_{axis}") + pl.col(f"block_{axis}") - 1) // pl.col(f"block_{axis}")).alias(
            f"grid_{axis}"
        )
        for axis in "xyz"
    )
    limits = {
        "vgpr": 2**16,
        "accum_vgpr": 2**16,
        "sgpr": 2**16,
        "shared_bytes": 2**40,
        "scratch_bytes": 2**40,
    }
    rows = rows.with_columns(
        pl.when(pl.col(name).is_between(0, limit)).then(name).alias(name) for name, limit in limits.items()
    )
    parts = [_on_device(part, devices) for part in rows.partition_by("device", maintain_order=True)] or [
        _on_device(rows, devices)
    ]
    made = pl.concat(parts)
    args = [
        made.filter(pl.col(column).is_not_null()).select("row", key=pl.lit(key), int=column)
        for column, key in _KEPT_AS_ARGUMENTS.items()
    ]
    told = pl.concat([pl.DataFrame(schema=ARGS), *args], how="diagonal_relaxed")
    return _as_device(made.with_columns(kind=pl.lit("kernel"))), told


def _on_device(rows: pl.DataFrame, devices: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Rows of one device with what depends on it."""
    number = rows["device"][0] if rows.height else None
    facts = next((each for each in devices if each.get("id") == number), {})
    units, arch = facts.get("numSms"), amd_occupancy.architecture(facts)
    # As numbers of floating point: a product of three extents may have more than 64 bits.
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
    waves = (threads / amd_occupancy.WAVE_LANES).ceil()
    per_unit = blocks / units if units else pl.lit(None, pl.Float64)
    possible = threads <= 1024  # more is no workgroup of any AMD GPU
    rows = rows.with_columns(blocks_per_sm=per_unit, warps_per_sm=per_unit * waves)
    estimate = pl.when(possible).then(amd_occupancy.occupancy_pct(arch))
    return rows.with_columns(
        occupancy_pct=estimate, registers=pl.col("vgpr") + pl.col("accum_vgpr").fill_null(0)
    )


def copies(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows with `name`, `size_bytes`, times and a device as device work; the name tells the direction."""
    directions = {name: direction_of(name) for name in rows["name"].drop_nulls().unique().to_list()}
    told = pl.col("name").replace_strict(directions, default=None, return_dtype=pl.String)
    return _as_device(rows.with_columns(kind=pl.lit("copy"), direction=told))


def direction_of(name: str) -> str | None:
    """HtoD and the like from MEMORY_COPY_HOST_TO_DEVICE; null where it is not told."""
    match = _COPY.search(name.upper())
    return f"{match['source'][0]}to{match['target'][0]}" if match else None


def _as_device(rows: pl.DataFrame) -> pl.DataFrame:
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in DEVICE.items() if name not in rows.columns]
    return rows.with_columns(absent).select(
        pl.col(name).cast(dtype, strict=False) for name, dtype in DEVICE.items()
    )
