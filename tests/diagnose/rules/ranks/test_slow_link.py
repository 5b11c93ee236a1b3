"""slow-link: messages that move slower than any link of the device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from foretrace.diagnose.rules.ranks.slow_link import slow_link
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import H200, findings, launches, loop

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MIB = 1 << 20


def sending(folder: Path, *times_us: float, ranks: int = 2, mib: int = 32, **header: Any) -> Trace:
    """A host far ahead: each step computes 2.7 ms, then sums so many MiB of fp32 over the ranks, in the time given for it."""
    recording = Recording(**{"deviceProperties": [H200], **header})
    begin = 100.0
    for number, time_us in enumerate(times_us):
        recording.step(number, 20 * number, 20 * number + 20)
        for part in range(10):
            recording.launch(
                20 * number + part / 4, "gemm", begin + 270 * part, begin + 270 * part + 269, call=0.1
            )
        sent = {"In msg nelems": mib * MIB // 4, "Out msg nelems": mib * MIB // 4, "Group size": ranks}
        about = {"Collective name": "allreduce", "dtype": "Float", "Process Group Name": "0", **sent}
        recording.launch(20 * number + 5, NCCL, begin + 2_700, begin + 2_700 + time_us, stream=20, **about)
        begin += 2_701 + time_us
    return recording.open(folder)


def test_a_link_of_1_4_gib_a_second_is_implausible(tmp_path: Path) -> None:
    """32 MiB in 22.3 ms between two ranks; over PCIe 5, at 80 % of 63 GB/s, they take 0.67 ms."""
    (found,) = findings(slow_link, sending(tmp_path, *[22_300] * 20), step_us=25_001)
    assert "move at 1.40 GiB/s at best, over the bus: implausibly slow" in found.says
    assert "PCIe moves 58.7 GiB/s here, NVLink 419 GiB/s" in found.says
    assert "NCCL_(P2P|SHM|IB)_DISABLE" in found.fix.code
    assert "NET/Socket between nodes is TCP" in found.fix.code
    assert found.evidence["best_bytes_per_s"] == pytest.approx(32 * MIB / 22.3e-3)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    assert found.predicted.after_ns.point / 1e6 == pytest.approx(2.7 + 0.67, rel=0.02)
    assert found.predicted.speedup.high > 25 / (2.7 + 0.1)  # NVLink
    assert "so this is a bound" in found.predicted.basis


def test_bus_bandwidth_counts_what_the_ranks_pass_on(tmp_path: Path) -> None:
    """Of 8 ranks each sends 2 * 7 / 8 of the message."""
    (found,) = findings(slow_link, sending(tmp_path, *[22_300] * 4, ranks=8), step_us=25_001)
    assert found.evidence["best_bytes_per_s"] == pytest.approx(1.75 * 32 * MIB / 22.3e-3)


def test_one_fast_message_shows_that_the_link_is_sound(tmp_path: Path) -> None:
    """The others then waited for a rank that was late."""
    assert findings(slow_link, sending(tmp_path, 22_300, 22_300, 1_000, 22_300), step_us=20_000) == []


@pytest.mark.slow
def test_too_few_or_small_messages_tell_nothing(tmp_path: Path) -> None:
    assert findings(slow_link, sending(tmp_path, 22_300, 22_300), step_us=25_001) == []
    small = sending(tmp_path, *[2_000] * 4, mib=0)
    assert findings(slow_link, small, step_us=4_701) == []


@pytest.mark.slow
def test_a_device_that_is_not_known(tmp_path: Path) -> None:
    """Even PCIe 3 moves 15.8 GB/s; a tenth of that is more than 1.4 GiB/s."""
    (found,) = findings(slow_link, sending(tmp_path, *[22_300] * 4, deviceProperties=[]), step_us=25_001)
    assert (
        "what this device's links move is not known, but PCIe 3 x16 alone moves 14.7 GiB/s"
        in found.says.replace("What", "what")
    )
    assert found.evidence["expected_bytes_per_s"] is None
    fast = sending(tmp_path, *[16_000] * 4, deviceProperties=[])  # 2.1 GB/s: slow, and possible
    assert findings(slow_link, fast, step_us=18_701) == []


def test_no_collective_no_finding(tmp_path: Path) -> None:
    assert findings(slow_link, Recording().op("aten::mm", 0, 10).open(tmp_path)) == []  # on the CPU alone
    assert (
        findings(slow_link, loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))) == []
    )
