"""The sampler's files: each rank gets those of its process and of what that started, masked, and nothing else stays."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from foretrace.capture import known_secrets, line_files
from foretrace.capture.line_marks import LineMarks
from foretrace.capture.options import AGAIN, LIGHT, RICH
from foretrace.capture.run_folder import RunFolder


def left(folder: Path, pid: int, parent: int, text: str = "train.py") -> None:
    header = {"schema": 1, "pid": pid, "parent": parent, "kind": "started"}
    block = {"places": [[text, "main", 1, 2, 0, 4]]}
    folder.mkdir(exist_ok=True)
    (folder / f"{pid}.jsonl").write_text(f"{json.dumps(header)}\n{json.dumps(block)}\n", encoding="ascii")


def names(run: RunFolder, rank: int) -> list[str]:
    return sorted(path.name for path in run.rank_folder(rank).glob("lines-*"))


def test_a_rank_gets_its_process_and_those_that_come_from_it(tmp_path: Path) -> None:
    """A launcher (10) starts two ranks (20, 30); rank 0 forks a server (21), which forks a worker (22)."""
    run = RunFolder(tmp_path).create()
    folder = line_files.folder_of(run.path)
    for pid, parent in ((10, 1), (20, 10), (30, 10), (21, 20), (22, 21), (40, 1)):
        left(folder, pid, parent)
    run.write_rank(0, {"lines": {"pid": 20}})
    run.write_rank(1, {"lines": {"pid": 30}})
    line_files.publish(run)
    assert names(run, 0) == ["lines-20.jsonl.gz", "lines-21.jsonl.gz", "lines-22.jsonl.gz"]
    assert names(run, 1) == ["lines-30.jsonl.gz"]
    assert not folder.exists()


def test_a_run_that_recorded_nothing_keeps_no_lines(tmp_path: Path) -> None:
    run = RunFolder(tmp_path).create()
    left(line_files.folder_of(run.path), 20, 1)
    line_files.publish(run)
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_header_is_damaged_is_left_out(tmp_path: Path) -> None:
    run = RunFolder(tmp_path).create()
    folder = line_files.folder_of(run.path)
    left(folder, 20, 1)
    (folder / "21.jsonl").write_text('{"pid": 21, "par', encoding="ascii")
    run.write_rank(0, {"lines": {"pid": 20}})
    line_files.publish(run)
    assert names(run, 0) == ["lines-20.jsonl.gz"]


def test_secrets_in_paths_are_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that this process knows by its variable, and one that its form gives away."""
    monkeypatch.setenv("DATA_API_KEY", "q8Zr4mT1vX7pL2wK9sB3")
    token = "ghp_" + "a1B2" * 9
    run = RunFolder(tmp_path).create()
    folder = line_files.folder_of(run.path)
    left(folder, 20, 1, "/data/q8Zr4mT1vX7pL2wK9sB3/train.py")
    left(folder, 21, 20, f"/data/{token}/train.py")
    run.write_rank(0, {"lines": {"pid": 20}})
    line_files.publish(run)
    texts = [gzip.decompress(path.read_bytes()).decode() for path in run.rank_folder(0).glob("lines-*")]
    assert len(texts) == 2
    assert all("train.py" in text and "*" * 20 in text for text in texts)
    assert not any("q8Zr4mT1vX7pL2wK9sB3" in text or token in text for text in texts)


def test_the_program_masks_what_only_it_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left(tmp_path / ".lines", 20, 1, "/data/q8Zr4mT1vX7pL2wK9sB3/train.py")
    monkeypatch.setenv("DATA_API_KEY", "q8Zr4mT1vX7pL2wK9sB3")
    line_files.mask(tmp_path / ".lines")
    known_secrets.forget()
    assert "q8Zr" not in (tmp_path / ".lines" / "20.jsonl").read_text(encoding="ascii")


def test_marks_tell_steps_from_what_a_profiler_slows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps end at 100, 200, ..., 600; a light pass is open from 200 to 310 and a rich one from 400 on."""
    now = iter((100, 200, 210, 300, 310, 400, 410, 500, 600, 610, 620))
    monkeypatch.setattr("foretrace.capture.line_marks.time", SimpleNamespace(time_ns=lambda: next(now)))
    marks = LineMarks(wanted=True)
    marks.boundary()  # 100
    marks.passed(None)
    marks.boundary()  # 200
    marks.passed(LIGHT)  # 210
    marks.boundary()  # 300
    marks.passed(AGAIN)  # 310: the file is written
    marks.boundary()  # 400
    marks.passed(RICH)  # 410
    marks.boundary()  # 500
    marks.passed(RICH)  # 600
    facts = marks.facts(over=False)  # 610
    assert (facts["first_ns"], facts["last_ns"], facts["steps"]) == (100, 500, 4)
    assert facts["profiled_ns"] == [[200, 310], [400, 610]]
    assert marks.facts(over=True)["last_ns"] is None


def test_declined_lines_say_so() -> None:
    assert LineMarks(wanted=False).facts(over=False)["why_off"] == "--no-lines was given"
