from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace import cache, schema
from foretrace.commands import main
from foretrace.commands.demo import SAMPLE
from tests.builders import Recording


@pytest.fixture
def path(tmp_path: Path) -> str:
    recording = Recording().step(1, 0, 100).op("aten::add", 5, 20)
    recording.launch(10, "add_kernel", 30, 60).launch(12, "mul_kernel", 60, 70)
    return str(recording.write(tmp_path))


def rows(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    assert main([*arguments, "--format", "json"]) == 0
    found: list[dict[str, object]] = json.loads(capsys.readouterr().out)["rows"]
    return found


@pytest.mark.slow
def test_sql_joins_tables(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    query = (
        "select upper(s.name) as name, s.dur_ns, l.name as launch from spans s join kernels k on k.span_id = s.id "
        "join spans l on l.id = s.launch_id where s.kind = 'kernel' and s.name like '%_kernel' order by s.dur_ns desc"
    )
    assert rows(capsys, "sql", path, query) == [
        {"name": "ADD_KERNEL", "dur_ns": 30_000, "launch": "cudaLaunchKernel"},
        {"name": "MUL_KERNEL", "dur_ns": 10_000, "launch": "cudaLaunchKernel"},
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "selec 1",
        "select nope from spans",
        "select * from nowhere",
        "",
        "select (",
        "select sum(name) from spans",
    ],
)
def test_wrong_sql_is_one_line(query: str, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["sql", path, query])
    captured = capsys.readouterr()
    assert code == 2
    assert captured.out == ""
    assert captured.err.startswith("foretrace: sql: ")
    assert captured.err.count("\n") == 1


def test_sql_without_query_describes_the_tables(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    described = {(row["table"], row["column"]) for row in rows(capsys, "sql", path)}
    recorded = {(table, column) for table, columns in schema.TABLES.items() for column in columns}
    joined = ("name", "start_ns", "dur_ns", "launch_id", "op_id", "step", "device", "stream", "operator")
    assert described == recorded | {(table, column) for table in ("kernels", "copies") for column in joined}


@pytest.mark.slow
def test_doctor_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    checks = {row["what"]: row for row in rows(capsys, "doctor")}
    assert {"foretrace", "python", "reader", "polars", "numpy", "isal", "cache", "torch"} <= set(checks)
    assert {"nvidia-smi", "nsys", "ncu", "rocprofv3"} <= set(checks)
    for check in checks.values():
        assert check["status"] in ("ok", "missing", "broken")
        assert bool(check["fix"]) == (check["status"] != "ok"), "what is missing says how to get it"
    assert main(["doctor"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= len(checks)


def test_cache_looks_and_clears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.test_cache import key_of, small

    monkeypatch.setenv("FORETRACE_CACHE", str(tmp_path / "kept"))
    assert main(["cache"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'kept'}: 0 entries, 0 of 2.00 GiB\n"
    cache.store(key_of(1), small())
    assert [row["source"] for row in rows(capsys, "cache")] == ["small.json"]
    assert main(["cache", "--clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 entry, ")
    assert cache.entries() == []


def test_cache_trouble_is_a_warning_on_stderr(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.test_cache import key_of, small

    blocked = tmp_path / "file"
    blocked.touch()
    monkeypatch.setenv("FORETRACE_CACHE", str(blocked))
    monkeypatch.setattr("foretrace.commands.doctor.run", lambda _: cache.store(key_of(1), small()))
    assert main(["doctor"]) == 0
    assert capsys.readouterr().err.startswith("foretrace: warning: not kept in the cache: ")


@pytest.mark.slow
def test_demo_shows_the_sample_and_where_to_go(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo"]) == 0
    shown = capsys.readouterr().out
    for part in ("trust", "overview", "steps", "kernels", "where to go next", "NVIDIA H200", "3 steps"):
        assert part in shown
    assert str(SAMPLE) in shown


def test_summary_as_json(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", path, "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert list(document["results"]) == ["trust", "overview", "steps", "kernels"]
    assert document["missing"] == {}


@pytest.mark.slow
def test_summary_without_gpu_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Recording().op("aten::add", 0, 10).write(tmp_path)
    assert main(["summary", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert "steps" in document["missing"]
    assert "trust" in document["results"]
    for form in ("table", "md"):
        assert main(["summary", str(path), "--format", form]) == 0
        assert "no steps recorded" in capsys.readouterr().out
