"""The Run folder: whole files or none, many writers, and what is said of ranks that died."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrace.capture import run_folder
from foretrace.capture.run_folder import Run, RunFolder, script_name
from foretrace.errors import InputError, UsageError

SOURCES = Path(run_folder.__file__).parents[2]

# Writes its rank again and again, each time larger or smaller than before, and says when it began.
WRITER = """
import sys
from foretrace.capture.run_folder import RunFolder
folder, rank, times = RunFolder(sys.argv[1]).create(join=True), int(sys.argv[2]), int(sys.argv[3])
folder.write_rank(rank, {"world_size": 4, "status": "partial", "passes": []})
print("began", flush=True)
for number in range(times):
    size = 1 + (number * 7919) % 400
    folder.write_rank(rank, {"world_size": 4, "status": "partial", "passes": [], "blocks_ns": list(range(size)), "size": size})
folder.write_rank(rank, {"world_size": 4, "status": "complete", "passes": []})
"""


def start_writer(path: Path, rank: int, times: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), str(rank), str(times)]
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def complete(**facts: Any) -> Mapping[str, Any]:
    return {"world_size": 1, "status": "complete", "passes": [], **facts}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_run({"command": ["python", "train.py"], "exit_code": 0})
    folder.write_rank(0, complete(world_size=2))
    folder.write_rank(1, complete(world_size=2))
    run = RunFolder.read(tmp_path / "run")
    assert run.facts == {"schema": 1, "command": ["python", "train.py"], "exit_code": 0}
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.problems == ()
    assert run.rank(1) is run.ranks[1]
    assert run.rank(7) is None


def test_a_second_write_replaces_the_first_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_run({"exit_code": None})
    folder.write_run({"exit_code": 3})
    assert RunFolder.read(folder.path).facts["exit_code"] == 3
    assert [each.name for each in folder.path.iterdir()] == ["run.json"]


def test_never_overwrites(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunFolder(tmp_path / "run").create()  # an empty folder is as good as none
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="will not overwrite"):
        RunFolder(tmp_path / "run").create()
    RunFolder(tmp_path / "run").create(join=True)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write a Run"):
        RunFolder(tmp_path / "file" / "run").create()


def test_default_names_are_not_taken(tmp_path: Path) -> None:
    names = set()
    for _ in range(3):
        folder = RunFolder.default(["python", "my train.py"], parent=tmp_path).create()
        folder.write_run({})
        names.add(folder.path.name)
    assert len(names) == 3
    assert all(name.startswith("my-train-20") for name in names)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python examples/train.py --lr 3", "train"),
        ("python -u -m package.train", "train"),
        ("python -m package.__main__", "package"),
        ("torchrun --nproc-per-node 2 train.py other.py", "train"),
        ("python -m torch.distributed.run --nproc-per-node=2 -m package.train", "train"),
        ("accelerate launch train.py", "train"),
        ("./bin/program", "program"),
        ("python3 -c pass", "python3"),
        ("", "program"),
        ("python ghp_0123456789abcdefABCDEF0123456789abcd.py", "left-out"),
    ],
)
def test_a_run_is_called_after_the_program(command: str, name: str) -> None:
    assert script_name(command.split()) == name


def test_ranks_of_a_job_name_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    code = "from foretrace.capture.run_folder import RunFolder; print(RunFolder.of_job(['train.py'], parent='p').path)"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    command = [sys.executable, "-c", code]
    paths = {subprocess.check_output(command, env=environment, text=True, cwd=tmp_path) for _ in range(2)}
    assert len(paths) == 1
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert RunFolder.of_job(["train.py"]).path.name == "train-job77.0"
    monkeypatch.delenv("SLURM_JOB_ID")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "night/1")
    assert RunFolder.of_job(["train.py"]).path.name == "train-night-1.0"
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "ab308538-f5a3-49dd-a13f-2e6e5f0f0488")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert RunFolder.of_job(["train.py"]).path.name == "train-ab308538.2"


@dataclass(frozen=True)
class Point:
    at_ns: int
    name: str


def test_anything_a_recorder_may_say_becomes_json(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    facts = {
        "nan": float("nan"),
        "inf": float("inf"),
        "path": Path("a/b"),
        "pairs": ((1, 2.5), {3}),
        "point": Point(1, "x"),
        "scalars": [np.int64(3), np.float32(0.5), np.bool_(False), np.float64("inf")],
    }
    said: dict[Any, Any] = {**facts, "bytes": b"x", "odd": "caf\u00e9 \udcff", 5: None}
    folder.write_rank(0, said)
    text = (folder.path / "rank0" / "rank.json").read_bytes()
    read = json.loads(text)
    assert read["nan"] is None
    assert read["inf"] is None
    assert read["path"] == "a/b"
    assert read["pairs"] == [[1, 2.5], [3]]
    assert read["point"] == {"at_ns": 1, "name": "x"}
    assert read["scalars"] == [3, 0.5, False, None]
    assert read["scalars"][2] is False
    assert read["odd"] == "caf\u00e9 \udcff"
    assert read["5"] is None


def test_secrets_in_what_a_recorder_says_are_left_out(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    token = "hf_" + "abcdefghijABCDEFGHIJ1234567890abcd"
    folder.write_rank(0, {"reason": f"HTTPError: 401 for token {token}", "api_key": "hunter2"})
    text = (folder.path / "rank0" / "rank.json").read_text()
    assert token not in text
    assert "hunter2" not in text
    assert "HTTPError: 401 for token <left out>" in text


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_run({"exit_code": 0})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UsageError, match="No space"):
        folder.write_run({"exit_code": 1})
    assert [each.name for each in folder.path.iterdir()] == ["run.json"]
    assert RunFolder.read(folder.path).facts["exit_code"] == 0


def test_files_have_the_permissions_that_the_user_gives_to_files(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    (tmp_path / "other").write_text("")
    written = folder.write_run({})
    assert written.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_ranks_write_at_once_and_a_reader_sees_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "run"
    writers = [start_writer(path, rank, 150) for rank in range(4)]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "began\n"
    looks = 0
    while any(writer.poll() is None for writer in writers):
        run = RunFolder.read(path)
        assert [rank.rank for rank in run.ranks] == [0, 1, 2, 3]
        for rank in run.ranks:
            assert "damaged" not in (rank.problem or "")
            assert len(rank.facts.get("blocks_ns", ())) == rank.facts.get("size", 0)
        looks += 1
    assert looks > 3
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    assert [finish(writer) for writer in writers] == [0, 0, 0, 0]
    run = RunFolder.read(path)
    assert run.problems == ("run.json is missing",)
    assert sorted(each.name for each in path.rglob("*") if each.is_file()) == ["rank.json"] * 4


def finish(writer: subprocess.Popen[str]) -> int:
    assert writer.stdout is not None
    writer.stdout.close()
    return writer.wait()


def test_a_rank_that_is_killed_while_writing_harms_nobody(tmp_path: Path) -> None:
    path = tmp_path / "run"
    doomed, other = start_writer(path, 0, 1_000_000), start_writer(path, 1, 30)
    for writer in (doomed, other):
        assert writer.stdout is not None
        writer.stdout.readline()
    doomed.kill()
    assert finish(doomed) == -signal.SIGKILL
    assert finish(other) == 0
    run = RunFolder.read(path)
    assert [rank.rank for rank in run.ranks] == [0, 1]
    assert run.ranks[1].problem is None
    assert run.problems == (
        "run.json is missing",
        "rank 0: partial",
        "rank 2, 3: left nothing; died early, or wrote elsewhere",
    )


def damaged(tmp_path: Path) -> Run:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_run({"options": {}})
    folder.write_rank(0, complete(world_size=6))
    folder.rank_folder(1)
    (folder.rank_folder(2) / "rank.json").write_text('{"schema": 1, "rank": 2, "pas')
    (folder.rank_folder(3) / "rank.json").write_text("[1]")
    folder.write_rank(4, {"status": "no steps", "reason": "no optimizer was seen"})
    (folder.path / "rankfile").write_text("")
    return RunFolder.read(folder.path)


def test_what_dead_ranks_left_is_reported(tmp_path: Path) -> None:
    assert damaged(tmp_path).problems == (
        "rank 1: rank.json is missing; it may have died",
        "rank 2: rank.json is damaged; it may have died",
        "rank 3: rank.json is damaged; it may have died",
        "rank 4: no steps (no optimizer was seen)",
        "rank 5: left nothing; died early, or wrote elsewhere",
    )


def test_ranks_that_were_not_chosen_are_not_missing(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_run({"options": {"ranks": [0, 7]}})
    folder.write_rank(0, complete(world_size=8))
    assert RunFolder.read(folder.path).problems == ("rank 7: left nothing; died early, or wrote elsewhere",)
    folder.write_rank(7, complete(world_size=8))
    assert RunFolder.read(folder.path).problems == ()


def test_a_run_of_a_newer_version_is_read_with_a_note(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    (folder.path / "run.json").write_text('{"schema": 2, "exit_code": 0}')
    run = RunFolder.read(folder.path)
    assert run.facts["exit_code"] == 0
    assert "newer Foretrace" in run.problems[0]
    assert run.problems[1].startswith("no rank left anything")


def test_what_is_no_run_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        RunFolder.read(tmp_path / "absent")
    with pytest.raises(InputError, match="not a Run"):
        RunFolder.read(tmp_path)
    assert not RunFolder.is_run(tmp_path)
    RunFolder(tmp_path).write_rank(0, complete())
    assert RunFolder.is_run(tmp_path)


def test_recordings_are_found_within_the_folder_only(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create()
    (tmp_path / "outside.json").write_text("{}")
    passes = [
        {"kind": "light", "file": "light.json"},
        {"kind": "rich", "file": "../../outside.json"},
        5,
        {"kind": "memory"},
    ]
    folder.write_rank(0, complete(passes=passes))
    record = RunFolder.read(folder.path).ranks[0]
    assert record.recording("light") is None
    (record.folder / "light.json").write_text("{}")
    assert record.recording("light") == record.folder / "light.json"
    assert record.recording("rich") is None
    assert record.recording("memory") is None


def test_a_rank_is_not_negative(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="a rank is 0 or more"):
        RunFolder(tmp_path).rank_folder(-1)


def test_a_value_that_becomes_a_secret_later_is_masked_in_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program reads its password from a file after the first pass, and puts it into its environment."""
    folder = RunFolder(tmp_path / "run").create()
    passes = {"passes": [{"kind": "light", "file": "light.json"}]}
    folder.write_rank(0, {})
    recording = folder.rank_folder(0) / "light.json"
    recording.write_text(json.dumps({"name": "login Zx9swordfish99"}))
    folder.write_rank(0, passes)
    assert "Zx9swordfish99" in recording.read_text(), "nothing says that it is a secret"
    monkeypatch.setenv("DB_PASSWORD", "Zx9swordfish99")
    folder.write_rank(0, {**passes, "reason": "ValueError: no user with Zx9swordfish99"})
    monkeypatch.delenv("DB_PASSWORD")
    folder.write_run({"notes": ["b64 of a:Zx9swordfish99 is YTpaeDlzd29yZGZpc2g5OQ=="]})
    assert json.loads(recording.read_text()) == {"name": f"login {'*' * 14}"}
    written = "".join(path.read_text() for path in folder.path.rglob("*.json"))
    assert "Zx9swordfish99" not in written
    assert "ValueError: no user with <left out>" in written
    assert "eDlzd29yZGZpc2g5" not in written, "base64 of what all but the first bytes hold"
