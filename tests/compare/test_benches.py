"""Two benchmarks: matched by case, each judged by its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.__main__ import main
from foretrace.compare.benches import compare_benches, read_bench, to_dict

NOISE = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999)


def row(size: int, ms: float | None, status: str = "OK", *, fused: bool = True) -> dict[str, Any]:
    samples = [] if ms is None else [ms * noise for noise in NOISE]
    case = {"size": size, "dtype": "bf16", "fused": fused}
    return {**case, "status": status, "median_ms": ms, "low_ms": ms, "high_ms": ms, "samples_ms": samples}


def written(path: Path, rows: list[dict[str, Any]], **other: Any) -> Path:
    known = {
        "schema": "foretrace.bench/1", "kind": "matmul", "device": "NVIDIA H200", "torch": "2.13.0",
        "case": ["size", "dtype", "fused"], **other,
    }  # fmt: skip
    path.write_text(json.dumps({**known, "rows": rows}))
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    before = written(tmp_path / "a.json", [row(1, 1.0), row(2, 4.0), row(3, None, "OOM"), row(4, 1.0)])
    after = written(tmp_path / "b.json", [row(2, 2.0), row(1, 1.001), row(3, 9.0), row(5, 1.0)])
    return before, after


def test_rows_are_matched_by_their_case(files: tuple[Path, Path]) -> None:
    found = compare_benches(read_bench(files[0], "a"), read_bench(files[1], "b"))
    verdicts = {row.what: row.judged.verdict for row in found.timed if row.judged}
    assert verdicts == {
        "size 2, dtype bf16, fused True": "faster", "size 1, dtype bf16, fused True": "same"
    }  # fmt: skip
    assert found.only_before == ("size 4, dtype bf16, fused True",)
    assert found.only_after == ("size 5, dtype bf16, fused True",)
    assert found.verdict == "faster"
    assert any("OOM, then OK" in note for note in found.notes)
    told = to_dict(found)
    assert (told["before_ms"], told["after_ms"]) == (
        pytest.approx(5.0, rel=1e-3),
        pytest.approx(3.0, rel=1e-3),
    )
    assert sum(cause["delta_ms"] for cause in told["causes"]) == pytest.approx(
        told["after_ms"] - told["before_ms"]
    )
    assert told["speedup"]["low"] < told["speedup"]["point"] < told["speedup"]["high"]


def test_both_ways_is_inconclusive(tmp_path: Path) -> None:
    before = written(tmp_path / "a.json", [row(1, 1.0), row(2, 1.0)])
    after = written(tmp_path / "b.json", [row(1, 2.0), row(2, 0.5)])
    assert compare_benches(read_bench(before, "a"), read_bench(after, "b")).verdict == "inconclusive"


def test_the_file_may_name_its_case_columns(tmp_path: Path) -> None:
    """Rows whose other columns differ are the same case."""
    before = written(tmp_path / "a.json", [row(1, 1.0, fused=True)], case=["size", "dtype"])
    after = written(tmp_path / "b.json", [row(1, 1.0, fused=False)], case=["size", "dtype"])
    assert len(compare_benches(read_bench(before, "a"), read_bench(after, "b")).timed) == 1


def test_the_command_and_its_gate(files: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = map(str, files)
    assert main(["compare", before, after, "--fail-on", "step_ms > +3%"]) == 0
    assert "1 faster, 1 same" in capsys.readouterr().out
    assert main(["compare", after, before, "--fail-on", "step_ms > +3%"]) == 1
    assert "size 2" in capsys.readouterr().out
    assert main(["compare", after, before, "--fail-on", "kernels > +3%"]) == 2


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("}]}", "", "delimiter"),
        ('"kind": "matmul", ', "", "`kind`"),
        ('"median_ms": 1.0', '"median_ms": "1"', "`$.rows[0].median_ms`"),
        ('"median_ms": 1.0', '"median_ms": NaN', "NaN"),
        ('"median_ms": 1.0', '"median_ms": 1e999', "`$.rows[0][...]`"),
        ('"status": "OK"', '"status": "FINE"', "`$.rows[0].status`"),
        ('"case": [', '"case": ["size", ', "`$.case`"),
        ('"case": [', '"clock": {"slowed_by": 5}, "case": [', "clock: damaged"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_the_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, field: str
) -> None:
    good = written(tmp_path / "a.json", [row(1, 1.0)])
    assert old in good.read_text()
    (tmp_path / "bad.json").write_text(good.read_text().replace(old, new))
    assert main(["compare", str(good), str(tmp_path / "bad.json")]) == 3
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert field in said
    assert "bad.json" in said


def test_nothing_in_common_is_not_recorded(tmp_path: Path) -> None:
    first, second = written(tmp_path / "a.json", [row(1, 1.0)]), written(tmp_path / "b.json", [row(2, 1.0)])
    assert main(["compare", str(first), str(second)]) == 4
