"""Kernels with too few blocks for the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.low_occupancy import low_occupancy
from foretrace.errors import MissingDataError
from tests.diagnose.kernels import ADD, Op, device_bound
from tests.diagnose.loops import findings

FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>"


def kernel(blocks: int, dur: float, name: str = ADD) -> Op:
    geometry: dict[str, Any] = {"grid": [blocks, 1, 1], "block": [256, 1, 1], "blocks per SM": blocks / 132}
    return Op("aten::sum", name, dur, args=geometry)


def test_a_long_kernel_on_a_few_multiprocessors(tmp_path: Path) -> None:
    trace = device_bound(tmp_path, [kernel(16, 300), kernel(1320, 700)])
    (found,) = findings(low_occupancy, trace, step_us=1000)
    assert found.evidence["kernels_pct"] == pytest.approx(30, rel=0.01)
    assert found.predicted is None
    assert found.severity == "low"


@pytest.mark.parametrize(
    "ops",
    [
        [kernel(132, 1000)],  # one block each
        [kernel(16, 1000, FLASH)],  # attention keeps its blocks few by design
        [kernel(16, 5) for _ in range(20)],  # too short: a matter of launches
        [kernel(16, 50), kernel(1320, 1000)],  # too little to matter
    ],
)
def test_no_fault(tmp_path: Path, ops: list[Op]) -> None:
    assert findings(low_occupancy, device_bound(tmp_path, ops)) == []


def test_without_geometry_it_could_not_look(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="geometry"):
        list(low_occupancy(Case(device_bound(tmp_path, [Op("aten::sum", ADD, 100)]))))
