"""low-utilisation: a GPU that is idle half of the time, and has room for a larger batch."""

from __future__ import annotations

from pathlib import Path

import pytest

import foretrace
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, diagnose
from foretrace.diagnose.rules.device.low_utilisation import low_utilisation
from foretrace.trace import Trace
from tests.builders import PROCESS, Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.loops import H200, launches, loop

DEVICE_BYTES = int(H200["totalGlobalMem"])


def program(folder: Path, *, busy_us: float, held: float | None = 0.2, blocks: float = 1.0) -> Trace:
    """Steps of 1 ms with 50 launches, whose kernels take this long together; this share of the memory is held."""

    def body(recording: Recording, at: float) -> None:
        launches(recording, at, 50, every=20, dur=busy_us / 50, **{"blocks per SM": blocks})
        if held is not None:
            args = {"Device Type": 1, "Device Id": 0, "Addr": 64, "Bytes": 1 << 20}
            total = {"Total Allocated": int(held * DEVICE_BYTES), "Total Reserved": int(held * DEVICE_BYTES)}
            recording.events.append(
                {"ph": "i", "name": "[memory]", "pid": PROCESS, "tid": PROCESS, "ts": at + 3, "s": "t",
                 "args": {**args, **total}}
            )  # fmt: skip

    return loop(folder, 1_000, body)


def looked_at(trace: Trace) -> Diagnosis:
    return diagnose(Case(trace, step_ns=1e6), (low_utilisation,))


def test_an_idle_gpu_with_room(tmp_path: Path) -> None:
    (found,) = looked_at(program(tmp_path, busy_us=300)).findings
    assert found.evidence["busy_pct"] == pytest.approx(30, abs=0.5)
    assert found.evidence["held_pct"] == pytest.approx(20, abs=0.1)
    assert "scale batch 2" in found.fix.code
    assert (found.predicted, found.at_best) == (None, 0.0)  # more items are other work: nothing is promised


def test_a_busy_gpu_is_no_finding(tmp_path: Path) -> None:
    found = looked_at(program(tmp_path, busy_us=600))
    assert (found.findings, found.seen, found.unchecked) == ((), (), ())


def test_without_room_it_is_seen_and_no_finding(tmp_path: Path) -> None:
    found = looked_at(program(tmp_path, busy_us=300, held=0.7))
    assert found.findings == ()
    assert [seen.says for seen in found.seen] == [
        "the GPU works 30 % of a step, but 70 % of its memory is held at the peak: no room for twice the items"
    ]


def test_without_memory_it_cannot_look(tmp_path: Path) -> None:
    found = looked_at(program(tmp_path, busy_us=300, held=None))
    assert found.findings == ()
    assert "profile_memory" in found.unchecked[0].why
    # Where the GPU is busy, memory does not matter.
    assert looked_at(program(tmp_path, busy_us=600, held=None)).unchecked == ()


def test_small_kernels_are_another_rules(tmp_path: Path) -> None:
    assert looked_at(program(tmp_path, busy_us=300, blocks=0.25)).findings == ()


def test_a_step_that_waits_for_its_input_needs_no_more_items(tmp_path: Path) -> None:
    def body(recording: Recording, at: float) -> None:
        recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 700)
        launches(recording, at + 700, 25)

    found = looked_at(loop(tmp_path, 1_000, body))
    assert found.findings == ()
    assert "waits for its input" in found.seen[0].says


@needs_corpus
@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tutorial_h100/dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz", True),
        ("kineto/resnet50_workers4.pt.trace.json.gz", False),
    ],
)
def test_as_the_tensorboard_plugin_recommends(name: str, found: bool) -> None:
    """Of these the last plugin recommends a larger batch for the first, at 13 % utilisation, and not for the second, at 70."""
    trace = foretrace.open(CORPUS / "peers" / name)
    assert bool(diagnose(Case(trace), (low_utilisation,)).findings) == found
