"""Occupancy on CDNA, against what AMD's profiler measured and AMD's own table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from foretrace.ingest.amd_occupancy import occupancy_pct

FULL = 1e6  # blocks for each compute unit: the grid does not limit


def estimate(arch: str = "gfx90a", **launched: int | float | None) -> float | None:
    row: dict[str, int | float | None] = {
        "vgpr": 32, "accum_vgpr": 0, "sgpr": 32, "shared_bytes": 0, "block_x": 256, "block_y": 1, "block_z": 1,
        "blocks_per_sm": FULL, **launched,
    }  # fmt: skip
    types = {name: pl.Float64 if name == "blocks_per_sm" else pl.Int64 for name in row}
    value = pl.DataFrame([row], schema=types).select(occupancy_pct(arch)).item()
    return None if value is None else float(value)


@pytest.mark.parametrize(("launched", "measured"), [
    ({"vgpr": 124, "accum_vgpr": 4, "sgpr": 80}, 49.92),
    ({"vgpr": 96, "sgpr": 80, "shared_bytes": 65536}, 12.49),
    ({"vgpr": 64, "sgpr": 80, "block_x": 1024}, 98.91),
])  # fmt: skip
def test_what_amd_measured_on_an_mi250(launched: dict[str, Any], measured: float) -> None:
    """Wavefront occupancy of the kernels in rocprof-compute's "Occupancy limiters example"."""
    assert estimate(**launched) == pytest.approx(measured, abs=1.2)


@pytest.mark.parametrize(("vgprs", "waves"), [
    (64, 8), (72, 7), (80, 6), (96, 5), (128, 4), (168, 3), (256, 2), (257, 1), (512, 1),
])  # fmt: skip
def test_waves_by_registers(vgprs: int, waves: int) -> None:
    """The table in AMD's "Register pressure in AMD CDNA2 GPUs"; workgroups of one wave, so that nothing is rounded."""
    assert estimate(vgpr=vgprs, block_x=64) == pytest.approx(100 * waves / 8)


def test_a_small_grid_fills_less() -> None:
    """Half a block of four waves for each unit: 2 of 32 waves."""
    assert estimate(blocks_per_sm=0.5) == pytest.approx(100 * 2 / 32)


def test_more_lds_on_gfx950() -> None:
    """Two workgroups of 80 KiB fit into 160 KiB; into 64 KiB none does."""
    assert estimate("gfx950", shared_bytes=80 << 10) == pytest.approx(100 * 8 / 32)
    assert estimate("gfx942", shared_bytes=80 << 10) is None


def test_what_is_not_known_is_null() -> None:
    assert estimate("gfx1100") is None  # RDNA, whose waves are others
    assert estimate("") is None
    assert estimate(vgpr=None) is None
    assert estimate(blocks_per_sm=None) is None
