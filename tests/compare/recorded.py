"""Recordings and Runs made by hand, to be compared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.builders import Recording

GEMM = "ampere_sgemm_128x64_tn"
ADD = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>(int)"
LOADING = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
STEP_US = 2_000.0


def steps(
    gemms: Sequence[float] = (1_000.0,) * 3,
    *,
    adds: int = 1,
    loading: float = 0.0,
    rows: int = 64,
    device: str = "GPU",
) -> Recording:
    """Steps of 2 ms and what the loader takes: a product of so many microseconds in each, and additions of 100.

    The host waits for the loader, then 90 us in nothing recorded; a call of 10 us launches the product, which starts at once.
    """
    made = Recording(deviceProperties=[{"id": 0, "name": device}])
    at = 0.0
    for number, gemm in enumerate(gemms):
        end = at + loading + STEP_US
        made.step(number, at, end)
        if loading:
            made.annotation(LOADING, at, at + loading)
        begin = at + loading + 90
        shapes = {"Input Dims": [[rows, 64], [64, 64]], "Input type": ["float", "float"]}
        made.op("aten::mm", begin - 5, begin + 15, **{"External id": 10 * number + 1}, **shapes)
        made.launch(begin, GEMM, begin + 10, begin + 10 + gemm, call=10)
        done = begin + 10 + gemm
        for add in range(adds):
            identity = {"External id": 10 * number + 2 + add, "Input Dims": [[rows, 64], [rows, 64]]}
            made.op("aten::add", begin + 20 + 10 * add, begin + 28 + 10 * add, **identity)
            made.launch(begin + 22 + 10 * add, ADD, done, done + 100, call=4)
            done += 100
        at = end
    return made


def run_folder(folder: Path, made: Recording, blocks_ms: Sequence[float], **facts: Any) -> Path:
    """A Run as `foretrace run` writes it, with these times of unprofiled blocks."""
    rank = folder / "rank0"
    rank.mkdir(parents=True)
    made.write(rank, "light.json")
    middle = sorted(blocks_ms)[len(blocks_ms) // 2]
    (folder / "run.json").write_text(json.dumps({"schema": 1, "status": "complete"}))
    known = {
        "schema": 1,
        "command": ["python", "train.py"],
        "unprofiled": {"median_ns": middle * 1e6, "blocks_ns": [block * 1e6 for block in blocks_ms]},
        "passes": [{"kind": "light", "file": "light.json"}],
        **facts,
    }
    (rank / "rank.json").write_text(json.dumps(known))
    return folder
