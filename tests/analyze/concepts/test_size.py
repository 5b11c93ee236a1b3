"""A large recording is told how to become smaller."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.analyze.concepts.trust.evidence import Evidence
from foretrace.analyze.concepts.trust.size import LARGE_BYTES, _ways
from foretrace.analyze.trust import judge
from tests.builders import PROCESS, Recording


def recording(*, steps: int = 2, python: int = 0, memory: int = 0) -> Recording:
    made = Recording()
    for number in range(steps):
        at = 1_000 * number
        made.step(number, at, at + 900).op("aten::mm", at + 1, at + 50).launch(at + 2, "k", at + 10, at + 60)
        for call in range(python):
            made.python(f"model.py({call}): forward", at + 100 + call, at + 100.5 + call)
        for block in range(memory):
            args = {"Device Type": 1, "Device Id": 0, "Addr": 64 + block, "Bytes": 512}
            made.events.append(
                {"ph": "i", "name": "[memory]", "pid": PROCESS, "tid": PROCESS, "ts": at + 100 + block, "s": "t", "args": args}
            )  # fmt: skip
    return made


def note(made: Recording, folder: Path, events: int) -> str | None:
    """What is said of the recording, were it one with so many events."""
    trace = made.open(folder)
    trace.meta = {**trace.meta, "events": events}
    return next((note.says for note in judge(trace).notes if note.code == "large"), None)


def test_a_small_recording_is_left_alone(tmp_path: Path) -> None:
    assert note(recording(), tmp_path, 1_000) is None


def test_what_would_make_it_smaller_in_order(tmp_path: Path) -> None:
    says = note(recording(steps=20), tmp_path, 1_000_000)
    assert says is not None
    assert "1,000,000 events, about 286 MiB of text" in says
    assert says.index("fewer steps (20 steps recorded, 3 show their spread)") < says.index("a smaller batch")
    assert "with_stack" not in says  # nothing of it was recorded
    assert says.index("a smaller batch") < says.index("fewer layers")


@pytest.mark.parametrize(("python", "memory", "switch"), [(400, 0, "with_stack=False, 80 %"), (0, 400, "profile_memory=False, 80 %")])  # fmt: skip
def test_the_switch_that_costs_most_is_named_with_its_share(
    tmp_path: Path, python: int, memory: int, switch: str
) -> None:
    """Of 1,000 events 800 are Python calls, or blocks that were taken."""
    made = recording(steps=2, python=python, memory=memory)
    trace = made.open(tmp_path)
    assert any(way.startswith(switch) for way in _ways(Evidence(trace), 1_000))


def test_it_is_only_good_to_know(tmp_path: Path) -> None:
    trace = recording().open(tmp_path)
    trace.meta = {**trace.meta, "events": LARGE_BYTES // 300 + 1}
    (found,) = (note for note in judge(trace).notes if note.code == "large")
    assert found.severity == "info"
