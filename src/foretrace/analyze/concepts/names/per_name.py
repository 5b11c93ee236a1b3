"""A value for each of many names, computed once per distinct name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array

_NONE = 2**32 - 1  # more than any code


def distinct_rows(table: pl.DataFrame) -> tuple[pl.DataFrame, Array]:
    """The rows of a table of texts that differ, and for each row which of these it is."""
    which = np.zeros(table.height, np.int64)
    first = which[:1]
    for column in table.columns:
        codes = table[column].to_physical().cast(pl.Int64).fill_null(_NONE).to_numpy()
        _, first, which = np.unique(which << 32 | codes, return_index=True, return_inverse=True)
    return table[first], which


def distinct_names(names: pl.Series) -> pl.Series:
    """Each of the names once."""
    if names.dtype != pl.Categorical or names.null_count():
        return names.unique()
    codes = names.to_physical().to_numpy()
    example = np.full(int(codes.max(initial=0)) + 1, -1, np.int32)
    example[codes] = np.arange(len(codes), dtype=np.int32)
    return names.gather(example[example >= 0])


def by_name(names: pl.Series, value: Callable[[pl.Series], Array]) -> Array:
    """For each name its value, computed once per distinct name; `value` maps distinct names to an array."""
    physical = names.to_physical()
    last = int(physical.max() or 0) + 1  # type: ignore[arg-type]
    # Rows without a name take the last place, which stays empty.
    every = (physical.fill_null(last) if names.null_count() else physical).to_numpy()
    example = np.full(last + 1, -1, np.int32)
    example[every] = np.arange(len(every), dtype=np.int32)
    codes = np.flatnonzero(example[:last] >= 0)
    of_name = value(names.gather(example[codes]).cast(pl.String))
    table = np.zeros(last + 1, of_name.dtype)
    table[codes] = of_name
    values: Array = table[every]
    return values
