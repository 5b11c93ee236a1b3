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
from foretrace.diagnose.patterns import copy_readers
from foretrace.predict.edits import Edit

# Of a concatenation's elements, what its largest part holds at least: such parts are what is copied again.
_LARGEST_SHARE = 0.9
_LEAST_KERNEL_NS = 2_000  # the copy of a few elements
# To write into a buffer in place of `cat` takes a copy and three slices: to write to, and of both sides to read.
# A view takes the host about 2 µs.
_SLICES_NS = 3 * 2_000

_NEAR = 16  # spans before a concatenation: the slices of what it is given

Shape = tuple[int, ...]


@dataclass(frozen=True)
class _Growth:
    """What a concatenation makes of what was there already."""

    before: tuple[Shape, ...]  # the largest part, or all parts but the last
    after: tuple[Shape, ...]  # as the next concatenation would have it
    whole: Shape  # of the result; nothing where the parts do not tell
    count: int  # of its elements
    new_share: float  # of the elements of the result


def growing(case: Case) -> pl.DataFrame:
    """Tasks of concatenations of which another one copies the result again, with `new_share`.

    Where there is a backward pass, operators that autograd follows are left out: what they make must not be overwritten.
    """
    names = case.trace.spans["name"].gather(case.tasks["op_id"]).cast(pl.String)
    mine = case.tasks.filter((names == "aten::cat").fill_null(value=False))
    asked = case.trace.ops.select(
        pl.col("span_id").alias("op_id"), pl.col("shapes").cast(pl.String), "sequence"
    )
    mine = mine.join(asked, on="op_id", how="left", maintain_order="left")
    followed = pl.lit(case.trace.ops["forward_id"].is_not_null().any()) & pl.col("sequence").is_not_null()
    mine = mine.filter(~followed & pl.col("shapes").is_not_null())
    found = [
        _growths(shapes) if _read_in_part(case, op, shapes) else ()
        for op, shapes in mine.select("op_id", "shapes").iter_rows()
    ]
    begun = {each.before for several in found for each in several}
    made = {each.after for several in found for each in several}
    moved = {
        each
        for op, several in zip(mine["op_id"], found, strict=True)
        for each in several
        if _window(case, op, each)
    }
    share = [
        min(
            (
                each.new_share
                for each in several
                if each.after in begun or each.before in made or each in moved
            ),
            default=None,
        )
        for several in found
    ]
    return mine.with_columns(new_share=pl.Series(share, dtype=pl.Float64)).drop_nulls("new_share")


def _read_in_part(case: Case, op: int, shapes: str) -> bool:
    """Whether what reads the result can read it as a part of a longer buffer."""
    if not (found := _growths(shapes)):
        return False
    whole = copy_readers.ordered((found[0].count,))
    outermost = case.callers(op)[-1]
    return not copy_readers.orders_itself(copy_readers.reader(case, outermost, whole, whole, reshaped=True))


def _window(case: Case, op: int, growth: _Growth) -> bool:
    """Whether the largest part was cut from a tensor as long as the result: a window that moves along."""
    cut = case.keep("slices", lambda: _slices(case))
    text = f"[{json.dumps(list(growth.whole))}"
    return bool(growth.whole) and any(cut.get(each, "").startswith(text) for each in range(op - _NEAR, op))


def _slices(case: Case) -> dict[int, str]:
    """What each slice was given, by its span."""
    ops = case.trace.ops.select("span_id", pl.col("shapes").cast(pl.String)).drop_nulls()
    names = case.trace.spans["name"].gather(ops["span_id"]).cast(pl.String)
    return dict(ops.filter(names == "aten::slice").iter_rows())


@lru_cache(maxsize=4096)
def _growths(shapes: str) -> tuple[_Growth, ...]:
    """How a concatenation of these shapes may grow what was there: its largest part, or a list by its last part."""
    try:
        parts = tuple(tuple(int(extent) for extent in part) for part in json.loads(shapes)[0])
    except (ValueError, TypeError, LookupError):
        return ()
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return ()
    largest = max(parts, key=prod)
    total = sum(prod(part) for part in parts)
    found = []
    along = {place for part in parts for place, extent in enumerate(part) if extent != largest[place]}
    if len(along) == 1 and prod(largest) >= _LARGEST_SHARE * total:
        (place,) = along
        after = (*largest[:place], sum(part[place] for part in parts), *largest[place + 1 :])
        found.append(_Growth((largest,), (after,), after, total, 1 - prod(largest) / total))
    if len(parts) > 2 and prod(parts[-1]) <= (1 - _LARGEST_SHARE) * total:
        found.append(_Growth(parts[:-1], parts, (), total, prod(parts[-1]) / total))
    return tuple(found)


def edit(mine: pl.DataFrame) -> Edit:
    """Only what is new is copied, into a buffer that is there already."""
    new = {
        task: min(dur, max(round(dur * share), _LEAST_KERNEL_NS))
        for task, dur, share in mine.select("task", "dur_ns", "new_share").iter_rows()
    }
    slices = dict.fromkeys(mine["call"].unique().to_list(), _SLICES_NS)
    return Edit(durations_ns=new, modelled=frozenset(new), added_host_ns=slices)
