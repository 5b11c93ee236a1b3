"""A value for each of many names, computed once per distinct name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import polars as pl

from foretrace.analyze.concepts.trees.call_tree import Array

_NONE = 2**32 - 1  # more than any code
_AT_ONCE = 1 << 16


def by_code(values: Array, codes: Array) -> Array:
    """`values[codes]`, some at a time: numpy makes 8 bytes of every code that it is given, which are 8 times the answer's."""
    found = np.empty(len(codes), values.dtype)
    for first in range(0, len(codes), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        found[part] = values.take(codes[part])
    return found


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


def matching(names: pl.Series, pattern: str) -> pl.Series:
    """For each name, whether it matches; not where there is none."""
    return pl.Series(
        by_name(names, lambda distinct: distinct.str.contains(pattern).to_numpy()), dtype=pl.Boolean
    )


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
    return by_code(table, every)
