"""Occupancy of a kernel on AMD's CDNA, estimated from what it was launched with: registers, LDS, workgroup and grid.

As Kineto's estimate for NVIDIA: the workgroups that fit on a compute unit, or the share of the grid where that is less,
times their waves, of all waves that it can hold. Sources: the table of waves by VGPRs in "Register pressure in AMD CDNA2
GPUs" (https://gpuopen.com/learn/amd-lab-notes/amd-lab-notes-register-pressure-readme), and for allocation granules, SGPRs
and the workgroups of a compute unit LLVM's lib/Target/AMDGPU/Utils/AMDGPUBaseInfo.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

WAVE_LANES = 64
_SGPRS, _SGPR_GRANULE, _MOST_SGPRS = 800, 16, 112  # of a SIMD; of a wave
_BARRIERS = 16  # workgroups of more than one wave on a compute unit


@dataclass(frozen=True)
class _Registers:
    """The vector registers of a SIMD, by lane."""

    count: int
    granule: int
    unified: bool  # accumulation registers come out of the same file


_CDNA2 = _Registers(512, 8, unified=True)
_FILES = {
    "gfx908": _Registers(256, 4, unified=False),
    "gfx90a": _CDNA2, "gfx940": _CDNA2, "gfx941": _CDNA2, "gfx942": _CDNA2, "gfx950": _CDNA2,
}  # fmt: skip
_WAVES = {"gfx908": 10}  # of a SIMD; the others hold 8
_LDS_BYTES = {"gfx950": 160 << 10}  # of a compute unit; the others have 64 KiB
_LDS_GRANULE = {"gfx950": 1280}  # the others: 512
_SIMDS = 4

# What `occupancy` reads; null where it was not recorded.
COLUMNS = ("vgpr", "accum_vgpr", "sgpr", "shared_bytes", "block_x", "block_y", "block_z", "blocks_per_sm")


def architecture(device: Mapping[str, Any]) -> str:
    """The gfx name of a device, without its features ("gfx90a:sramecc+")."""
    return str(device.get("gcnArchName") or "").partition(":")[0]


def occupancy_pct(arch: str) -> pl.Expr:
    """The estimate for rows with `COLUMNS`; null where the architecture or what it needs is not known."""
    file = _FILES.get(arch)
    if file is None:
        return pl.lit(None, pl.Float64)
    most = _WAVES.get(arch, 8)
    plain, accumulating = pl.col("vgpr"), pl.col("accum_vgpr").fill_null(0)
    total = plain + accumulating if file.unified else pl.max_horizontal(plain, accumulating)
    by_vgprs = file.count // _aligned(total.clip(1), file.granule)
    sgprs = _aligned(pl.col("sgpr").fill_null(0).clip(1, _MOST_SGPRS), _SGPR_GRANULE)
    waves = pl.min_horizontal(pl.lit(most), by_vgprs, _SGPRS // sgprs) * _SIMDS
    threads = pl.col("block_x") * pl.col("block_y") * pl.col("block_z")
    waves_of_block = (threads + WAVE_LANES - 1) // WAVE_LANES
    lds = _aligned(pl.col("shared_bytes").fill_null(0).clip(0), _LDS_GRANULE.get(arch, 512))
    by_lds = pl.when(lds > 0).then(_LDS_BYTES.get(arch, 64 << 10) // lds.clip(1))
    by_barriers = pl.when(waves_of_block > 1).then(_BARRIERS)
    fitting = pl.min_horizontal(waves // waves_of_block, by_lds, by_barriers)
    active = pl.min_horizontal(fitting.cast(pl.Float64), pl.col("blocks_per_sm"))
    known = (
        plain.is_not_null()
        & (plain >= 0)
        & (threads > 0)
        & pl.col("blocks_per_sm").is_not_null()
        & (fitting > 0)
    )
    return pl.when(known).then(100 * active * waves_of_block / (most * _SIMDS))


def _aligned(value: pl.Expr, granule: int) -> pl.Expr:
    return (value + granule - 1) // granule * granule
