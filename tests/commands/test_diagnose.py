"""diagnose: which recording is meant, and what its other ranks add."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from corpus import CORPUS, needs_corpus

from foretrace.commands import main
from foretrace.commands.demo import SAMPLE
from tests.builders import Recording

GLOO = CORPUS / "other" / "multirank_gloo"


def straggler(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, dict[str, object] | None]:
    """The rank that was diagnosed, and what the rule says of it."""
    assert main(["diagnose", str(path), "--format", "json", "--no-cache"]) == 0
    made = json.loads(capsys.readouterr().out)
    return made["trace"]["rank"], next(
        (each for each in made["findings"] if each["rule"] == "straggler"), None
    )


@needs_corpus
def test_a_folder_of_ranks_means_the_lowest_one(capsys: pytest.CaptureFixture[str]) -> None:
    rank, found = straggler(capsys, GLOO)
    assert rank == 0
    assert found is not None
    assert str(found["says"]).startswith("Rank 2 arrives 6.72 ms a step after the median rank")


@needs_corpus
def test_a_rank_takes_those_beside_it_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rank, found = straggler(capsys, GLOO / "rank2.json.gz")
    assert rank == 2
    assert found is not None
    assert str(found["says"]).startswith("Rank 2, the one diagnosed, arrives")
    shutil.copy(GLOO / "rank2.json.gz", tmp_path)
    rank, alone = straggler(capsys, tmp_path)
    assert rank == 2
    assert alone is not None
    assert alone["severity"] == "unchecked"


@needs_corpus
def test_a_run_of_several_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(4):
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        shutil.copy(GLOO / f"rank{rank}.json.gz", folder / "light.json.gz")
        facts = {"passes": [{"kind": "light", "file": "light.json.gz"}], "status": "complete"}
        (folder / "rank.json").write_text(json.dumps(facts))
    rank, found = straggler(capsys, tmp_path)
    assert rank == 0
    assert found is not None


def test_a_folder_of_other_recordings_still_asks_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a.json", "b.json"):
        about = {"backend": "nccl", "rank": 0, "world_size": 2}
        Recording(distributedInfo=about).step(1, 0, 100).write(tmp_path, name)
    assert main(["diagnose", str(tmp_path)]) == 2
    assert "2 recordings in this folder, name one: a.json, b.json" in capsys.readouterr().err


def test_code_can_be_pasted_from_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["diagnose", str(SAMPLE), "--format", "json"]) == 0
    fixes = [finding["fix"] for finding in json.loads(capsys.readouterr().out)["findings"] if finding["fix"]]
    codes = [line for fix in fixes for line in fix["code"].splitlines()]
    statements = [line.partition("  #")[0].rstrip() for line in codes if not line.lstrip().startswith("#")]
    assert max(map(len, statements)) > 60, "nothing here would have been cut"
    assert main(["diagnose", str(SAMPLE)]) == 0
    shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in statements if line.strip() not in shown] == []
    words = " ".join(line.lstrip("# ") for line in shown)
    comments = [line.partition("# ")[2] for line in codes if "# " in line]
    assert [comment for comment in comments if comment not in words] == []
