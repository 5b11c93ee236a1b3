"""diagnose: which recording is meant, and what its other ranks add."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.commands.demo import SAMPLE
from foretrace.diagnose.finding import Finding, Fix, Place
from foretrace.present.agent.brief import BRIEF_TOKENS, finding_ids
from foretrace.present.agent.tokens import token_count
from tests.builders import Recording
from tests.corpus import CORPUS, needs_corpus
from tests.diagnose.kernels import ADD, Op, recorded

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


@pytest.mark.slow
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


SQUARE = [[4_096, 4_096], [4_096, 4_096]]
PRODUCT = Op("aten::mm", "ampere_sgemm_128x128_tn", 2_700, shapes=SQUARE, dtypes=["float", "float"])


@pytest.mark.slow
def test_agents_get_trust_findings_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """2,700 of 3,000 µs of a step are a product in fp32 on the CUDA cores; the next command runs as it is printed."""
    path = recorded([PRODUCT, Op("aten::add", ADD, 300)]).write(tmp_path, "it's here.json")
    assert main(["diagnose", str(path), "--format", "agent"]) == 0
    text = capsys.readouterr().out
    assert token_count(text) <= BRIEF_TOKENS
    lines = [json.loads(line) for line in text.splitlines()]
    assert lines[0]["trust"] in ("yes", "with care")
    step = next(line["step"] for line in lines if "step" in line)
    assert step["recorded_step_ms"] == pytest.approx(3.0, rel=0.05)
    assert step["estimated_step_ms"] == pytest.approx(3.0, rel=0.05)
    first = next(line for line in lines if "id" in line)
    assert first["rule"] == "no-tensor-cores"
    assert first["id"].startswith("no-tensor-cores.")
    assert first["at"] == [{"function": "aten::mm", "confidence": "none"}]
    assert "bfloat16" in first["code"]
    program, *words = shlex.split(lines[-1]["next"])
    assert program == "foretrace"
    assert str(path.resolve()) in words
    assert main(words) == 0


def test_ids_of_findings_stay_when_lines_move() -> None:
    def found(line: int, function: str) -> Finding:
        return Finding(
            says="",
            why="",
            fix=Fix("", ""),
            evidence={},
            where=(Place("/a/train.py", line, function),),
            rule="host-sync",
        )

    ids = finding_ids([found(10, "step"), found(90, "step"), found(10, "evaluate")])
    assert len(set(ids)) == 3
    assert ids == finding_ids([found(12, "step"), found(95, "step"), found(8, "evaluate")])
    moved = replace(found(10, "step"), where=(Place("/b/train.py", 10, "step"),))
    assert finding_ids([moved]) == ids[:1]


def test_agents_are_told_why_nothing_can_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Recording().annotation("load", 0, 10).write(tmp_path)
    assert main(["diagnose", str(path), "--format", "agent"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "trust" in lines[0]
    assert lines[1]["answer"]
    assert lines[-1]["next"].startswith("foretrace summary ")
