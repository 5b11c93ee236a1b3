"""`foretrace gate`: the exit code that a build server acts on, and what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from foretrace.commands import main
from foretrace.present.export import gate_comment
from tests.builders import Recording
from tests.compare.recorded import run_folder, steps

BLOCKS = (1.90, 1.91, 1.89, 1.90, 1.92, 1.90, 1.91)
STEP = ("--fail-on", "step_ms > +3%")


def recorded(
    folder: Path, slower: float = 1.0, *, torch: str = "2.13.0", device: str = "GPU", **facts: Any
) -> str:
    made = steps((1_700.0 * slower,) * 6, device=device)
    known = {"versions": {"torch": torch, "platform": "Linux-of-one-machine"}, **facts}
    return str(run_folder(folder, made, [block * slower for block in BLOCKS], **known))


def decided(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code = main(["gate", "--no-cache", "--format", "json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == code
    return document


@pytest.mark.slow
def test_0_1_and_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One program four times: as it was, 1.8 times as long, with another torch, and on another GPU."""
    before, same, slow = (recorded(tmp_path / name, by) for name, by in (("a", 1.0), ("b", 1.0), ("c", 1.8)))
    assert decided(capsys, before, same, *STEP)["outcome"] == "passed"
    found = decided(capsys, before, slow, *STEP, "--fail-on", "kernels > +0")
    assert (found["outcome"], found["exit_code"], found["says"]) == ("failed", 1, "1 of 2 limits broken")
    assert found["comparison"]["after_ms"] == pytest.approx(1.8 * 1.90)
    newer = decided(capsys, before, recorded(tmp_path / "d", 1.8, torch="2.14.0"), *STEP)
    assert newer["exit_code"] == 1, "another version may be the change itself: it is said, and judged"
    assert newer["environments"] == [
        {"what": "torch", "before": "2.13.0", "after": "2.14.0", "decisive": False}
    ]
    other = decided(
        capsys, before, recorded(tmp_path / "e", 1.8, device="Other"), *STEP, "--fail-on", "step_ms > 9"
    )
    assert (other["outcome"], other["exit_code"]) == ("inconclusive", 4)
    assert [gate["state"] for gate in other["gates"]] == ["inconclusive", "passed"], "9 ms are 9 ms anywhere"
    missing = decided(capsys, before, same, "--fail-on", "peak_bytes > +5%")
    assert missing["exit_code"] == 4
    assert "peak_bytes was not recorded" in missing["gates"][0]["says"]


@pytest.mark.slow
def test_two_times_pass_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two steps that look faster: they could as well be slower."""
    before, after = (
        str(steps((length,) * 2).write(tmp_path, f"{length}.json")) for length in (3_800.0, 1_800.0)
    )
    found = decided(capsys, before, after, *STEP)
    assert found["exit_code"] == 4
    assert "2 steps and 2 steps are too few" in found["gates"][0]["says"]


@pytest.mark.slow
def test_another_processor_decides_only_without_a_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def on_cpu() -> Recording:
        made = Recording()
        for number in range(6):
            made.step(number, 2_000.0 * number, 2_000.0 * number + 1_990)
            made.op("aten::mm", 2_000.0 * number + 10, 2_000.0 * number + 1_900)
        return made

    chips: list[dict[str, Any]] = [
        {"processor": {"model": model, "usable_cpu_count": 4}} for model in ("EPYC", "Xeon")
    ]
    pair = [str(run_folder(tmp_path / f"c{n}", on_cpu(), BLOCKS, **chip)) for n, chip in enumerate(chips)]
    found = decided(capsys, *pair, *STEP)
    assert (found["exit_code"], found["says"]) == (4, "not judged: other processor")
    gpus = [recorded(tmp_path / f"g{n}", **chip) for n, chip in enumerate(chips)]
    found = decided(capsys, *gpus, *STEP)
    assert found["exit_code"] == 0
    assert [each["what"] for each in found["environments"]] == ["processor"]


@pytest.mark.slow
def test_a_file_of_baselines_is_as_good_as_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, slow = recorded(tmp_path / "a"), recorded(tmp_path / "b", 1.8, torch="2.14.0")
    file = tmp_path / "main.json"
    assert main(["compare", "--no-cache", before, "--save-baseline", "main", "--baselines", str(file)]) == 0
    assert "Linux-of-one-machine" not in file.read_text()
    capsys.readouterr()
    by_run, by_file = decided(capsys, before, slow, *STEP), decided(capsys, str(file), slow, *STEP)
    assert by_file["gates"] == by_run["gates"]
    assert by_file["environments"] == by_run["environments"] != []
    assert main(["gate", str(file), slow, *STEP, "--baseline", "mian"]) == 2
    assert "did you mean main?" in capsys.readouterr().err
    file.write_text(file.read_text().replace('"main"', '"a"').replace('"times_ns"', '"times"'))
    assert main(["gate", str(file), slow, *STEP, "--markdown", str(tmp_path / "x.md")]) == 3
    assert "save it again with --save-baseline" in (tmp_path / "x.md").read_text()


@pytest.mark.slow
def test_reports_are_written_whatever_happens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, files = recorded(tmp_path / "a|b"), (tmp_path / "c.md", tmp_path / "g.xml")
    written = ["--markdown", str(files[0]), "--junit", str(files[1]), "--github", "--force"]
    assert main(["gate", "--no-cache", str(tmp_path / "none.json"), run, *STEP, *written]) == 4
    out = capsys.readouterr().out
    assert "::warning title=foretrace gate%3A inconclusive::there is no baseline yet: none.json" in out
    assert files[0].read_text().splitlines()[:2] == [
        "<!-- foretrace-gate: gate -->",
        "### ⚠️ Inconclusive: there is no baseline yet: none.json does not exist",
    ]
    assert main(["gate", "--no-cache", run, str(tmp_path / "gone"), *STEP, *written]) == 3
    assert "gone" in files[0].read_text()
    assert main(["gate", "--no-cache", run, run, *STEP, *written, "--key", "a --> b"]) == 0
    text = files[0].read_text()
    assert text.startswith("<!-- foretrace-gate: a-b -->\n### ✅ Passed")
    assert "| ✅ passed | `step_ms > +3%` | step\\_ms 1.9 → 1.9: +0.0 % (" in text
    assert ElementTree.parse(files[1]).getroot().get("tests") == "2"


def test_a_comment_is_never_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "a")
    monkeypatch.setattr(gate_comment, "MOST_CHARACTERS", 700)
    assert main(["gate", "--no-cache", run, run, *STEP, "--format", "md"]) == 0
    text = capsys.readouterr().out
    assert len(text) <= 700
    assert "What explains the difference is too long" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "gate needs a limit"),
        (["--fail-on", "step > 3"], "no value named 'step'"),
        ([*STEP, "--baseline", "main"], "is not a file of baselines"),
    ],
)
def test_wrong_calls(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "a")
    assert main(["gate", "--no-cache", run, run, *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
