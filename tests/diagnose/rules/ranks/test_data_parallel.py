"""data-parallel: nn.DataParallel with several GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.ranks.data_parallel import data_parallel
from foretrace.trace import Trace
from tests.builders import Recording
from tests.diagnose.loops import findings, loop


def replicated(folder: Path, devices: int, *, mark: str = "DataParallel.forward") -> Trace:
    """Steps of 1 ms in which the first GPU works for 600 µs, and every other one for 200."""

    def body(recording: Recording, at: float) -> None:
        recording.annotation(mark, at, at + 700)
        for device in range(devices):
            start = at + 20 + device
            recording.launch(start, "gemm", start + 5, start + 5 + (200 if device else 600), device=device)

    return loop(folder, 1_000, body)


@pytest.mark.parametrize("devices", [2, 4])
def test_several_gpus_of_one_process(tmp_path: Path, devices: int) -> None:
    (found,) = findings(data_parallel, replicated(tmp_path, devices), step_us=1_000)
    assert "DistributedDataParallel(" in found.fix.code
    assert found.evidence["gpus_count"] == devices
    assert found.evidence["forwards_count"] == 3
    assert found.evidence["most_busy_pct"] > 2.5 * found.evidence["least_busy_pct"]
    assert found.predicted is None  # nothing is promised
    assert found.at_best == 0


def test_the_module_tells_it_too(tmp_path: Path) -> None:
    trace = replicated(tmp_path, 2, mark="nn.Module: DataParallel_0")
    assert len(findings(data_parallel, trace, step_us=1_000)) == 1


def test_one_gpu_is_seen_and_no_finding(tmp_path: Path) -> None:
    found = diagnose(Case(replicated(tmp_path, 1), step_ns=1e6), (data_parallel,))
    assert found.findings == ()
    assert [seen.says for seen in found.seen] == [
        "nn.DataParallel with 1 GPU at work: it wraps the model for nothing"
    ]


def test_distributed_data_parallel_is_another_thing(tmp_path: Path) -> None:
    trace = replicated(tmp_path, 2, mark="DistributedDataParallel.forward")
    assert findings(data_parallel, trace, step_us=1_000) == []
