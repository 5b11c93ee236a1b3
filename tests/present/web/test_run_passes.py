"""A Run is one entry of the library, titled by its program, with its passes inside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.diagnose.opening import open_case
from foretrace.ingest.run import pass_of
from foretrace.present.web.library import Library
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.run_files import place_of
from tests.builders import Recording

COMMAND = ["/usr/bin/python", "/srv/project/train.py", "--steps", "100"]


def a_run(folder: Path, *, ranks: int = 1, command: object = COMMAND) -> Path:
    """A Run with a light and a rich pass of each rank."""
    for rank in range(ranks):
        own = folder / "monday" / f"rank{rank}"
        own.mkdir(parents=True)
        for kind in ("light", "rich"):
            Recording().op("aten::mm", 0, 10).write(own, f"{kind}.json")
        passes = [{"kind": kind, "file": f"{kind}.json"} for kind in ("light", "rich")]
        (own / "rank.json").write_text(json.dumps({"passes": passes, "command": command}))
    return folder / "monday"


def test_the_passes_of_a_run_are_listed_under_its_program(tmp_path: Path) -> None:
    a_run(tmp_path)
    runs = Library([tmp_path], cache=False).runs()["runs"]
    assert [(run["title"], run["group"], run["label"], run["name"]) for run in runs] == [
        ("train.py", "monday", "light", "train.py"),
        ("train.py", "monday", "rich", "train.py, rich pass"),
    ]


@pytest.mark.parametrize("named", [".", "rank0", "rank0/light.json"])
def test_however_a_run_is_named_its_group_is_the_run(tmp_path: Path, named: str) -> None:
    run = a_run(tmp_path)
    assert place_of(run / "rank0" / "light.json", (run / named).resolve()) == ("monday", "light")


def test_ranks_of_a_run_stand_together(tmp_path: Path) -> None:
    a_run(tmp_path, ranks=2)
    runs = Library([tmp_path], cache=False).runs()["runs"]
    assert {run["group"] for run in runs} == {"monday"}
    assert [run["label"] for run in runs] == ["rank 0 light", "rank 0 rich", "rank 1 light", "rank 1 rich"]
    assert runs[2]["name"] == "train.py, rank 1"


@pytest.mark.parametrize(
    ("command", "program"),
    [(["python", "-m", "train.main"], "train.main"), (["torchrun", "--nproc-per-node", "2", "x/fit.py"], "fit.py"),
     (["./serve"], "serve"), (None, "monday"), ([], "monday")],
)  # fmt: skip
def test_a_program_is_its_script_its_module_or_its_first_word(
    tmp_path: Path, command: object, program: str
) -> None:
    found = pass_of(a_run(tmp_path, command=command) / "rank0" / "rich.json")
    assert found is not None
    assert (found.program, found.kind, found.main) == (program, "rich", False)


def test_a_file_of_no_run_keeps_its_name(tmp_path: Path) -> None:
    path = Recording().op("aten::mm", 0, 10).write(tmp_path, "job.slow.json")
    view = RecordingView(open_case(path))
    assert (view.title, view.name, view.group, view.label) == ("", "job.slow", "job", "slow")
    (tmp_path / "rank.json").write_text("[not a rank")
    assert pass_of(path) is None
    (tmp_path / "rank.json").write_text(json.dumps({"passes": [{"kind": "light", "file": "other.json"}]}))
    assert pass_of(path) is None
