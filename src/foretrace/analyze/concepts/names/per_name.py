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


def by_name(names: pl.Series, value: Callable[[pl.Series], Array]) -> Array:
    """For each name its value, computed once per distinct name; `value` maps distinct names to an array."""
    distinct = names.unique().drop_nulls()
    codes = distinct.to_physical().to_numpy().astype(np.int64)
    of_name = value(distinct.cast(pl.String))
    table = np.zeros(int(codes.max(initial=-1)) + 2, of_name.dtype)
    table[codes] = of_name
    # Rows without a name take the last place, which stays empty.
    values: Array = table[names.to_physical().fill_null(len(table) - 1).to_numpy()]
    return values
