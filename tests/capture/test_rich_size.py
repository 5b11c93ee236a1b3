"""A rich pass always comes: what it leaves out where its file would be too large."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from foretrace.capture.options import RICH_SWITCHES, CaptureOptions
from foretrace.capture.recorder import Recorder
from foretrace.capture.rich_size import RichSize, fitting
from foretrace.capture.run_folder import RunFolder
from tests.capture.test_recorder import fast, rank_facts

LIGHT = {"kind": "light", "steps": 10, "file_bytes": 11_000_000}  # eleven steps of a megabyte


def size(limit_mb: float, **more: Any) -> RichSize:
    return fitting(
        steps=3, switches=RICH_SWITCHES, passes=[{**LIGHT, **more}], limit_bytes=round(limit_mb * 1e6)
    )


def test_less_and_less_is_recorded_until_it_fits() -> None:
    """A rich step is 12 MB here, and there are four in a file of three; memory is 0.4 MB of it, shapes 0.35."""
    assert size(48) == RichSize(3, RICH_SWITCHES)
    one = size(47.9)
    assert (one.steps, one.lead, one.switches) == (1, False, RICH_SWITCHES)
    assert one.left_out == "one step: all of it would be about 45.8 MiB, the limit is 45.7 MiB"
    assert size(12).switches == RICH_SWITCHES
    lean = size(11.9)
    assert (lean.switches.profile_memory, lean.switches.with_flops, lean.switches.record_shapes) == (
        False,
        False,
        True,
    )
    assert "without memory and FLOPs" in lean.left_out
    for limit_mb in (11.5, 0.001):  # it comes whatever the limit is
        least = size(limit_mb)
        assert not least.switches.record_shapes
        assert least.switches.with_stack
        assert least.switches.with_modules
        assert "without memory, FLOPs and shapes" in least.left_out


def test_programs_as_they_are_fit_by_default() -> None:
    """The largest light file of ../shared/corpus/real is 50 MB: three steps of its rich one are let through."""
    limit = CaptureOptions("x").file_bytes
    for file_bytes in (10_705_134, 28_161_745, 33_105_391, 43_538_539, 45_964_424, 50_234_126):
        assert not size(limit / 1e6, file_bytes=file_bytes).left_out


def test_without_a_light_pass_nothing_is_known() -> None:
    assert fitting(steps=3, switches=RICH_SWITCHES, passes=[], limit_bytes=1) == RichSize(3, RICH_SWITCHES)


def test_source_lines_come_with_any_limit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    pytest.importorskip("polars")
    folder = RunFolder(tmp_path / "run").create()
    recorder = Recorder(fast(folder.path, file_bytes=1000), folder, 0)

    def multiplied_in_this_file() -> None:
        torch.ones(64, 64) @ torch.ones(64, 64)
        time.sleep(0.001)

    while not recorder.finished:
        multiplied_in_this_file()
        recorder.step()
    facts = rank_facts(folder)
    light, rich = facts["passes"]
    assert (facts["status"], facts["reason"]) == ("complete", "")
    assert (light["steps"], rich["kind"], rich["steps"]) == (10, "rich", 1)
    assert {name for name, on in rich["switches"].items() if on} == {
        "cpu",
        "cuda",
        "with_stack",
        "with_modules",
    }
    made, stays = (note for note in facts["notes"] if "rich pass" in note)
    assert made.startswith(
        "rich pass of one step, without memory, FLOPs and shapes: all of it would be about"
    )
    assert stays.startswith("the rich pass's file of")
    events = json.loads((folder.path / "rank0" / "rich.json").read_text())["traceEvents"]
    assert [each["name"] for each in events if str(each.get("name")).startswith("ProfilerStep#")] == [
        f"ProfilerStep#{rich['first_step']}"
    ]

    from foretrace.analyze import run
    from foretrace.diagnose.opening import open_case

    case = open_case(folder.path)
    assert case.rich is not None
    stacks = run(case.rich.trace, "stacks").table
    assert any("multiplied_in_this_file" in str(row) for row in stacks.iter_rows())
