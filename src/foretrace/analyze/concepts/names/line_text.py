"""A source line in words, the same everywhere: it names a line only where the recording proves one."""

from __future__ import annotations

import polars as pl


def line_text(
    file: str | None,
    function: str,
    *,
    line: int | None = None,
    lines: tuple[int, int | None] | None = None,
) -> str:
    """model.py:12 in forward; model.py in forward, lines 9-14; without a file, the function alone."""
    if file is None:
        return function
    if line is not None:
        return f"{file}:{line} in {function}"
    if lines is None:
        return f"{file} in {function}"
    first, last = lines
    return f"{file} in {function}, " + (f"from line {first}" if last is None else f"lines {first}-{last}")


def function_text() -> pl.Expr:
    """The frames of `stacks` as "train.py(12): step", as torch words them; without a number where it would be no fact."""
    function = pl.col("function")
    return (
        pl.when(pl.col("file").is_null())
        .then(function)
        .when(pl.col("line").is_null())
        .then(pl.format("{}: {}", "file", function))
        .otherwise(pl.format("{}({}): {}", "file", "line", function))
    )
