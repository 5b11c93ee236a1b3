"""host-collectives: ranks with GPUs that communicate through the host are told to use NCCL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import foretrace
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.rules.ranks.host_collectives import host_collectives
from foretrace.trace import Trace
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.loops import H200, findings, launches, loop

MIB = 1 << 20
GROUP = {"backend": "gloo", "rank": 0, "world_size": 2, "pg_config": [{"pg_name": "0", "pg_size": 2}]}


def sending(folder: Path, *, devices: int, backend: str = "gloo", sending_us: float = 4_000) -> Trace:
    """Steps of 5 ms: 0.5 ms of launches, 4 MiB of fp32 summed over two ranks on a thread of the host, 0.5 ms of launches."""
    recording = Recording(
        deviceProperties=[{**H200, "id": number} for number in range(devices)], distributedInfo=GROUP
    )
    for number in range(3):
        at = 5_000 * number
        recording.step(number, at, at + 5_000)
        launches(recording, at, 50)
        sizes: dict[str, Any] = {"Input Dims": [[MIB]], "Input type": ["float"]}
        recording.add("user_annotation", f"{backend}:all_reduce", at + 500, sending_us, 100, 200, **sizes)
        launches(recording, at + 4_510, 49)
    return recording.open(folder)


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_gloo_on_gpus_is_told_to_use_nccl(tmp_path: Path, backend: str) -> None:
    (found,) = findings(host_collectives, sending(tmp_path, devices=8, backend=backend), step_us=5_000)
    assert 'init_process_group("nccl")' in found.fix.code
    assert found.label == "nccl"
    assert found.evidence["exposed_ns"] == pytest.approx(4_000_000, rel=0.01)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"  # waiting for a slower rank counts as transfer
    # 4 MiB over PCIe take 83 µs, and 990 of launching as recorded take less without a profiler.
    assert 500 + 83 < found.predicted.after_ns.point / 1e3 < 990 + 83


def test_ranks_that_may_share_a_gpu_get_no_prediction_for_nccl(tmp_path: Path) -> None:
    """Half of the bytes save half of the 4 ms, of which half is likely."""
    (found,) = findings(host_collectives, sending(tmp_path, devices=1), step_us=5_000)
    assert "if the ranks share it" in found.says
    assert 'init_process_group("nccl")' in found.fix.code
    assert "sent in bf16" in found.predicted.basis  # type: ignore[union-attr]
    assert (found.label, found.alternatives, found.at_best) == ("bf16", (), 0.0)
    assert found.predicted is not None
    assert found.predicted.verdict == "uncertain"
    # A quarter of the messages goes: of 4,000 µs as recorded, of all 5,000 if launching cost nothing without a profiler.
    assert 5_000 / 4_000 <= found.predicted.speedup.point <= 5_000 / 3_750


@pytest.mark.slow
def test_no_larger_buckets_are_advised(tmp_path: Path) -> None:
    found = diagnose(Case(sending(tmp_path, devices=8), step_ns=5e6), RULES)
    about = [
        finding
        for finding in found.findings
        if finding.rule.startswith(("host-coll", "slow", "exposed-comm"))
    ]
    assert [finding.rule for finding in about] == ["host-collectives"]
    assert not any("bucket_cap_mb" in finding.fix.code for finding in found.findings)


def test_a_short_collective_is_seen_and_no_finding(tmp_path: Path) -> None:
    found = diagnose(Case(sending(tmp_path, devices=8, sending_us=200), step_ns=5e6), (host_collectives,))
    assert found.findings == ()
    assert [seen.rule for seen in found.seen] == ["host-collectives"]
    assert "3.98 % of the step" in found.seen[0].says


def test_collectives_on_the_gpu_and_no_collectives(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.launch(at, "ncclDevKernel_AllReduce_Sum_f32_RING_LL()", at + 10, at + 900)

    assert findings(host_collectives, loop(tmp_path, 1_000, body), step_us=1_000) == []
    plain = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(host_collectives, plain) == []


@needs_corpus
def test_a_recording_of_gloo_on_gpus() -> None:
    trace = foretrace.open(CORPUS / "other" / "multirank_gloo" / "rank0.json.gz")
    found = diagnose(Case(trace), RULES).findings
    assert found[0].rule == "host-collectives"
    assert "nccl" in found[0].fix.code
    assert not any("bucket_cap_mb" in finding.fix.code for finding in found)
