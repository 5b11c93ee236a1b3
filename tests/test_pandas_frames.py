"""Tables as frames of pandas, itself where it is installed, and a stand-in for the four of its names that are used."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import polars as pl
import pytest

from foretrace import analyze
from foretrace.errors import UsageError
from foretrace.pandas_frames import to_pandas
from tests.builders import Recording

FRAME = pl.DataFrame(
    {
        "id": [1, 2],
        "big": [2**63 + 1, None],
        "step": [7, None],
        "pct": [1.5, None],
        "whole": [True, None],
        "name": ["a", None],
        "kind": ["b", None],
        "list": [[1, 2], None],
    },
    schema_overrides={"big": pl.UInt64, "step": pl.Int32, "kind": pl.Categorical},
)


def test_without_pandas_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match="to_pandas needs pandas: pip install pandas"):
        to_pandas(FRAME)


class StandIn(ModuleType):
    """What is handed to pandas, as plain values."""

    DataFrame = dict

    class Categorical:
        @staticmethod
        def from_codes(codes: Any, categories: list[str]) -> list[str | None]:
            return [categories[code] if code >= 0 else None for code in codes]

    @staticmethod
    def array(values: list[Any], dtype: str) -> tuple[str, list[Any]]:
        return dtype, values

    @staticmethod
    def Series(values: list[Any], dtype: type) -> list[Any]:
        return values


def test_columns_are_handed_over_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", StandIn("pandas"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    made = to_pandas(FRAME)
    assert made["id"].tolist() == [1, 2]
    assert made["big"] == ("UInt64", [2**63 + 1, None])
    assert (made["step"], made["whole"]) == (("Int32", [7, None]), ("boolean", [True, None]))
    assert made["pct"][0] == 1.5
    assert (made["name"], made["kind"], made["list"]) == (["a", None], ["b", None], [[1, 2], None])


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> Any:
    """pandas, without pyarrow."""
    found = pytest.importorskip("pandas")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    return found


@pytest.mark.slow
def test_values_and_types_survive(pandas: Any) -> None:
    made = to_pandas(FRAME)
    assert made["id"].tolist() == [1, 2]
    assert str(made["id"].dtype) == "int64"
    assert made["big"][0] == 2**63 + 1
    assert [str(made[name].dtype) for name in ("big", "step", "whole")] == ["UInt64", "Int32", "boolean"]
    assert made["pct"][0] == 1.5
    assert made["kind"].tolist()[0] == "b"
    assert str(made["kind"].dtype) == "category"
    assert made["list"][0] == [1, 2]
    assert all(pandas.isna(made[name][1]) for name in FRAME.columns if name != "id")
    assert list(made.columns) == FRAME.columns
    assert to_pandas(FRAME.clear()).shape == (0, FRAME.width)


def test_tables_of_recordings_and_analyses(pandas: Any, tmp_path: Path) -> None:
    trace = Recording().step(1, 0, 100).op("aten::add", 5, 20).launch(10, "add", 30, 60).open(tmp_path)
    spans = trace.to_pandas("spans")
    assert spans.shape == (trace.spans.height, trace.spans.width)
    assert set(spans["name"]) == set(trace.spans["name"].cast(pl.String))
    result = analyze.run(trace, "kernels")
    assert result.to_pandas()["total_ns"].tolist() == result.table["total_ns"].to_list()
