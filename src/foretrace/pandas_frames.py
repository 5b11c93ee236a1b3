"""A polars frame as one of pandas, by way of numpy: polars' own conversion needs pyarrow, which Foretrace does not."""

from __future__ import annotations

import importlib
from typing import Any

import polars as pl

from foretrace.errors import UsageError

# pandas' types that can be absent; of what has no absent value, numpy's own are used.
_NULLABLE = {
    pl.Int8: "Int8", pl.Int16: "Int16", pl.Int32: "Int32", pl.Int64: "Int64",
    pl.UInt8: "UInt8", pl.UInt16: "UInt16", pl.UInt32: "UInt32", pl.UInt64: "UInt64", pl.Boolean: "boolean",
}  # fmt: skip


def to_pandas(frame: pl.DataFrame) -> Any:
    """The frame as a pandas.DataFrame: whole numbers stay whole where some are absent; raises UsageError without pandas."""
    try:
        pandas: Any = importlib.import_module("pandas")
    except ImportError as error:
        raise UsageError(f"to_pandas needs pandas: pip install pandas ({error})") from error
    return pandas.DataFrame({name: _column(frame[name], pandas) for name in frame.columns})


def _column(series: pl.Series, pandas: Any) -> Any:
    if isinstance(series.dtype, pl.Categorical | pl.Enum):
        return _categories(series.cast(pl.String), pandas)
    nullable = _NULLABLE.get(type(series.dtype))
    if nullable is not None and series.null_count():
        return pandas.array(series.to_list(), dtype=nullable)
    if nullable is not None or series.dtype.is_float():
        # A float that is absent is NaN there.
        return series.to_numpy(allow_copy=True)
    return pandas.Series(series.to_list(), dtype=object)


def _categories(texts: pl.Series, pandas: Any) -> Any:
    names = texts.drop_nulls().unique().sort()
    codes = texts.replace_strict(names, pl.arange(names.len(), eager=True), default=-1, return_dtype=pl.Int32)
    return pandas.Categorical.from_codes(codes.fill_null(-1).to_numpy(), categories=names.to_list())
