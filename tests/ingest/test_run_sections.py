"""run.json and rank.json: damaged sections are not used, the others and the recording are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace import ingest
from foretrace.analyze.trust import judge
from foretrace.ingest.run import find_recorded, read_facts
from tests.builders import Recording

TIMES = {"median_ns": 900_000, "low_ns": 890_000, "high_ns": 910_000, "steps": 40, "blocks_ns": [900_000]}
RANK: dict[str, Any] = {
    "schema": 1, "rank": 0, "world_size": 1, "unprofiled": TIMES, "command": ["python", "train.py"],
    "passes": [{"kind": "light", "file": "light.json"}, {"kind": "rich", "file": "rich.json"}],
    "loader": {"workers": 1, "steps": 10, "step_ns": 900_000, "mean_ns": 5_000, "waits_ns": [5_000], "calls": 10},
    "processor": {"model": "EPYC", "usable_cpu_count": 2},
}  # fmt: skip


def run(folder: Path, rank: object, run_file: object = {"schema": 1}) -> Path:
    """A Run with both passes; text stands for itself."""
    recorded = folder / "run" / "rank0"
    recorded.mkdir(parents=True)
    for name in ("light.json", "rich.json"):
        Recording().step(1, 0, 1_000).op("aten::add", 10, 20).write(recorded, name)
    for file, facts in ((recorded / "rank.json", rank), (recorded.parent / "run.json", run_file)):
        file.write_text(facts if isinstance(facts, str) else json.dumps(facts))
    return recorded.parent


def damaged_notes(folder: Path) -> list[str]:
    recorded = find_recorded(folder)
    assert recorded is not None
    trust = judge(recorded.told(ingest.open_trace(recorded.path, cache=False)))
    return [note.says for note in trust.notes if note.code == "damaged-files"]


def test_a_sound_run_has_no_note(tmp_path: Path) -> None:
    folder = run(tmp_path, RANK)
    recorded = find_recorded(folder)
    assert recorded is not None
    assert recorded.step_ns == 900_000
    assert damaged_notes(folder) == []


@pytest.mark.parametrize(
    ("section", "value", "where"),
    [
        ("unprofiled", {"median_ns": 10**400}, "unprofiled: damaged: Number out of range"),
        ("unprofiled", {**TIMES, "blocks_ns": [1, "x"]}, "`$.blocks_ns[1]`"),
        ("loader", {"steps": -1}, "`$.steps`"),
        ("processor", [], "processor: damaged"),
        ("world_size", 1.5, "world_size: damaged"),
    ],
)
def test_a_damaged_section_is_left_out_with_a_note(
    tmp_path: Path, section: str, value: object, where: str
) -> None:
    folder = run(tmp_path, {**RANK, section: value})
    facts = read_facts(folder / "rank0" / "rank.json")
    assert section not in facts
    assert {name for name in RANK if name != section} <= set(facts)
    (note,) = damaged_notes(folder)
    assert where in note


def test_a_damaged_object_in_a_section_does_not_spoil_the_step_time(tmp_path: Path) -> None:
    times = {**TIMES, "cores": {"wall_ns": "long"}}
    folder = run(tmp_path, {**RANK, "unprofiled": times})
    recorded = find_recorded(folder)
    assert recorded is not None
    assert recorded.step_ns == 900_000
    (note,) = damaged_notes(folder)
    assert "`$.cores.wall_ns`" in note


def test_of_a_list_the_intact_items_are_used(tmp_path: Path) -> None:
    passes = [{"kind": 5, "file": "light.json"}, {"kind": "rich", "file": "rich.json"}]
    recorded = find_recorded(run(tmp_path, {**RANK, "passes": passes}))
    assert recorded is not None
    assert recorded.path.name == "rich.json"


@pytest.mark.parametrize(
    "text", ["{", "[]", "\0", '{"passes": []}', '{"passes": [{"kind": "light", "file": "gone.json"}]}']
)
def test_recordings_are_found_by_their_usual_names(tmp_path: Path, text: str) -> None:
    recorded = find_recorded(run(tmp_path, text))
    assert recorded is not None
    assert (recorded.path.name, recorded.rich and recorded.rich.name) == ("light.json", "rich.json")


def test_a_damaged_run_file_is_a_note_too(tmp_path: Path) -> None:
    (note,) = damaged_notes(run(tmp_path, RANK, '{"limits": NaN}'))
    assert "run.json: damaged: NaN is no number" in note
