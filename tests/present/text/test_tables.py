from __future__ import annotations

import datetime
import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import foretrace
from foretrace.analyze.result import Result
from foretrace.present.text import tables
from foretrace.trace import Trace
from foretrace.units import cells


@pytest.fixture
def trace() -> Trace:
    frames: dict[str, pl.DataFrame] = {}
    return Trace(Path("trace.json"), "kineto", {}, (), frames.__getitem__, frames)


def result(**changes: object) -> Result:
    table = pl.DataFrame({"name": ["a|b", None], "total_ns": [1_500, None], "share_pct": [75.0, math.nan]})
    fields = {
        "name": "thing", "says": "It is so.", "table": table, "values": {"busy_pct": math.inf, "n_count": 2},
        "denominators": {"share_pct": "of all"}, "notes": ("a note",), **changes,
    }  # fmt: skip
    return Result(**fields)  # type: ignore[arg-type]


def test_json_is_the_documented_one(trace: Trace) -> None:
    assert json.loads(tables.to_json(result(), trace)) == {
        "schema": 1,
        "foretrace": foretrace.__version__,
        "trace": {"path": "trace.json", "format": "kineto"},
        "name": "thing",
        "says": "It is so.",
        "values": {"busy_pct": None, "n_count": 2},
        "columns": ["name", "total_ns", "share_pct"],
        "rows": [
            {"name": "a|b", "total_ns": 1500, "share_pct": 75.0},
            {"name": None, "total_ns": None, "share_pct": None},
        ],
        "denominators": {"share_pct": "of all"},
        "notes": ["a note"],
    }


def test_json_fields_are_in_the_guide(trace: Trace) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "guide" / "json.md").read_text("utf-8")
    documents = [tables.to_json(result(), trace), tables.many_to_json([], {}, trace)]
    for field in {name for document in documents for name in json.loads(document)}:
        assert f"`{field}`" in guide
    assert f"| `schema` | {tables.JSON_SCHEMA} |" in guide


def test_json_holds_what_sql_may_yield() -> None:
    frame = pl.DataFrame(
        {
            "when": [datetime.date(2026, 1, 2)],
            "nested": [{"a": [1.0, math.nan]}],
            "lists": [[1, None]],
            "bytes": [b"\xff"],
            "none": [None],
        }
    )
    (row,) = json.loads(tables.frame_to_json(frame))["rows"]
    assert row["when"] == "2026-01-02"
    assert row["nested"] == {"a": [1.0, None]}
    assert row["lists"] == [1, None]
    assert row["none"] is None


def test_json_is_ascii(trace: Trace) -> None:
    hostile = result(table=pl.DataFrame({"name": ["\x1b[31m\u202e日本"]}))
    text = tables.to_json(hostile, trace)
    assert text.isascii()
    assert "\x1b" not in text
    assert json.loads(text)["rows"][0]["name"] == "\x1b[31m\u202e日本"


def test_csv_is_whole_and_finite() -> None:
    frame = pl.DataFrame({"name": ['a,"b', None], "x_pct": [math.nan, 1.5], "list": [[1, 2], None]})
    assert tables.to_csv(frame) == 'name,x_pct,list\n"a,""b",,"[1, 2]"\n,1.5,\n'


def test_csv_of_categories_and_no_rows() -> None:
    frame = pl.DataFrame(
        {"name": ["a"], "kind": ["b"]}, schema={"name": pl.Categorical, "kind": pl.Enum(["b"])}
    )
    assert tables.to_csv(frame) == "name,kind\na,b\n"
    assert tables.to_csv(frame.clear()) == "name,kind\n"


def test_markdown_shows_names_as_text() -> None:
    frame = pl.DataFrame({"name": ["f<int>|*x*", "a\nb"], "total_ns": [1_500, None]})
    assert tables.to_markdown(frame) == (
        "| name | total |\n| --- | ---: |\n| f\\<int\\>\\|\\*x\\* | 1.50 µs |\n| a\\\\x0ab | – |\n"
    )


def test_markdown_of_a_result() -> None:
    text = tables.result_to_markdown(result(table=pl.DataFrame({"a_ns": [1]})))
    assert (
        text == "**thing**: It is so.\n\n- busy: –\n- n count: 2\n\n| a |\n| ---: |\n| 1 ns |\n\n- a note\n"
    )


def test_numbers_end_in_one_line_and_units_begin_in_one() -> None:
    frame = pl.DataFrame({"name": ["a", "bb"], "total_ns": [1_000_000_000, 12_300], "n_count": [5, 1000]})
    layout = tables.lay_out(frame, 80)
    assert [each.cells for each in layout.columns] == [
        ("a   ", "bb  "),
        ("1.00 s ", "12.3 µs"),
        ("      5", "  1,000"),
    ]
    assert [each.title for each in layout.columns] == ["name", "total", "n count"]


def test_time_and_its_share_have_different_headings() -> None:
    layout = tables.lay_out(pl.DataFrame({"total_ns": [1], "total_pct": [1.0]}), 80)
    assert [each.title for each in layout.columns] == ["total", "total %"]


def test_text_gives_way_before_columns_go() -> None:
    frame = pl.DataFrame({"name": ["x" * 200], **{f"c{number}_ns": [1] for number in range(10)}})
    wide, narrow = tables.lay_out(frame, 140), tables.lay_out(frame, 60)
    assert wide.hidden == ()
    assert narrow.hidden == tuple(f"c{number}_ns" for number in range(5, 10))
    assert narrow.columns[0].width >= 30


def test_the_only_text_stays_when_columns_go() -> None:
    frame = pl.DataFrame({**{f"c{number}_ns": [1] for number in range(10)}, "name": ["n"]})
    layout = tables.lay_out(frame, 30)
    assert layout.columns[-1].name == "name"
    assert layout.hidden


WIDE = pl.DataFrame(
    {
        "name": ["void at::native::vectorized_elementwise_kernel<4, float>" * 2],
        "kind": ["annotation"],
        **{f"minor{number}_ns": [1_000] for number in range(8)},
        "device_self_ns": [2_000],
        "calls_count": [12],
    }
)


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_least_important_columns_go_first(width: int) -> None:
    layout = tables.lay_out(WIDE, width, keep=("name", "device_self_ns", "calls_count"))
    shown = [column.name for column in layout.columns]
    assert {"name", "device_self_ns", "calls_count"} <= set(shown)
    assert layout.hidden
    assert [name for name in WIDE.columns if name in shown] == shown, "in the order of the table"
    assert [name for name in WIDE.columns if name not in shown] == list(layout.hidden)
    # What is not kept goes from the right.
    others = [name for name in WIDE.columns if name not in ("name", "device_self_ns", "calls_count")]
    assert others[-len(layout.hidden) :] == list(layout.hidden)
    # Numbers are whole, and what a row is about is not squeezed to make room.
    assert layout.columns[0].width >= width * 2 // 5
    assert all("…" not in column.cells[0] for column in layout.columns[1:])


def test_what_is_kept_goes_last_to_first_where_even_that_is_too_wide() -> None:
    layout = tables.lay_out(WIDE, 45, keep=("name", "device_self_ns", "calls_count"))
    assert [column.name for column in layout.columns] == ["name", "device_self_ns"]


def test_amounts_that_are_all_zero_are_told_not_shown() -> None:
    frame = pl.DataFrame(
        {
            "name": ["a", "b"],
            "device": [0, 0],
            "wait_ns": [0, 0],
            "idle_pct": [0.0, None],
            "calls_count": [0, 1],
            "note": ["", None],
        }
    )
    layout = tables.lay_out(frame, 80)
    assert [column.name for column in layout.columns] == ["name", "device", "calls_count"]
    assert (layout.zero, layout.empty) == (("wait_ns", "idle_pct"), ("note",))
    asked = tables.lay_out(frame, 80, leave_out_empty=False)
    assert [column.name for column in asked.columns] == frame.columns
    assert (asked.zero, asked.empty) == ((), ())
    assert [column.name for column in tables.lay_out(frame.clear(), 80).columns] == frame.columns


def test_columns_without_any_value_are_told_not_shown() -> None:
    layout = tables.lay_out(pl.DataFrame({"a": ["x"], "b_ns": [None]}), 80)
    assert layout.empty == ("b_ns",)
    assert [each.name for each in layout.columns] == ["a"]


NAMES = st.text(max_size=60) | st.just("void at::native::f<4>(int)") | st.none()


@given(
    st.lists(st.tuples(NAMES, NAMES, st.integers(0, 10**15) | st.none()), max_size=5),
    st.integers(24, 160),
)
def test_every_layout_fits(rows: list[tuple[str | None, str | None, int | None]], width: int) -> None:
    columns = {"name": pl.String, "op": pl.Categorical, "total_ns": pl.Int64}
    layout = tables.lay_out(pl.DataFrame(rows, schema=columns, orient="row"), width)
    for row in range(len(rows)):
        line = "  ".join(each.cells[row] for each in layout.columns)
        assert cells(line) <= width
        assert all(cells(each.cells[row]) == each.width for each in layout.columns)


def test_wrap_breaks_between_words_and_loses_nothing() -> None:
    assert tables.wrap("one two three", 7) == ["one two", "three"]
    assert tables.wrap("abcdefghij xy", 4) == ["abcd", "efgh", "ij", "xy"]
    assert tables.wrap("", 10) == [""]


def test_what_stands_between_backticks_is_never_broken() -> None:
    text = "record it with `foretrace run -- python train.py` and look"
    assert tables.wrap(text, 20) == ["record it with", "`foretrace run -- python train.py`", "and look"]
    assert tables.wrap("a ` alone", 4) == ["a `", "alon", "e"]
    assert max(map(cells, tables.wrap(f"`{'x' * 1000}`", 20))) <= 20


def test_a_document_is_json_that_every_reader_takes() -> None:
    text = tables.document_to_json({"a": [math.nan, -math.inf, 1.5], "b": {"c": "\x1b"}})
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == {
        "a": [None, None, 1.5],
        "b": {"c": "\x1b"},
    }
    assert text.isascii()


def test_numpy_s_scalars_are_numbers_in_json() -> None:
    document = {
        "int": np.int64(3), "float": np.float32(0.5), "bool": np.bool_(True), "nan": np.float32("nan"),
        "array": np.array([1, 2]), "row": [{"value": np.uint8(7)}],
    }  # fmt: skip
    expected = {"int": 3, "float": 0.5, "bool": True, "nan": None, "array": [1, 2], "row": [{"value": 7}]}
    read = json.loads(tables.document_to_json(document))
    assert read == expected
    assert read["bool"] is True


def test_a_column_that_is_asked_for_shows_its_zeros() -> None:
    frame = pl.DataFrame({"name": ["a"], "overlap_ns": [0], "wait_ns": [0]})
    layout = tables.lay_out(frame, 80, keep=("overlap_ns",))
    assert [column.name for column in layout.columns] == ["name", "overlap_ns"]
    assert layout.zero == ("wait_ns",)


def test_two_columns_never_have_one_heading() -> None:
    frame = pl.DataFrame(
        {"name": ["a"], "total_ns": [1_000], "total_pct": [50.0], "top_kernel": ["b"], "top_kernel_ns": [500]}
    )
    titles = ["name", "total", "total %", "top kernel", "top kernel time"]
    assert tables.to_markdown(frame).splitlines()[0] == f"| {' | '.join(titles)} |"
    assert [column.title for column in tables.lay_out(frame, 200).columns] == titles
