"""Who held the memory after an event: by source line, category, phase, module, or block by block. Rows sum to what was held."""

from __future__ import annotations

from typing import Literal

import numpy as np
import polars as pl

from foretrace.analyze.snapshots.lifetimes import BEFORE, DeviceMemory
from foretrace.analyze.snapshots.origins import Origins

By = Literal["category", "line", "phase", "module"]
KEYS: tuple[By, ...] = ("category", "line", "phase", "module")


def composition(origins: Origins, event: int, by: By) -> pl.DataFrame:
    """Bytes and blocks that the program held after an event, by one key, the most first."""
    lives = origins.memory.lives
    held = np.flatnonzero(lives.allocated_after(event))
    names = {
        "category": lambda: origins.categories, "line": lambda: origins.lines,
        "phase": lambda: origins.phases, "module": lambda: origins.modules,
    }[by]()  # fmt: skip
    rows = pl.DataFrame({"what": names.gather(held), "bytes": lives.size[held]})
    table = rows.group_by("what").agg(
        pl.col("bytes").sum().cast(pl.Int64).alias("held_bytes"),
        pl.len().cast(pl.Int64).alias("blocks_count"),
    )
    whole = int(table["held_bytes"].sum())
    share = 100 * pl.col("held_bytes") / whole if whole else pl.lit(None, pl.Float64)
    return (
        table.with_columns(share.alias("share_pct"))
        .select(pl.col("what").alias(by), "held_bytes", "share_pct", "blocks_count")
        .sort("held_bytes", by, descending=(True, False))
    )


def largest(origins: Origins, event: int, count: int) -> pl.DataFrame:
    """The largest blocks that the program held after an event: what, where from, and how long they lived.

    `allocated_ns` and `freed_ns` count from the first event; `function` is the innermost frame's.
    """
    memory = origins.memory
    lives = memory.lives
    held = np.flatnonzero(lives.allocated_after(event))
    chosen = held[np.argsort(-lives.size[held], kind="stable")][:count]
    born, gone = _moments(memory, lives.start[chosen]), _moments(memory, lives.asked[chosen])
    stacks = [origins.places.stack(int(number)) for number in lives.stack[chosen]]
    functions = [stack[0].partition(" ")[2] if stack else None for stack in stacks]
    return pl.DataFrame(
        {
            "line": origins.lines.gather(chosen),
            "size_bytes": lives.size[chosen],
            "category": origins.categories.gather(chosen),
            "phase": origins.phases.gather(chosen),
            "function": pl.Series(functions, dtype=pl.String),
            "lived_ns": gone - born,
            "allocated_ns": born,
            "freed_ns": gone,
            "stream": lives.stream[chosen],
            "pool": lives.pool.gather(chosen),
            "address": pl.Series([f"{int(place):x}" for place in lives.address[chosen]], dtype=pl.String),
            "stack": pl.Series([" < ".join(stack) or None for stack in stacks], dtype=pl.String),
        }
    )


def _moments(memory: DeviceMemory, event: np.ndarray) -> pl.Series:
    """When events happened, from the first on; null before the history and after it."""
    inside = (event != BEFORE) & (event < memory.events.height)
    known = pl.Series(inside & memory.timed, dtype=pl.Boolean)
    since = np.append(memory.time_ns, 0)[np.clip(event, 0, memory.events.height)] - (memory.at_ns(0) or 0)
    times = pl.Series(since, dtype=pl.Int64)
    return pl.select(pl.when(known).then(times)).to_series()
