"""What a Run's two timings add to the trust report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.analyze.concepts.trust.evidence import Note
from foretrace.analyze.trust import judge
from foretrace.diagnose.opening import open_case
from tests.builders import Recording

CODES = ("warming-up", "slower-later", "faster-profiled", "busy-at-first", "waits-differ")


def notes(folder: Path, **facts: Any) -> list[Note]:
    """The notes on a Run's timings, as `diagnose` prints them."""
    rank = folder / "rank0"
    rank.mkdir()
    made = Recording()
    for number in range(3):
        made.step(number, 1000 + 100 * number, 1099 + 100 * number)
        made.op("aten::mm", 1001 + 100 * number, 1050 + 100 * number)
    made.write(rank, "light.json")
    passes = [{"kind": "light", "file": "light.json"}]
    (rank / "rank.json").write_text(json.dumps({"passes": passes, "status": "complete", **facts}))
    return [note for note in judge(open_case(folder).whole).notes if note.code in CODES]


def timings(verdict: str, first_ms: float, again_ms: float | None, **more: Any) -> dict[str, Any]:
    return {
        "timed_first": {"median_ns": first_ms * 1e6},
        "timed_again": {"median_ns": again_ms * 1e6} if again_ms else None,
        "settling": {"verdict": verdict, "says": "\x1b[2J", "light_ns": 23e6, "light_settled": True, **more},
    }


def test_a_program_that_was_still_warming_up(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, **timings("faster", 80, 15))
    assert (note.code, note.severity, note.values["share_pct"]) == ("warming-up", "info", 18.75)
    assert note.says == (
        "A step took 80.0 ms when it was timed first and 15.0 ms after the passes: the program was still warming "
        "up, and the second time is used."
    )


def test_steps_recorded_before_it_settled_limit_what_can_be_concluded(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, **timings("faster", 80, 15, light_settled=False))
    assert note.severity == "care"
    assert "--settle-s" in note.says


def test_a_slower_second_time_is_said_and_proves_nothing(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, **timings("slower", 20, 28))
    assert (note.code, note.severity) == ("slower-later", "info")
    assert "20.0 ms" in note.says
    assert "28.0 ms" in note.says


@pytest.mark.parametrize("again_ms", [76.0, None])
def test_a_step_that_is_shorter_under_the_profiler(tmp_path: Path, again_ms: float | None) -> None:
    (note,) = notes(tmp_path, **timings("beaten", 75, again_ms))
    assert (note.code, note.severity) == ("faster-profiled", "care")
    later = ", 76.0 ms after the passes" if again_ms else ""
    assert note.says == (
        f"Steps took 75.0 ms without the profiler at first{later}, 23.0 ms under it: the machine was busy, steps "
        "differ, or the program had not settled; the first time is used."
    )


def test_a_machine_that_was_busier_at_first(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, **timings("calmer", 75, 30))
    assert (note.code, note.severity) == ("busy-at-first", "care")
    assert note.says.endswith("the machine was busier at first; the later time is used.")


def test_waits_for_data_that_differ_are_no_reason_for_doubt(tmp_path: Path) -> None:
    (note,) = notes(tmp_path, **timings("waited", 75, 30))
    assert (note.code, note.severity) == ("waits-differ", "info")
    assert note.says.startswith("Steps took 75.0 ms without the profiler at first, 30.0 ms after the passes")


@pytest.mark.parametrize(
    "facts",
    [
        {},  # of a version that timed once
        timings("steady", 20, 20),
        timings("once", 20, None),
        timings("faster", 20, None),
        timings("of another version", 20, 10),
        {"settling": "faster"},
        {**timings("faster", 20, 10), "timed_again": {"median_ns": "soon"}},
        {**timings("faster", 20, 10), "timed_first": [1]},
    ],
)
def test_nothing_to_say(tmp_path: Path, facts: dict[str, Any]) -> None:
    assert notes(tmp_path, **facts) == []
