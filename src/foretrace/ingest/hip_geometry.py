"""Launch geometry and sizes in recordings of ROCm, where Kineto keeps them at the call and not always at the work.

Grids of `hipExtModuleLaunchKernel`, which starts rocBLAS's and hipBLASLt's kernels, are recorded in work-items: blocks are
these divided by the block. What a call says of shared memory is the dynamic part alone, and so not taken. (280 tiles of 256 x 128 fill an output of 8,944 x 1,024; recorded are 71,680, in blocks of 256.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from foretrace import schema

_IN_WORK_ITEMS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")
_AXES = "xyz"
_LARGEST = 2**31 - 1


def completed(
    frames: dict[str, pl.DataFrame], devices: Sequence[Mapping[str, Any]]
) -> dict[str, pl.DataFrame]:
    """The tables with grids in blocks, blocks per unit, and sizes of copies; unchanged where no call of HIP was recorded."""
    spans = frames["spans"]
    named = spans.filter(pl.col("kind") == "runtime")["name"].unique()
    named = named.filter(named.cast(pl.String).str.starts_with("hip"))
    if named.is_empty():
        return frames
    calls = spans.filter((pl.col("kind") == "runtime") & pl.col("name").is_in(named.implode()))
    told = _told(frames["args"], calls)
    kernels = _with_blocks(_joined(frames["kernels"], spans, told))
    kernels = _per_unit(kernels, spans, frames["tracks"], devices)
    copies = _joined(frames["copies"], spans, told)
    copies = copies.with_columns(size_bytes=pl.coalesce("size_bytes", "call_bytes"))
    return {**frames, "kernels": _typed("kernels", kernels), "copies": _typed("copies", copies)}


def _typed(name: str, table: pl.DataFrame) -> pl.DataFrame:
    return table.select(pl.col(column).cast(dtype) for column, dtype in schema.polars_schema(name).items())


def _told(args: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """What calls say of the work that they start: one row per call."""
    own = args.join(calls.select(span_id="id"), on="span_id", how="semi").with_columns(
        pl.col("key").cast(pl.String)
    )
    rows = calls.select(launch_id="id", call=pl.col("name").cast(pl.String))
    for key, prefix in (("grid", "call_grid"), ("block", "call_block")):
        texts = own.filter(pl.col("key") == key).select(
            launch_id="span_id", text=pl.col("text").cast(pl.String)
        )
        known = {text: _triple(text) for text in texts["text"].drop_nulls().unique().to_list()}
        for place, axis in enumerate(_AXES):
            values = {text: extents[place] for text, extents in known.items() if extents}
            extent = pl.col("text").replace_strict(values, default=None, return_dtype=pl.Int64)
            rows = rows.join(
                texts.select("launch_id", extent.alias(f"{prefix}_{axis}")), on="launch_id", how="left"
            )
    number = pl.coalesce("int", pl.col("text").cast(pl.String).cast(pl.Int64, strict=False))
    sizes = own.filter(pl.col("key").is_in(("bytes", "size"))).select(launch_id="span_id", call_bytes=number)
    sizes = sizes.filter(pl.col("call_bytes") >= 0).unique("launch_id", keep="first", maintain_order=True)
    return rows.join(sizes, on="launch_id", how="left")


def _triple(text: str) -> tuple[int, int, int] | None:
    """Three extents from their JSON."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    sound = (
        isinstance(found, list)
        and len(found) == 3
        and all(type(each) is int and 0 < each <= _LARGEST for each in found)
    )
    return (found[0], found[1], found[2]) if sound else None


def _joined(table: pl.DataFrame, spans: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    """Rows of device work with what their call says."""
    launches = spans["launch_id"].gather(table["span_id"])
    return table.with_columns(launch_id=launches).join(
        told, on="launch_id", how="left", maintain_order="left"
    )


def _with_blocks(kernels: pl.DataFrame) -> pl.DataFrame:
    known = [
        pl.coalesce(f"{what}_{axis}", f"call_{what}_{axis}").cast(pl.Int64).alias(f"{what}_{axis}")
        for what in ("grid", "block")
        for axis in _AXES
    ]
    kernels = kernels.with_columns(*known)
    in_items = pl.col("call").is_in(_IN_WORK_ITEMS).fill_null(value=False)
    blocks = [
        pl.when(in_items & (pl.col(f"block_{axis}") > 0))
        .then((pl.col(f"grid_{axis}") + pl.col(f"block_{axis}") - 1) // pl.col(f"block_{axis}"))
        .otherwise(f"grid_{axis}")
        .alias(f"grid_{axis}")
        for axis in _AXES
    ]
    return kernels.with_columns(blocks)


def _per_unit(
    kernels: pl.DataFrame, spans: pl.DataFrame, tracks: pl.DataFrame, devices: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """Blocks and waves of each kernel over the compute units of its device, where they are not recorded."""
    device = tracks["device"].gather(spans["track_id"].gather(kernels["span_id"]))
    facts = {
        number: _units(each)
        for place, each in enumerate(devices)
        if (number := each.get("id", place)) is not None
    }
    if len(devices) == 1:  # with HIP_VISIBLE_DEVICES the work is under another number
        facts = dict.fromkeys(device.drop_nulls().unique().to_list(), _units(devices[0]))
    whole = {number: found for number, found in facts.items() if isinstance(number, int) and found}
    units = device.replace_strict(
        {number: found[0] for number, found in whole.items()}, default=None, return_dtype=pl.Float64
    )
    lanes = device.replace_strict(
        {number: found[1] for number, found in whole.items()}, default=None, return_dtype=pl.Float64
    )
    blocks = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z")
    threads = pl.col("block_x").cast(pl.Float64) * pl.col("block_y") * pl.col("block_z")
    per_unit = blocks / units
    return kernels.with_columns(
        blocks_per_sm=pl.coalesce("blocks_per_sm", per_unit),
        warps_per_sm=pl.coalesce("warps_per_sm", per_unit * (threads / lanes).ceil()),
    )


def _units(device: Mapping[str, Any]) -> tuple[int, int] | None:
    """Compute units and lanes of a wave, where both are sound."""
    units, lanes = device.get("numSms", device.get("multiProcessorCount")), device.get("warpSize", 64)
    sound = isinstance(units, int) and isinstance(lanes, int) and 0 < units < 2**20 and 0 < lanes <= 1024
    return (units, lanes) if sound else None
