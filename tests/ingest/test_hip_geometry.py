"""Recordings of ROCm: geometry that stands at the call, grids in work-items, sizes of copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace import analyze
from foretrace.ingest import open_trace
from foretrace.trace import Trace
from tests.corpus import CORPUS, needs_corpus
from tests.ingest.comparison import READERS

DEVICE = {"id": 0, "name": "AMD Instinct MI210", "totalGlobalMem": 64 << 30, "numSms": 104, "warpSize": 64}


def event(cat: str, name: str, ts: float, dur: float, pid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": pid, "ts": ts, "dur": dur, "args": args}


def opened(folder: Path, reader: str, *events: dict[str, Any]) -> Trace:
    path = folder / "trace.json"
    path.write_text(
        json.dumps({"schemaVersion": 1, "deviceProperties": [DEVICE], "traceEvents": list(events)})
    )
    return open_trace(path, cache=False, reader=reader)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("call", "grid"), [("hipLaunchKernel", [512, 1, 1]), ("hipExtModuleLaunchKernel", [2, 1, 1])]
)
@pytest.mark.parametrize("where", ["call", "kernel"])
def test_grids_are_blocks(call: str, grid: list[int], where: str, reader: str, tmp_path: Path) -> None:
    """512 blocks of 256, or 512 work-items in blocks of 256; recorded with the call or with the kernel."""
    told = {"grid": [512, 1, 1], "block": [256, 1, 1]}
    trace = opened(
        tmp_path, reader,
        event("cuda_runtime", call, 0, 5, 100, correlation=7, **(told if where == "call" else {})),
        event("kernel", "k", 10, 20, 0, correlation=7, device=0, stream=0, **(told if where == "kernel" else {})),
    )  # fmt: skip
    (row,) = trace.kernels.iter_rows(named=True)
    assert [row[f"grid_{axis}"] for axis in "xyz"] == grid
    assert row["blocks_per_sm"] == pytest.approx(grid[0] / 104)
    assert row["warps_per_sm"] == pytest.approx(grid[0] * 4 / 104)
    assert row["occupancy_pct"] is None


@pytest.mark.parametrize("reader", READERS)
def test_a_copy_has_the_size_that_its_call_was_asked_for(reader: str, tmp_path: Path) -> None:
    trace = opened(
        tmp_path, reader,
        event("cuda_runtime", "hipMemcpyWithStream", 0, 5, 100, correlation=7, size="2560", kind="1"),
        event("gpu_memcpy", "Memcpy HtoD (Host -> Device)", 10, 20, 0, correlation=7, device=0, stream=0),
    )  # fmt: skip
    assert trace.copies["size_bytes"].to_list() == [2560]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("grid", ["x", [1, 2], [0, 1, 1], [1, 1, 2**40], None, 5])
def test_a_grid_that_is_none_stays_unknown(grid: Any, reader: str, tmp_path: Path) -> None:
    trace = opened(
        tmp_path, reader,
        event("cuda_runtime", "hipLaunchKernel", 0, 5, 100, correlation=7, grid=grid, block=[64, 1, 1]),
        event("kernel", "k", 10, 20, 0, correlation=7, device=0, stream=0),
    )  # fmt: skip
    assert trace.kernels["grid_x"].to_list() == [None]
    assert trace.kernels["blocks_per_sm"].to_list() == [None]


def test_missing_occupancy_is_said(tmp_path: Path) -> None:
    trace = opened(
        tmp_path, "python",
        event("cuda_runtime", "hipLaunchKernel", 0, 5, 100, correlation=7, grid=[8, 1, 1], block=[64, 1, 1]),
        event("kernel", "k", 10, 20, 0, correlation=7, device=0, stream=0),
    )  # fmt: skip
    for name in ("overview", "gpu-efficiency"):
        assert any("no occupancy recorded" in note for note in analyze.run(trace, name).notes), name


@needs_corpus
def test_products_of_an_mi300x_have_as_many_blocks_as_tiles() -> None:
    """8,944 x 1,024 in tiles of 256 x 128 are 35 x 8 blocks."""
    trace = open_trace(CORPUS / "peers" / "tracelens" / "mi300_qwen.json.gz", cache=False)
    rows = trace.kernel_spans.drop_nulls("launch_id")
    tiles = rows.filter(rows["name"].cast(str).str.contains("MT256x128"))
    assert set(tiles["grid_x"].to_list()) == {280}


@needs_corpus
def test_an_mi250_without_a_name_and_geometry_at_its_calls() -> None:
    trace = open_trace(
        CORPUS / "peers" / "hta" / "amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz", cache=False
    )
    assert trace.kernels["blocks_per_sm"].null_count() == 0
    assert trace.copies["size_bytes"].to_list() == [2560, 2560]
    assert not any("peaks of AMD" in note for note in analyze.run(trace, "gpu-efficiency").notes)
