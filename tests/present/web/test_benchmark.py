"""A benchmark on the page: its table, pictures and trust, two of them compared, and both through the server and the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.bench.benchmark import Benchmark
from foretrace.compare.benches import compare_benches
from foretrace.errors import FormatError, MissingDataError, UsageError
from foretrace.present.export import report
from foretrace.present.web import payload, static_files
from foretrace.present.web.bench_view import BenchView
from foretrace.present.web.library import Library
from foretrace.present.web.run_files import bench_names
from foretrace.units import counted
from tests.present.web.contract import same_fields
from tests.present.web.recordings import recording

NOISE = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999)


def row(d_model: int, seq_len: int, ms: float | None, *, impl: str = "naive", **other: Any) -> dict[str, Any]:
    """A case of `bench attention`; without a time it ran out of memory."""
    case = {"impl": impl, "precision": "fp32", "d_model": d_model, "seq_len": seq_len}
    if ms is None:
        return {**case, "status": "OOM", "reason": "CUDA out of memory"}
    times = {
        "fwd_ms": ms,
        "median_ms": ms,
        "low_ms": 0.99 * ms,
        "high_ms": 1.02 * ms,
        "avg_ms": ms,
        "std_ms": 0.1 * ms,
    }
    kept = {"samples_ms": [ms * noise for noise in NOISE], "calls": 1, "stopped": "precise"}
    memory = {"mem_before_bwd_MiB": 2.0 * seq_len, "clock_mhz": 1980, "slowed_by": None}
    return {**case, "status": "OK", "reason": None, **times, **kept, **memory, **other}


ROWS = (
    row(32, 64, 1.0), row(32, 128, 2.0), row(32, 1024, 90.0, slowed_by="power cap", clock_mhz=1500),
    row(64, 64, 1.5), row(64, 128, 4.0), row(64, 1024, None),
)  # fmt: skip


def view(
    folder: Path, rows: tuple[dict[str, Any], ...] = ROWS, name: str = "a.json", **other: Any
) -> BenchView:
    known = {
        "kind": "attention",
        "device": "NVIDIA H200",
        "torch": "2.11",
        "notes": ("Note.",),
        "clock": {"by": "pynvml"},
    }
    made = Benchmark(**{"case": ("impl", "precision", "d_model", "seq_len"), **known, "rows": rows, **other})
    (folder / name).write_text(made.to_json(), encoding="utf-8")
    return BenchView(folder / name, run_id=name.removesuffix(".json"))


def told(run: BenchView, name: str = "benchmark", **others: BenchView) -> dict[str, Any]:
    """A resource as the page gets it."""
    found: dict[str, Any] = json.loads(payload.to_bytes(payload.resource(run, name, find=others.__getitem__)))
    return found


def column(table: dict[str, Any], name: str) -> list[Any]:
    at = [each["name"] for each in table["columns"]].index(name)
    cells: list[Any] = table["data"][at]
    return cells


def test_a_benchmark_keeps_its_contract(tmp_path: Path) -> None:
    found = told(view(tmp_path))
    same_fields(found, "Benchmark")
    same_fields(found["trust"], "Trust")
    (part,) = found["parts"]
    same_fields(part, "BenchPart")
    same_fields(part["table"], "Table")
    same_fields(part["x"], "BenchAxis")
    for name, kind in (("series", "BenchLine"), ("plots", "BenchPlot")):
        assert part[name]
        for each in part[name]:
            same_fields(each, kind)
    same_fields(payload.run_entry(view(tmp_path)), "RunEntry")
    assert payload.run_entry(view(tmp_path))["sort"] == "benchmark"


def test_where_when_and_how_stand_first(tmp_path: Path) -> None:
    known: dict[str, Any] = {
        "began": "2026-11-16T22:58:03+00:00",
        "command": "foretrace bench attention",
        "timing": {"how": "single"},
    }
    found = told(view(tmp_path, **known))
    about = {fact["label"]: fact["value"] for fact in found["about"]}
    assert about == {
        "Device": "NVIDIA H200", "torch": "2.11", "Date": "2026-11-16 22:58 UTC", "Command": "foretrace bench attention",
        "A sample": "one call at a time, launches included",
    }  # fmt: skip
    assert found["says"] == "attention: 6 cases on NVIDIA H200, 1.00 ms to 90.0 ms; 1 OOM"
    assert found["notes"] == ["Note."]
    older = {fact["label"]: fact["value"] for fact in told(view(tmp_path))["about"]}
    assert (older["Date"], older["Command"]) == ("not recorded", "not recorded")


def test_the_table_has_status_noise_and_what_held_the_clock_back(tmp_path: Path) -> None:
    (part,) = told(view(tmp_path))["parts"]
    table = part["table"]
    assert part["says"] == "All rows: impl naive, precision fp32"
    assert [each["name"] for each in table["columns"]] == [
        "d_model", "seq_len", "status", "slowed_by", "fwd_ns", "noise_pct", "avg_ns", "std_ns", "mem_before_bwd_bytes",
        "clock_mhz", "reason",
    ]  # fmt: skip
    assert column(table, "status") == ["OK"] * 5 + ["OOM"]
    assert column(table, "slowed_by") == [None, None, "power cap", None, None, None]
    assert column(table, "fwd_ns")[:2] == [1e6, 2e6]
    assert column(table, "fwd_ns")[5] is None
    assert column(table, "noise_pct")[0] == pytest.approx(1.5)  # from 0.99 to 1.02: half of 3 %
    assert column(table, "mem_before_bwd_bytes")[0] == 128 << 20


def test_lines_lie_over_the_field_with_most_values(tmp_path: Path) -> None:
    (part,) = told(view(tmp_path))["parts"]
    assert part["x"] == {"title": "seq_len", "log": True, "values": [64, 128, 1024, 64, 128, 1024]}
    assert [(line["label"], line["rows"]) for line in part["series"]] == [
        ("d_model 32", [0, 1, 2]), ("d_model 64", [3, 4, 5]),
    ]  # fmt: skip
    assert part["panels"] == []
    time, memory = part["plots"]
    assert (time["name"], time["log"]) == ("fwd_ns", True)  # 90 times as long
    assert (time["values"][0], time["low"][0], time["high"][0]) == (
        1e6,
        pytest.approx(0.99e6),
        pytest.approx(1.02e6),
    )
    assert time["values"][5] is None
    assert part["statuses"][5] == "OOM"
    assert (memory["name"], memory["log"], memory["low"][0]) == ("mem_before_bwd_bytes", False, None)


def test_the_interval_of_a_rate_is_that_of_its_time_turned_round(tmp_path: Path) -> None:
    rows = tuple(row(32, size, size / 64, tokens_per_s=1000.0) for size in (64, 128))
    plots = {plot["name"]: plot for plot in told(view(tmp_path, rows))["parts"][0]["plots"]}
    rate = plots["tokens_per_s"]
    assert (rate["low"][0], rate["high"][0]) == (pytest.approx(1000 / 1.02), pytest.approx(1000 / 0.99))


def test_too_many_lines_become_several_pictures(tmp_path: Path) -> None:
    rows = tuple(
        row(width, size, 1.0, impl=impl)
        for impl in ("naive", "math", "flash")
        for width in (16, 32, 64, 128)
        for size in (64, 128, 256, 512, 1024)
    )
    (part,) = told(view(tmp_path, rows))["parts"]
    assert part["panels"] == ["d_model 16", "d_model 32", "d_model 64", "d_model 128"]
    assert [line["label"] for line in part["series"] if line["panel"] == 1] == ["naive", "math", "flash"]
    colours = {line["label"]: line["colour"] for line in part["series"]}
    assert all(colours[line["label"]] == line["colour"] for line in part["series"])


def test_sides_of_a_square_are_one_axis_and_names_lie_along_none(tmp_path: Path) -> None:
    squares = tuple({**row(0, 0, 1.0), "m": size, "n": size, "k": size} for size in (64, 128))
    (part,) = told(view(tmp_path, squares, case=("m", "n", "k")))["parts"]
    assert part["x"]["title"] == "m = n = k"
    assert [line["label"] for line in part["series"]] == [""]
    functions = tuple({**row(0, 0, 1.0), "function": name} for name in ("a.py::f", "a.py::g"))
    (part,) = told(view(tmp_path, functions, case=("function",)))["parts"]
    assert part["x"] is None
    assert part["labels"] == ["a.py::f", "a.py::g"]


def test_trust_tells_noise_time_and_the_clock(tmp_path: Path) -> None:
    found = told(view(tmp_path))["trust"]
    facts = {fact["label"]: (fact["mark"], fact["value"], fact["detail"]) for fact in found["facts"]}
    assert found["verdict"] == "with care"
    assert facts["Rows timed"] == ("note", "5 of 6", "1 OOM")
    assert facts["Noise of a median"][:2] == ("note", "± 1.5 %")
    assert facts["Samples of a row"][:2] == ("good", "8")
    assert facts["Clock"] == ("note", "1,500–1,980 MHz", "held back in 1 of 6 rows: power cap")
    quiet = (row(32, 64, 1.0, low_ms=0.999, high_ms=1.001), row(32, 128, 2.0, low_ms=1.999, high_ms=2.001))
    assert told(view(tmp_path, quiet))["trust"]["verdict"] == "yes"
    backward = tuple({**each, "bwd_ms": 1.0, "bwd_low_ms": 0.9, "bwd_high_ms": 1.1} for each in quiet)
    noise = told(view(tmp_path, backward))["trust"]["facts"][1]
    assert (noise["mark"], noise["value"]) == ("note", "± 10 %")
    hurried = (row(32, 64, 1.0, stopped="time", clock_mhz=None),)
    watched = {
        fact["label"]: fact for fact in told(view(tmp_path, hurried, clock={"by": None}))["trust"]["facts"]
    }
    assert watched["Samples of a row"]["detail"] == "time was up first in 1 of 1 rows"
    assert (watched["Clock"]["mark"], watched["Clock"]["value"]) == ("unknown", "not watched")
    assert told(view(tmp_path, (row(1, 1, None),)))["trust"]["verdict"] == "no"


def test_two_benchmarks_are_compared_as_the_command_does(tmp_path: Path) -> None:
    before = view(tmp_path)
    after = view(tmp_path, (row(32, 64, 1.0), row(32, 128, 1.0), row(16, 64, 1.0)), name="b.json")
    found = told(before, "compare/b", b=after)
    same_fields(found, "BenchComparison")
    same_fields(found["a"], "BenchSide")
    same_fields(found["table"], "Table")
    same_fields(found["speedups"][0], "BenchSpeedup")
    known = compare_benches(before.compared, after.compared)
    assert (found["verdict"], found["says"]) == (known.verdict, known.says)
    assert [speedup["label"] for speedup in found["speedups"]] == [
        "d_model 32, seq_len 128",
        "d_model 32, seq_len 64",
    ]
    assert found["speedups"][0]["point"] == pytest.approx(2.0)
    assert column(found["table"], "verdict") == ["faster", "same"]
    assert any(note.startswith(f"{counted(4, 'case')} only in a: ") for note in found["notes"])
    alone = told(before, "compare/c", c=view(tmp_path, (row(8, 8, 1.0),), name="c.json"))
    assert (alone["verdict"], alone["table"]) == ("inconclusive", None)
    assert "no case was timed in both" in alone["says"]


def test_what_is_no_benchmark_is_told_with_its_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    for document in (
        {"schema": "foretrace.bench/1"},
        {"schema": "foretrace.bench/2", "kind": "x", "device": "", "torch": "", "case": [], "rows": []},
        {"schema": "foretrace.bench/1", "kind": "x", "device": "", "torch": "", "case": [], "rows": [1]},
        {
            "schema": "foretrace.bench/1",
            "kind": "x",
            "device": 3,
            "torch": "",
            "case": [],
            "rows": [{"status": "OK"}],
        },
    ):
        broken.write_text(json.dumps(document))
        with pytest.raises(FormatError, match=r"broken\.json"):
            BenchView(broken)


def test_the_library_lists_recordings_and_benchmarks_apart(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    view(folder, name="sweep.json")
    recorded = recording(folder)
    library = Library([folder], cache=False, settle_s=0)
    runs = {run["name"]: run for run in library.runs()["runs"]}
    sorts = {name: run["sort"] for name, run in runs.items()}
    assert sorts.pop("sweep") == "benchmark"
    assert set(sorts.values()) == {"recording"}
    bench = library.run(runs["sweep"]["id"])
    assert library.resource(bench.id, "benchmark", {}).media_type == "application/json"
    assert bench.group == "attention"
    with pytest.raises(MissingDataError, match="sweep is a benchmark"):
        library.recording(bench)
    other = next(run for run in library.runs()["runs"] if run["sort"] == "recording")
    with pytest.raises(UsageError, match="a recording and a benchmark cannot be compared"):
        library.resource(other["id"], f"compare/{bench.id}", {})
    assert recorded.exists()


def test_files_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [tmp_path / side / "bench" / "attention.json" for side in ("b1", "b2")]
    for path in paths:
        path.parent.mkdir(parents=True)
        view(path.parent, name=path.name)
    assert list(bench_names(paths).values()) == ["b1/bench/attention", "b2/bench/attention"]


def test_a_report_holds_benchmarks_and_their_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("index.html", ""), ("app.js", "1"), ("app.css", "p{}")):
        (tmp_path / name).write_text(content)
    monkeypatch.setattr(static_files, "_folder", lambda: tmp_path)
    made = report.make([view(tmp_path), view(tmp_path, name="b.json")])
    for name in ("runs", "a/benchmark", "b/benchmark", "a/compare/b", "b/compare/a"):
        assert f'data-resource="{name}"' in made.text
    assert "<title>a, b · Foretrace</title>" in made.text
