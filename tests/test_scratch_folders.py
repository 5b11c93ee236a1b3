"""Folders for copies of recordings: those of killed processes go, those of living ones stay."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from foretrace import scratch_folders

fcntl = pytest.importorskip("fcntl")


def test_a_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned, other, living = (tmp_path / f"foretrace-{name}" for name in ("pipe-a", "url-b", "pipe-c"))
    for folder in (abandoned, other, living):
        folder.mkdir()
        (folder / "copy.json").write_text("a secret")
    holds = os.open(living, os.O_RDONLY)  # as another process would; a lock belongs to the descriptor
    fcntl.flock(holds, fcntl.LOCK_EX)
    made = [scratch_folders.make("pipe") for _ in range(2)]
    assert sorted(tmp_path.iterdir()) == sorted([other, living, *made])
    assert [folder.stat().st_mode & 0o777 for folder in made] == [0o700, 0o700]
    for folder in made:
        (folder / "copy.json").write_text("")
        scratch_folders.remove(folder)
    assert sorted(tmp_path.iterdir()) == sorted([other, living])
    os.close(holds)
    scratch_folders.remove(scratch_folders.make("pipe"))
    assert list(tmp_path.iterdir()) == [other]
