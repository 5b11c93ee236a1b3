"""Baselines: a small file that stays the same for the same recording, and holds no paths."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.compare import baselines
from foretrace.compare.sides import side_of
from foretrace.compare.steps import compare_sides
from tests.compare.recorded import run_folder, steps

STEADY = (1_000.0, 1_001.0, 999.0, 1_000.5, 999.5, 1_000.2)


def test_a_side_comes_back_as_it_was(tmp_path: Path) -> None:
    side = side_of(steps(STEADY).open(tmp_path), "recording")
    file = tmp_path / "baselines.json"
    file.write_text(baselines.with_baseline(file, "main", side, {"overview.gpu_idle_pct": 5.0}, force=False))
    loaded = baselines.load(file, "main")
    assert loaded.values == {"overview.gpu_idle_pct": 5.0}
    found = compare_sides(loaded, side)
    assert found.verdict == "same"
    assert all(abs(cause.delta_ns) < 1 for cause in found.causes)


def test_saving_again_changes_nothing_and_other_names_stay(tmp_path: Path) -> None:
    side = side_of(steps(STEADY).open(tmp_path), "recording")
    file = tmp_path / "baselines.json"
    for name in ("zeta", "alpha"):
        file.write_text(baselines.with_baseline(file, name, side, {}, force=False))
    text = file.read_text()
    assert baselines.with_baseline(file, "zeta", side, {}, force=True) == text
    assert list(json.loads(text)["baselines"]) == ["alpha", "zeta"]
    assert str(tmp_path) not in text
    assert "recording" not in text
    assert len(text) < 4_000


def test_of_many_steps_the_median_stays(tmp_path: Path) -> None:
    many = steps([1_900 + 0.1 * number for number in range(601)]).open(tmp_path)
    side = side_of(many, "many")
    file = tmp_path / "baselines.json"
    file.write_text(baselines.with_baseline(file, "many", side, {}, force=False))
    loaded = baselines.load(file, "many")
    assert len(loaded.times_ns) < 101
    assert loaded.recorded_ns == pytest.approx(side.recorded_ns, abs=1)


@pytest.mark.slow
def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = [1.90, 1.91, 1.89, 1.90, 1.92, 1.90, 1.91]
    run_folder(tmp_path / "old", steps((1_800.0,) * 3), blocks)
    run_folder(tmp_path / "new", steps((1_800.0,) * 3), [1.3 * block for block in blocks])
    run_folder(tmp_path / "again", steps((1_800.0,) * 3), blocks)
    limit = ["--fail-on", "step_ms > +3%"]
    assert main(["compare", "old", "--save-baseline", "main"]) == 0
    assert "saved main in foretrace-baselines.json" in capsys.readouterr().err
    assert main(["compare", "again", "--baseline", "main", *limit]) == 0
    assert main(["compare", "new", "--baseline", "main", *limit]) == 1
    out = capsys.readouterr().out
    assert "main → new" in out
    assert "failed  step_ms > +3%" in out
    assert main(["compare", "old", "--save-baseline", "main"]) == 2
    assert "without --force" in capsys.readouterr().err
    assert main(["compare", "old", "--save-baseline", "main", "--force"]) == 0


@pytest.mark.parametrize(
    ("text", "name", "code", "says"),
    [
        (None, "main", 3, "no such file"),
        ("{", "main", 3, "damaged"),
        ('{"schema": "other"}', "main", 3, "not a file of baselines"),
        (
            '{"schema": "foretrace.baselines/1", "baselines": {"main": {}}}',
            "main",
            3,
            "save it again with --save-baseline main",
        ),
        ('{"schema": "foretrace.baselines/1", "baselines": {"main": {}}}', "mian", 2, "did you mean main"),
    ],
)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, name: str, code: int, says: str
) -> None:
    trace, file = steps().write(tmp_path), tmp_path / "baselines.json"
    if text is not None:
        file.write_text(text)
    assert main(["compare", "--no-cache", str(trace), "--baseline", name, "--baselines", str(file)]) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("times_ns", [0]), ("times_ns", [10**400]), ("times_ns", [True]), ("values", {"a": "x"}), ("unprofiled_ns", -1),
        ("parts", {"GPU": 5}), ("marked", "yes"), ("environment", {"torch": 2}), ("dtype", []),
    ],
)  # fmt: skip
def test_a_damaged_baseline_names_its_field_and_harms_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], field: str, value: object
) -> None:
    trace, file = steps().write(tmp_path), tmp_path / "baselines.json"
    for name in ("main", "other"):
        assert (
            main(["compare", "--no-cache", str(trace), "--save-baseline", name, "--baselines", str(file)])
            == 0
        )
    document = json.loads(file.read_text())
    document["baselines"]["main"][field] = value
    file.write_text(json.dumps(document))
    capsys.readouterr()
    compare = ["compare", "--no-cache", str(trace), "--baselines", str(file), "--baseline"]
    assert main([*compare, "main"]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"`$.{field}" in said
    assert main([*compare, "other"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", ["NaN", "Infinity", "1" + "0" * 5000])
def test_what_is_no_number_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    trace, file = steps().write(tmp_path), tmp_path / "baselines.json"
    save = ["compare", "--no-cache", str(trace), "--save-baseline", "main", "--baselines", str(file)]
    assert main(save) == 0
    file.write_text(re.sub(r'"product_flops": [^,]+', f'"product_flops": {number}', file.read_text()))
    assert number in file.read_text()
    capsys.readouterr()
    assert main([*save, "--force"]) == 3
    assert main(["compare", "--no-cache", str(trace), "--baseline", "main", "--baselines", str(file)]) == 3
    assert capsys.readouterr().err.count("\n") == 2
