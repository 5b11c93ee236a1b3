"""Where a finding is in the source at hand, how sure that is, and the patch that marks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.present.agent.patches import confidence, patch, source_of

PROGRAM = """import torch


@torch.no_grad()
def other(x):
    return x.sum()


def step(x):
    y = x * 2
    if y.max().item() > 1:
        y = y / 2
    return y
"""


def finding(place: Place) -> Finding:
    fix = Fix("Keep it on the device.", "y = torch.where(y.max() > 1, y / 2, y)\n# not .item()")
    return Finding(says="", why="", fix=fix, evidence={}, where=(place,), rule="host-sync")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (Place("train.py", 11, "step"), "high"),
        (Place("train.py", 9, "step"), "high"),
        (Place("train.py", 4, "other"), "high"),
        (Place("train.py", 11, "forward"), "low"),
        (Place("train.py", 6, "step"), "low"),
        (Place("train.py", 400, "step"), "low"),
        (Place("model.py", 11, "step"), "medium"),
        (Place(None, None, "aten::item"), "none"),
    ],
)
def test_confidence_is_what_the_source_at_hand_says(folder: Path, place: Place, expected: str) -> None:
    assert confidence(place, source_of(place, [folder])) == expected


def test_the_patch_applies_and_changes_nothing_that_runs(folder: Path) -> None:
    place = Place("train.py", 11, "step")
    text = patch(finding(place), source_of(place, [folder]))
    done = subprocess.run(
        ["git", "apply", "-"], input=text + "\n", cwd=folder, text=True, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    changed = (folder / "train.py").read_text().splitlines()
    assert changed[10:13] == [
        "    # host-sync: Keep it on the device.",
        "    #   y = torch.where(y.max() > 1, y / 2, y)",
        "    #   # not .item()",
    ]
    assert [line for line in changed if "#" not in line] == PROGRAM.splitlines()


def test_a_place_that_is_not_sure_gets_no_patch(folder: Path) -> None:
    place = Place("train.py", 11, "forward")
    assert patch(finding(place), source_of(place, [folder])) == ""


def test_a_recording_cannot_name_any_file_of_the_machine(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside") / "secret.py"
    outside.write_text("password = 1\n")
    (folder / "link.py").symlink_to(outside)
    for name in (
        str(outside),
        f"../{outside.parent.name}/secret.py",
        "link.py",
        "a\x00.py",
        "x" * 5_000 + ".py",
    ):
        assert source_of(Place(name, 1, "<module>"), [folder]) is None
