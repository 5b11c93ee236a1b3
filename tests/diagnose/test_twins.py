"""The same program on CUDA and on ROCm: findings and predictions do not depend on whose names its calls have."""

from __future__ import annotations

import copy
import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace import analyze
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.loops import H200, STEPS, launches

Events = dict[str, Any]
_TWINS = {
    "cuLaunchKernel": "hipModuleLaunchKernel", "cuLaunchKernelEx": "hipDrvLaunchKernelEx", "cudaMallocHost": "hipHostMalloc",
    "cudaFreeHost": "hipHostFree",
}  # fmt: skip


def renamed(recorded: Events) -> Events:
    """The recording with the names that HIP gives the same calls."""
    recorded = copy.deepcopy(recorded)
    for event in recorded["traceEvents"]:
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            name = event["name"]
            event["name"] = _TWINS.get(name, name.replace("cuda", "hip", 1))
    return recorded


def as_on_rocm(recorded: Events) -> Events:
    """The same as torch does it on ROCm: one call copies and waits, and the memory's kind is not told."""
    recorded = renamed(recorded)
    calls = [event for event in recorded["traceEvents"] if event.get("cat") == "cuda_runtime"]
    calls.sort(key=lambda event: float(event["ts"]))
    gone = set()
    for call, following in pairwise(calls):
        if (call["name"], following["name"]) == ("hipMemcpyAsync", "hipStreamSynchronize"):
            call["name"] = "hipMemcpyWithStream"
            call["dur"] = float(following["ts"]) + float(following["dur"]) - float(call["ts"])
            gone.add(id(following))
    recorded["traceEvents"] = [event for event in recorded["traceEvents"] if id(event) not in gone]
    for event in recorded["traceEvents"]:
        if event.get("cat") == "gpu_memcpy":
            event["name"] = event["name"].replace("Pageable", "Host").replace("Pinned", "Host")
    return recorded


def diagnosed(recorded: Events, path: Path, step_ns: float | None) -> Diagnosis:
    path.write_text(json.dumps(recorded))
    return diagnose(Case(foretrace.open(path, cache=False), step_ns=step_ns), RULES)


def in_numbers(diagnosis: Diagnosis) -> list[Any]:
    """All that is said, less the names of calls."""
    return [
        (
            finding.rule,
            finding.severity,
            finding.predicted and (finding.predicted.verdict, finding.predicted.speedup),
            {name: value for name, value in finding.evidence.items() if not isinstance(value, str)},
        )
        for finding in diagnosis.findings
    ]


def waiting_program() -> Recording:
    """Three steps of 1.5 ms: a kernel of 1 ms, `.item()`, and 50 launches that could run beside it."""
    recording = Recording(deviceProperties=[H200])
    for number in range(STEPS):
        at = number * 1_510.0
        recording.step(number, at, at + 1_510)
        recording.op("aten::mm", at, at + 10).launch(at + 5, "gemm", at + 10, at + 1_000, call=2)
        end = recording.item(at + 10)
        launches(recording, end, 50)
    return recording


@pytest.mark.slow
def test_renamed_calls_of_a_made_up_program(tmp_path: Path) -> None:
    recorded = json.loads(waiting_program().to_bytes())
    cuda = diagnosed(recorded, tmp_path / "cuda.json", 1.51e6)
    hip = diagnosed(renamed(recorded), tmp_path / "hip.json", 1.51e6)
    assert in_numbers(cuda) == in_numbers(hip)
    assert {finding.rule: finding for finding in cuda.findings}["host-sync"].predicted.verdict == "gain"  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_copy_that_waits_in_one_call(tmp_path: Path) -> None:
    """1,510 µs become 1,058: after the kernel of 990, the copy and its wait no longer hold up 500 of launching."""
    recorded = json.loads(waiting_program().to_bytes())
    speedups = []
    for path, program in (("cuda", recorded), ("rocm", as_on_rocm(recorded))):
        found = diagnosed(program, tmp_path / f"{path}.json", 1.51e6)
        (wait,) = [finding for finding in found.findings if finding.rule == "host-sync"]
        assert wait.predicted is not None
        assert wait.predicted.verdict == "gain"
        assert wait.evidence["calls_per_step_count"] == 1
        speedups.append(wait.predicted.speedup)
    cuda, rocm = speedups
    assert rocm.point == pytest.approx(cuda.point, rel=0.02)
    assert rocm.low == pytest.approx(cuda.low, rel=0.02)
    assert rocm.high == pytest.approx(cuda.high, rel=0.02)


@needs_corpus
@pytest.mark.parametrize("name", ["item_sync.slow", "pageable_h2d.slow"])
def test_renamed_calls_of_a_recording(name: str, tmp_path: Path) -> None:
    recorded = json.loads(gzip.decompress((CORPUS / "h200" / f"{name}.lite.json.gz").read_bytes()))
    step_ns = (
        1e6
        * json.loads((CORPUS / "h200" / f"{name.split('.')[0]}.truth.json").read_text())["slow"]["step_ms"]
    )
    cuda = diagnosed(recorded, tmp_path / "cuda.json", step_ns)
    hip = diagnosed(renamed(recorded), tmp_path / "hip.json", step_ns)
    assert in_numbers(cuda) == in_numbers(hip)
    assert cuda.checked == hip.checked
    rocm = diagnosed(as_on_rocm(recorded), tmp_path / "rocm.json", step_ns)
    points = {finding.rule: finding.predicted.speedup.point for finding in rocm.findings if finding.predicted}
    for finding in cuda.findings:
        if finding.predicted and finding.predicted.verdict == "gain":
            assert points[finding.rule] == pytest.approx(finding.predicted.speedup.point, rel=0.1)


def test_device_events_of_mtia_are_device_work(tmp_path: Path) -> None:
    """Kineto's ActivityType.h has MTIA_CCP_EVENTS as another name of kernels; whether it writes a stream is not known."""
    places: dict[str, dict[str, int]] = {"told": {"device": 0, "stream": 3}, "not told": {}}
    for name, args in places.items():
        recording = Recording()
        for number in range(2):
            at = number * 100.0
            recording.step(number, at, at + 100).op("aten::mm", at, at + 20)
            recording.add("mtia_runtime", "runFunction", at + 5, 2, 100, 100, correlation=number + 1)
            recording.add("mtia_ccp_events", "gemm", at + 20, 60, 0, 3, correlation=number + 1, **args)
        trace = recording.open(tmp_path, f"{name}.json")
        assert analyze.run(trace, "overview").values["busy_pct"] == pytest.approx(75), name  # 120 of 160
        assert analyze.run(trace, "kernels").values["total_ns"] == 120_000, name
        assert trace.device_spans["op_id"].null_count() == 0, name
