"""What two snapshots differ in at their peaks, by source line, category, phase or module: rows sum to the difference."""

from __future__ import annotations

import re

import polars as pl

from foretrace.analyze.snapshots.composition import By, composition
from foretrace.analyze.snapshots.origins import Origins

_LINE = re.compile(r"^(.*):(\d+) (.*)$")


def difference(before: Origins, after: Origins, by: By) -> pl.DataFrame:
    """Bytes held at the two peaks and how much more after, the largest change first."""
    first = composition(before, before.memory.peak, by).select(by, before_bytes="held_bytes")
    second = composition(after, after.memory.peak, by).select(by, after_bytes="held_bytes")
    if by == "line":
        moved = _moved(first[by].to_list(), second[by].to_list())
        first = first.with_columns(pl.col(by).replace(moved))
    both = first.join(second, on=by, how="full", coalesce=True).with_columns(
        pl.col("before_bytes", "after_bytes").fill_null(0)
    )
    change = pl.col("after_bytes") - pl.col("before_bytes")
    table = both.with_columns(change.alias("change_bytes"))
    return table.sort(pl.col("change_bytes").abs(), pl.col("after_bytes"), by, descending=(True, True, False))


def _moved(before: list[str], after: list[str]) -> dict[str, str]:
    """Lines whose number changed: those of a function that only one side has, where both have as many, in order."""
    gone, come = _by_function(set(before) - set(after)), _by_function(set(after) - set(before))
    return {
        old: new
        for function, lines in gone.items()
        if len(lines) == len(come.get(function, ()))
        for old, new in zip(lines, come[function], strict=True)
    }


def _by_function(lines: set[str]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[tuple[int, str]]] = {}
    for line in lines:
        match = _LINE.match(line)
        # A script's own lines are one function, long and of many things.
        if match and match[3] != "<module>":
            found.setdefault((match[1], match[3]), []).append((int(match[2]), line))
    return {function: [line for _, line in sorted(numbered)] for function, numbered in found.items()}
