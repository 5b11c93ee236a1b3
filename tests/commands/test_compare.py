"""`foretrace compare`: what it prints, and what it says of wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from foretrace.commands import main
from tests.analyze.snapshots.allocator import Allocator
from tests.analyze.snapshots.histories import MIB, at_line
from tests.compare.recorded import run_folder, steps

STEADY = (1_000.0, 1_001.0, 999.0, 1_000.5, 999.5, 1_000.2)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A product of 1 ms a step, and one of 0.4 ms."""
    slow = steps(STEADY).write(tmp_path, "slow.json")
    fast = steps([0.4 * gemm for gemm in STEADY]).write(tmp_path, "fast.json")
    return str(slow), str(fast)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["compare", "--no-cache", "--format", "json", *arguments]) == 0
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.mark.slow
def test_json_is_what_the_guide_promises(pair: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """The GPU is done 1.2 ms after a step began (90 + 10 us, the product, one addition of 100), then waits for the next."""
    found = printed(capsys, *pair)
    assert found["schema"] == "foretrace.compare/1"
    assert set(found) >= {
        "verdict",
        "before_ms",
        "after_ms",
        "speedup",
        "causes",
        "why",
        "per",
        "known_by",
        "notes",
    }
    assert set(found["speedup"]) == {"point", "low", "high"}
    assert set(found["causes"][0]) == {"what", "kind", "delta_ms", "before_ms", "after_ms"}
    assert found["causes"][0]["what"] in ("matrix products", "Python between operators")
    products = next(cause for cause in found["causes"] if cause["what"] == "matrix products")
    assert products["before_ms"] == pytest.approx(1.0, abs=0.002)
    assert products["after_ms"] == pytest.approx(0.4, abs=0.002)
    delta = sum(cause["delta_ms"] for cause in found["causes"])
    assert delta == pytest.approx(found["after_ms"] - found["before_ms"], abs=1e-9)
    sizes = [abs(cause["delta_ms"]) for cause in found["causes"]]
    assert sizes == sorted(sizes, reverse=True)


def test_a_recording_and_itself_are_the_same(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = printed(capsys, pair[0], pair[0])
    assert found["verdict"] == "same"
    assert {cause["delta_ms"] for cause in found["causes"]} == {0.0}


@pytest.mark.parametrize("form", ["table", "csv", "md"])
def test_every_format_names_the_cause(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert main(["compare", "--no-cache", "--format", form, *pair]) == 0
    text = capsys.readouterr().out
    assert "matrix products" in text
    assert ("the step" if form != "table" else "after") in text


@pytest.mark.parametrize("table", ["modules", "operators", "kernels", "nodes"])
def test_tables_to_look_into(pair: tuple[str, str], capsys: pytest.CaptureFixture[str], table: str) -> None:
    assert main(["compare", "--no-cache", "--format", "csv", "--by", table, *pair]) == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "difference_ns" in head
    assert "before_ns" in head
    assert "after_ns" in head


def test_runs_are_compared_by_their_unprofiled_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded, a step takes 2 ms on both sides; unprofiled 1.9 and 1.3: what recording adds is a cause of its own."""
    blocks = (1.90, 1.91, 1.89, 1.90, 1.92, 1.90, 1.91)
    before = run_folder(tmp_path / "before", steps((1_700.0,) * 3), blocks)
    after = run_folder(tmp_path / "after", steps((1_100.0,) * 3), [block - 0.6 for block in blocks])
    found = printed(capsys, str(before), str(after))
    assert found["known_by"] == "unprofiled"
    assert (found["before_ms"], found["after_ms"]) == (pytest.approx(1.90), pytest.approx(1.30))
    assert found["verdict"] == "faster"
    recording = next(cause for cause in found["causes"] if cause["kind"] == "recording")
    assert recording["before_ms"] == pytest.approx(-0.1, abs=0.001)
    assert recording["after_ms"] == pytest.approx(-0.7, abs=0.001)
    delta = sum(cause["delta_ms"] for cause in found["causes"])
    assert delta == pytest.approx(found["after_ms"] - found["before_ms"], abs=1e-9)


@pytest.mark.slow
def test_several_become_a_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        str(steps([factor * gemm for gemm in STEADY]).write(tmp_path, f"{name}.json"))
        for name, factor in (("one", 1.0), ("two", 1.5), ("three", 0.5))
    ]
    found = printed(capsys, *paths)
    assert [row["name"] for row in found["trend"]] == ["one.json", "two.json", "three.json"]
    assert found["trend"][0]["against_first"] is None
    last = found["trend"][2]
    assert last["against_first"]["after_ms"] == found["after_ms"]
    assert last["against_previous"]["before_ms"] == pytest.approx(found["trend"][1]["step_ms"])
    assert main(["compare", "--no-cache", *paths]) == 0
    assert "three.json" in capsys.readouterr().out


@pytest.mark.slow
def test_folders_are_compared_by_file_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder, factor in (("a", 1.0), ("b", 0.5)):
        (tmp_path / folder).mkdir()
        for name in ("train", "eval"):
            steps([factor * gemm for gemm in STEADY]).write(tmp_path / folder, f"{name}.json")
    steps().write(tmp_path / "a", "old.json")
    found = printed(capsys, str(tmp_path / "a"), str(tmp_path / "b"))
    assert [pair["name"] for pair in found["pairs"]] == ["eval.json", "train.json"]
    assert found["only_before"] == ["old.json"]
    assert found["pairs"][0]["causes"]


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["one.json"], 2, "needs two"),
        (["one.json", "missing.json"], 3, "missing.json"),
        (["one.json", "text.txt"], 3, "text.txt"),
        (["one.json", "bench.json"], 2, "two of the same sort"),
        (["one.json", "empty"], 3, "no recording, Run or benchmark"),
        (["one.json", "nothing.json"], 4, "nothing recorded"),
    ],
)
def test_wrong_input_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    steps().write(tmp_path, "one.json")
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    benchmark = {
        "schema": "foretrace.bench/1",
        "kind": "matmul",
        "device": "",
        "torch": "",
        "case": [],
        "rows": [],
    }
    (tmp_path / "bench.json").write_text(json.dumps(benchmark))
    assert main(["compare", "--no-cache", *arguments]) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.slow
def test_gates_and_their_reports(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One gate fails, one passes: the exit code, JUnit, annotations and the comment say so."""
    files = ["--junit", str(tmp_path / "gates.xml"), "--markdown", str(tmp_path / "comment.md"), "--github"]
    limits = ["--fail-on", "overview.gpu_busy_pct < -20%", "--fail-on", "kernels > +0"]
    assert main(["compare", "--no-cache", *pair, *limits, *files]) == 1
    out = capsys.readouterr().out
    assert "::error title=failed%3A overview.gpu_busy_pct < -20%25::" in out
    assert "::notice title=passed%3A kernels > +0::kernels 2 → 2" in out
    suite = ElementTree.parse(tmp_path / "gates.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "0")
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["overview.gpu_busy_pct < -20%"]
    comment = (tmp_path / "comment.md").read_text()
    assert "| failed | `overview.gpu_busy_pct < -20%` |" in comment
    assert "matrix products" in comment
    assert main(["compare", "--no-cache", *pair, *files]) == 2  # the files are there
    assert main(["compare", "--no-cache", *pair, *files, "--force"]) == 0


def test_json_stays_a_document_beside_annotations(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", "--no-cache", "--format", "json", *pair, "--github", "--fail-on", "kernels > 1"]
    assert main(arguments) == 1
    streams = capsys.readouterr()
    assert json.loads(streams.out)["gates"][0]["state"] == "failed"
    assert "::error" in streams.err


@pytest.mark.slow
def test_noise_fails_only_where_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps that take twice as long prove nothing: exit code 0, and 1 with --strict."""
    before, after = (
        steps((1_800.0,) * 2).write(tmp_path, "a.json"),
        steps((3_800.0,) * 2).write(tmp_path, "b.json"),
    )
    arguments = ["compare", "--no-cache", str(before), str(after), "--fail-on", "step_ms > +3%"]
    assert main(arguments) == 0
    assert "inconclusive  step_ms > +3%" in capsys.readouterr().out
    assert main([*arguments, "--strict"]) == 1


@pytest.mark.slow
def test_what_a_recording_is_called_cannot_act(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name with a line break must not become another annotation."""
    folder = tmp_path / "x\n::error::pwned"
    folder.mkdir()
    path = str(steps().write(folder, "a\n::error::pwned.json"))
    assert main(["compare", "--no-cache", path, path, "--github", "--fail-on", "kernels > 100"]) == 0
    assert not any(line.startswith("::error") for line in capsys.readouterr().out.splitlines())


def snapshot(path: Path, size: int) -> Path:
    """A program that holds 4 MiB of its own, and a buffer of this size at line 7."""
    made = Allocator()
    made.malloc(4 * MIB, at_line(3))
    made.malloc(size, at_line(7))
    return made.write(path)


@pytest.mark.slow
def test_two_snapshots_are_compared_by_line_and_gated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = snapshot(tmp_path / "a.pickle", 20 * MIB), snapshot(tmp_path / "b.pickle", 22 * MIB)
    found = printed(capsys, str(first), str(second))
    assert (found["verdict"], found["schema"]) == ("more", "foretrace.compare/1")
    memory = found["memory"]
    assert (memory["device"], memory["before_bytes"], memory["after_bytes"]) == ("cuda:0", 24 * MIB, 26 * MIB)
    assert memory["lines"] == [
        {"what": "train.py:7 <module>", "before_bytes": 20 * MIB, "after_bytes": 22 * MIB, "change_bytes": 2 * MIB},
        {"what": "train.py:3 <module>", "before_bytes": 4 * MIB, "after_bytes": 4 * MIB, "change_bytes": 0},
    ]  # fmt: skip
    paths = [str(first), str(second)]
    assert main(["compare", *paths, "--fail-on", "peak_bytes > +3%"]) == 1
    page = capsys.readouterr().out
    assert "cuda:0 peaked at 24.0 MiB before and 26.0 MiB after: 2.00 MiB more" in " ".join(page.split())
    assert "failed" in page
    assert main(["compare", *paths, "--fail-on", "peak_bytes > +10%", "--format", "md"]) == 0
    assert "train.py:7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--fail-on", "step_ms > +3%"], 2, "of memory snapshots only peak_bytes can be limited"),
        (["--by", "kernels"], 2, "memory snapshots have no steps"),
    ],
)
def test_what_snapshots_cannot_tell_is_said(
    arguments: list[str], code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = snapshot(tmp_path / "a.pickle", 20 * MIB), snapshot(tmp_path / "b.pickle", 22 * MIB)
    assert main(["compare", str(first), str(second), *arguments]) == code
    assert says in capsys.readouterr().err


def test_a_snapshot_and_a_recording_are_not_compared(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "--no-cache", pair[0], str(snapshot(tmp_path / "a.pickle", MIB))]) == 2
    assert "is a memory snapshot: compare two of the same sort" in capsys.readouterr().err


def _with_snapshots(runs: tuple[str, str], sizes: tuple[int, int]) -> None:
    """A snapshot beside the recording of each, as `run --memory` leaves it."""
    for run, size in zip(runs, sizes, strict=True):
        rank = Path(run) / "rank0"
        snapshot(rank / "memory.pickle", size)
        facts = json.loads((rank / "rank.json").read_text(encoding="utf-8"))
        facts["passes"] = [*facts["passes"], {"kind": "memory", "file": "memory.pickle"}]
        (rank / "rank.json").write_text(json.dumps(facts), encoding="utf-8")


@pytest.mark.slow
def test_runs_with_snapshots_are_compared_by_line_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = (1.90, 1.91, 1.89, 1.90, 1.92, 1.90, 1.91)
    first, second = (str(run_folder(tmp_path / name, steps((1_700.0,) * 3), blocks)) for name in ("a", "b"))
    runs = (first, second)
    before = printed(capsys, *runs)
    assert before["memory"] is None
    assert main(["compare", "--no-cache", *runs, "--by", "memory"]) == 4
    assert "foretrace run --memory" in capsys.readouterr().err
    _with_snapshots(runs, (20 * MIB, 22 * MIB))
    found = printed(capsys, *runs)
    assert found["memory"]["lines"][0]["change_bytes"] == 2 * MIB
    assert (found["before"]["peak_bytes"], found["after"]["peak_bytes"]) == (24 * MIB, 26 * MIB)
    assert main(["compare", "--no-cache", *runs, "--fail-on", "peak_bytes > +3%"]) == 1
    assert "train.py:7 <module>" in capsys.readouterr().out
    assert main(["compare", "--no-cache", *runs, "--by", "memory", "--format", "csv"]) == 0
    assert "train.py:7 <module>,20971520,23068672,2097152" in capsys.readouterr().out
    (Path(runs[1]) / "rank0" / "memory.pickle").write_bytes(b"\x80\x04}")
    broken = printed(capsys, *runs)
    assert broken["memory"] is None
    assert any("memory snapshot could not be read" in note for note in broken["notes"])
