"""Many ranks from few: summaries again and again, each time with the next numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from foretrace.ranks.summary import Group, Summary, runs_of


def tiled(tile: Sequence[Summary], ranks: int) -> list[Summary]:
    """As many summaries as ranks; groups stay within their copy of the tile."""
    return [_moved(each, first, ranks) for first in range(0, ranks, len(tile)) for each in tile]


def _moved(summary: Summary, first: int, world: int) -> Summary:
    groups = tuple(
        Group(
            group.name, group.description, group.size, runs_of([member + first for member in group.members])
        )
        for group in summary.groups
    )
    peer = pl.when(pl.col("peer") >= 0).then(pl.col("peer") + first).otherwise("peer").cast(pl.Int32)
    rows = summary.rows.with_columns(peer)
    return replace(summary, rank=summary.rank + first, world=world, groups=groups, rows=rows)
