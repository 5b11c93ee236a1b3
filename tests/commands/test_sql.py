"""A query reads the tables of a recording and nothing else, and is stopped in time."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import polars as pl
import pytest

from foretrace import schema
from foretrace.commands import _query, _sql_tables, main, sql
from foretrace.errors import UsageError
from foretrace.ingest import open_trace
from tests.builders import Recording

SPANS = pl.DataFrame({"id": range(5_000), "name": ["a", "b"] * 2_500})
TABLES = {"spans": SPANS}
READERS = (
    "read_csv",
    "READ_CSV",
    '"read_csv"',
    "`read_csv`",
    "read_parquet",
    "read_json",
    "read_ipc",
    "scan_csv",
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20)
    for number in range(9):
        made.launch(10, f"kernel_{number}", 30 + number, 31 + number)
    return str(made.write(tmp_path))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "query",
    [
        "select * from {}('{}')",
        "select * from {} /* a comment ( */ ('{}')",
        "select * from {} -- another\n('{}')",
        "select * from spans, {}('{}')",
        "select * from spans a join spans b on lower(a.name) = b.name, {}('{}')",
        "select * from spans cross join {}('{}') as other",
        "select * from ({}('{}') cross join spans)",
        "with x as (select * from {}('{}')) select * from x",
        "select (select count(*) from {}('{}')) from spans",
        "select * from spans where id in (select a from {}('{}'))",
        "select 1 union all select a from {}('{}')",
        "create table x as select * from {}('{}')",
        "explain select * from {}('{}')",
        "select * from 'it''s', {}('{}')",
    ],
)
def test_no_query_names_a_file(query: str, reader: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    with pytest.raises(UsageError, match="refused: a query reads the tables of the recording"):
        _query.check(query.format(reader, secret))


@pytest.mark.parametrize(
    "name", ["glob", "http_get", "sniff_csv", "parquet_scan", "generate_series", "pg.read_file"]
)
def test_functions_in_place_of_a_table_are_refused_unless_they_are_known(name: str) -> None:
    with pytest.raises(UsageError, match="refused"):
        _query.check(f"select * from {name}('x')")


@pytest.mark.parametrize(
    "query",
    [
        "select upper(name), count(*) from spans group by upper(name) having count(*) > 1 order by lower(name)",
        "select * from (select id from spans) as t join (select id from spans) u on abs(t.id) = u.id",
        "select * from spans where name = 'from read_csv(x)' and id in (select max(id) from spans)",
        "with x as (select 1), y as (select 2) select * from x, y where coalesce(1, 2) = 1",
        "select * from unnest([1, 2]) as t(x)",
        'select "from", count(id) from spans',
        "select sum(id) over (partition by name order by id) from spans limit 5",
        "select 1 -- from read_csv('x')",
    ],
)
def test_ordinary_queries_pass(query: str) -> None:
    _query.check(query)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="no limit on open files there")
@pytest.mark.parametrize("place", ["file", "address"])
def test_what_passes_the_check_still_can_open_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second wall: the process that answers has no files left to open."""
    (tmp_path / "x.csv").write_text("a\n1\n")
    monkeypatch.setattr(_query, "check", lambda query: None)
    where = f"read_csv('{tmp_path / 'x.csv'}')" if place == "file" else "read_parquet('http://127.0.0.1:9/x')"
    with pytest.raises(UsageError, match=r"sql: .*(?:Too many open files|object-store error)"):
        _query.ask(TABLES, f"select * from {where}")


def test_a_refused_query_is_one_line_and_reads_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "/nowhere.json", "select * from read_csv('/etc/passwd')"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "foretrace: sql: read_csv() is refused: a query reads the tables of the recording, not files or addresses\n"
    )


@pytest.mark.slow
def test_a_query_without_end_is_stopped() -> None:
    """125 billion rows to count: minutes, on any machine."""
    endless = "select count(*) from spans a, spans b, spans c where a.id * b.id * c.id % 7 = 3"
    with pytest.raises(
        UsageError, match=r"sql: (?:stopped after 0.2 s; ask for less|the query was ended by the system)"
    ):
        _query.ask(TABLES, endless, timeout_s=0.2)


@pytest.mark.slow
def test_the_time_limit_is_told_and_exits_2(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    joined = ", ".join(f"spans s{number}" for number in range(9))
    query = f"select count(*) from {joined} where s0.id + s1.id + s8.id = 1"
    assert main(["sql", path, query, "--timeout", "0.2"]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "sql: stopped after 0.2 s" in captured.err or "ended by the system" in captured.err


@pytest.mark.slow
def test_rows_beyond_the_limit_are_cut_and_that_is_told(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select name from spans where kind = 'kernel' order by name"
    assert main(["sql", path, query, "--max-rows", "3", "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert [row["name"] for row in json.loads(captured.out)["rows"]] == ["kernel_0", "kernel_1", "kernel_2"]
    assert captured.err == "foretrace: sql: cut at 3 rows, there are more; see --max-rows\n"
    for enough in ("9", "0"):
        assert main(["sql", path, query, "--max-rows", enough, "--format", "json"]) == 0
        captured = capsys.readouterr()
        assert (len(json.loads(captured.out)["rows"]), captured.err) == (9, "")


@pytest.mark.slow
def test_a_cross_join_is_not_made_whole_for_its_first_rows() -> None:
    answered = _query.ask(TABLES, "select a.id from spans a, spans b, spans c", most_rows=10)
    assert (answered.frame.height, answered.cut) == (10, True)


@pytest.mark.parametrize("text", ["x", "-1", "nan", "inf"])
def test_a_time_limit_is_a_number_of_seconds(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sql", "any", "select 1", f"--timeout={text}"]) == 2
    assert "a time in seconds is 0 or more" in capsys.readouterr().err


def rows_of(capsys: pytest.CaptureFixture[str], path: str, query: str) -> list[dict[str, object]]:
    assert main(["sql", path, query, "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    rows: list[dict[str, object]] = json.loads(captured.out)["rows"]
    return rows


@pytest.fixture
def mixed(tmp_path: Path) -> str:
    """Two kernels of one name in two steps, the second launched outside of any operator; one copy."""
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20).launch(10, "add", 30, 34)
    made.step(2, 100, 200).launch(110, "add", 130, 136)
    return str(
        made.launch(
            150, "Memcpy HtoD (Pageable -> Device)", 160, 168, category="gpu_memcpy", bytes=4096
        ).write(tmp_path)
    )


@pytest.mark.slow
def test_kernels_have_names_times_streams_steps_and_operators(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select name, sum(dur_ns) as total_ns from kernels group by name"
    assert rows_of(capsys, mixed, query) == [{"name": "add", "total_ns": 10_000}]
    query = "select start_ns, dur_ns, device, stream, step, operator, span_id, grid_x from kernels order by start_ns"
    first, second = rows_of(capsys, mixed, query)
    assert (first["dur_ns"], first["step"], first["operator"]) == (4_000, 1, "aten::add")
    assert (second["dur_ns"], second["step"], second["operator"]) == (6_000, 2, None)
    assert isinstance(first["stream"], int)
    assert second["start_ns"] - first["start_ns"] == 100_000  # type: ignore[operator]


@pytest.mark.slow
def test_copies_are_joined_too_and_old_joins_still_work(
    mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "select name, step, dur_ns, size_bytes from copies"
    (copy,) = rows_of(capsys, mixed, query)
    assert copy == {
        "name": "Memcpy HtoD (Pageable -> Device)", "step": 2, "dur_ns": 8_000, "size_bytes": 4096,
    }  # fmt: skip
    query = "select s.name, s.dur_ns from kernels k join spans s on k.span_id = s.id order by s.start_ns"
    assert [row["dur_ns"] for row in rows_of(capsys, mixed, query)] == [4_000, 6_000]


@pytest.mark.parametrize("query", ["show tables", " SHOW  TABLES ; "])
def test_show_tables(query: str, mixed: str, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {row["table"]: row["rows_count"] for row in rows_of(capsys, mixed, query)}
    assert list(counts) == list(schema.TABLES)
    assert (counts["kernels"], counts["copies"], counts["python"]) == (2, 1, 0)


@pytest.mark.parametrize("query", ["describe kernels", "DESC kernels;", "show columns from kernels"])
def test_describe(query: str, mixed: str, capsys: pytest.CaptureFixture[str]) -> None:
    columns = [row["column"] for row in rows_of(capsys, mixed, query)]
    assert columns[: len(schema.TABLES["kernels"])] == list(schema.TABLES["kernels"])
    assert {"name", "dur_ns", "operator"} <= set(columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("select * from kernal", "sql: no table 'kernal'; did you mean kernels?"),
        ("describe kernal", "sql: no table 'kernal'; did you mean kernels?"),
        ("select * from xyzzy", "sql: no table 'xyzzy'; tables: spans, tracks, "),
        ("select nme from kernels", "sql: no column 'nme'; did you mean name?"),
        ("select k.dur from kernels k", "sql: no column 'dur' in 'k'; did you mean dur_ns?"),
    ],
)
def test_a_mistyped_name_is_answered_by_the_one_meant(
    query: str, says: str, mixed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sql", mixed, query]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"foretrace: {says}")
    assert captured.err.count("\n") == 1


def test_the_examples_of_the_help_run(mixed: str, capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r'foretrace sql PATH "([^"]*)"', sql._EXAMPLES)
    assert len(examples) >= 4
    trace = open_trace(mixed)
    tables = {name: _sql_tables.table(trace, name) for name in _sql_tables.TABLES}
    for query in examples:
        if _sql_tables.answered(trace, query) is None:
            _query.execute(tables, query, most_rows=10)
