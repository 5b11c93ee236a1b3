"""Ranks of one job, told from what their files begin with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.ingest.ranks import find_others, lowest_rank
from tests.builders import Recording


def write(folder: Path, name: str, rank: int, *, world: int = 4, backend: str = "nccl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    about = {"backend": backend, "rank": rank, "world_size": world}
    return Recording(distributedInfo=about).step(1, 0, 10).write(folder, name)


def test_files_beside_it_of_other_ranks(tmp_path: Path) -> None:
    files = [write(tmp_path, f"host_{77 - rank}.json", rank) for rank in range(3)]
    write(tmp_path, "larger.json", 1, world=8)
    write(tmp_path, "on_hosts.json", 1, backend="gloo")
    (tmp_path / "notes.txt").write_text("not a recording")
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8b rest")
    assert find_others(files[1]) == (files[0], files[2])
    assert lowest_rank(files[::-1]) == files[0]
    assert lowest_rank([*files, tmp_path / "larger.json"]) is None
    assert lowest_rank([*files, tmp_path / "notes.txt"]) is None


def test_two_jobs_in_a_folder_are_told_apart_by_name_or_not_at_all(tmp_path: Path) -> None:
    slow = [write(tmp_path, f"slow.rank{rank}.json", rank) for rank in range(2)]
    fixed = [write(tmp_path, f"fixed.rank{rank}.json", rank) for rank in range(2)]
    assert find_others(slow[0]) == (slow[1],)
    assert find_others(fixed[1]) == (fixed[0],)
    assert lowest_rank([*slow, *fixed]) is None
    once = write(tmp_path / "other", "a.json", 0)
    write(tmp_path / "other", "b.json", 1)
    write(tmp_path / "other", "c.json", 1)
    assert find_others(once) == ()


@pytest.mark.parametrize(
    "text", ["", '"distributedInfo": {"rank": 0}, ', '"distributedInfo": {"rank": 5, "world_size": 2}, ']
)
def test_a_recording_that_does_not_tell_has_no_others(text: str, tmp_path: Path) -> None:
    write(tmp_path, "rank1.json", 1, world=2)
    path = tmp_path / "rank0.json"
    path.write_text(f'{{"schemaVersion": 1, {text}"traceEvents": []}}')
    assert find_others(path) == ()


def test_a_program_on_its_own_has_no_others(tmp_path: Path) -> None:
    first = write(tmp_path, "a.json", 0, world=1)
    write(tmp_path, "b.json", 0, world=1)
    assert find_others(first) == ()


def test_the_ranks_of_a_run_by_pass(tmp_path: Path) -> None:
    for rank in (0, 2, 10):
        folder = tmp_path / f"rank{rank}"
        kinds = ("light", "rich") if rank != 2 else ("light",)
        for kind in kinds:
            write(folder, f"{kind}.json", rank)
        passes = [{"kind": kind, "file": f"{kind}.json"} for kind in kinds]
        (folder / "rank.json").write_text(json.dumps({"passes": passes}))
    (tmp_path / "rank3").mkdir()
    assert find_others(tmp_path / "rank2" / "light.json") == tuple(
        tmp_path / f"rank{rank}" / "light.json" for rank in (0, 10)
    )
    assert find_others(tmp_path / "rank0" / "rich.json") == (tmp_path / "rank10" / "rich.json",)
