"""Concatenations that make a tensor a little longer each time, such as a cache of keys and values.

Not a rule itself; `redundant-copies` looks for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.predict.edits import Edit

# Of a concatenation's elements, what its largest part holds at least: such parts are what is copied again.
_LARGEST_SHARE = 0.9
_LEAST_KERNEL_NS = 2_000  # the copy of a few elements
# To write into a buffer in place of `cat` takes a copy and three slices: to write to, and of both sides to read.
# A view takes the host about 2 µs.
_SLICES_NS = 3 * 2_000

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Growth:
    """What a concatenation makes of its largest part."""

    before: Shape
    after: Shape
    new_share: float  # of the elements of the result


def growing(case: Case) -> pl.DataFrame:
    """Tasks of concatenations of which another one copies the result again, with `new_share`.

    Operators that autograd follows are left out: what they make must not be overwritten.
    """
    names = case.trace.spans["name"].gather(case.tasks["op_id"]).cast(pl.String)
    mine = case.tasks.filter((names == "aten::cat").fill_null(value=False))
    asked = case.trace.ops.select(
        pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String), "sequence"
    )
    mine = mine.join(asked, on="op_id", how="left", maintain_order="left")
    mine = mine.filter(pl.col("sequence").is_null() & pl.col("shapes").is_not_null())
    found = [_growth(shapes) for shapes in mine["shapes"]]
    begun = {each.before for each in found if each}
    made = {each.after for each in found if each}
    share = [
        each.new_share if each and (each.after in begun or each.before in made) else None for each in found
    ]
    return mine.with_columns(new_share=pl.Series(share, dtype=pl.Float64)).drop_nulls("new_share")


@lru_cache(maxsize=4096)
def _growth(shapes: str) -> _Growth | None:
    """How a concatenation of these shapes grows its largest part; None where no part is nearly all of it."""
    try:
        parts = [tuple(int(extent) for extent in part) for part in json.loads(shapes)[0]]
    except (ValueError, TypeError, LookupError):
        return None
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return None
    largest = max(parts, key=prod)
    along = {place for part in parts for place, extent in enumerate(part) if extent != largest[place]}
    total = sum(prod(part) for part in parts)
    if len(along) != 1 or prod(largest) < _LARGEST_SHARE * total:
        return None
    (place,) = along
    after = (*largest[:place], sum(part[place] for part in parts), *largest[place + 1 :])
    return _Growth(largest, after, 1 - prod(largest) / total)


def edit(mine: pl.DataFrame) -> Edit:
    """Only what is new is copied, into a buffer that is there already."""
    new = {
        task: min(dur, max(round(dur * share), _LEAST_KERNEL_NS))
        for task, dur, share in mine.select("task", "dur_ns", "new_share").iter_rows()
    }
    slices = dict.fromkeys(mine["call"].unique().to_list(), _SLICES_NS)
    return Edit(durations_ns=new, modelled=frozenset(new), added_host_ns=slices)
