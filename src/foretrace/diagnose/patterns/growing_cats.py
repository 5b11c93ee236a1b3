"""Concatenations that make a tensor a little longer each time, such as a cache of keys and values."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.patterns.copy_readers import Shape
from foretrace.sourced import JUDGEMENT, Count

_NEAR = Count(16, "spans before a concatenation, among which its slices are looked for", JUDGEMENT)


@dataclass(frozen=True)
class _Growth:
    """What a concatenation makes of what was there already."""

    before: tuple[Shape, ...]  # the largest part, or all parts but the last
    after: tuple[Shape, ...]  # as the next concatenation would have it
    whole: Shape  # of the result; empty where the parts do not tell
    count: int  # of its elements
    new_share: float  # of the elements of the result


def growing(case: Case, *, already_there: float) -> DeviceWork:
    """Concatenations whose result another one copies again, with `new_share`: the part of the result that is new.

    At least `already_there` of the result is what was there before.
    """
    cats = case.device_work().launched_by("aten::cat").with_arguments().where(pl.col("shapes").is_not_null())
    if case.trains:  # autograd keeps what it follows for the backward pass: that must not be overwritten
        followed = case.trace.ops.drop_nulls("sequence")["span_id"]
        cats = cats.where(~pl.col("op_id").is_in(followed.implode()))
    growths = [
        (op, [growth for growth in _growths(shapes, already_there) if _readable_in_part(case, op, growth)])
        for op, shapes in cats.rows.select("op_id", "shapes").iter_rows()
    ]
    every = [growth for _, of_cat in growths for growth in of_cat]
    copied_again, made_before = {growth.before for growth in every}, {growth.after for growth in every}
    windows = {growth for op, of_cat in growths for growth in of_cat if _is_window(case, op, growth)}
    new_share = [
        min(
            (
                growth.new_share
                for growth in of_cat
                if growth.after in copied_again or growth.before in made_before or growth in windows
            ),
            default=None,
        )
        for _, of_cat in growths
    ]
    rows = cats.rows.with_columns(new_share=pl.Series(new_share, dtype=pl.Float64))
    return DeviceWork(case, rows.drop_nulls("new_share"))


def _readable_in_part(case: Case, op: int, growth: _Growth) -> bool:
    """Whether what reads the result can read it as a part of a longer buffer."""
    whole = copy_readers.ordered((growth.count,))
    outermost = case.callers(op)[-1]
    return not copy_readers.orders_itself(copy_readers.reader(case, outermost, whole, whole, reshaped=True))


def _is_window(case: Case, op: int, growth: _Growth) -> bool:
    """Whether the largest part was cut from a tensor as long as the result: a window that moves along."""
    slices = case.keep("slices", lambda: _slices(case))
    whole = f"[{json.dumps(list(growth.whole))}"
    return bool(growth.whole) and any(
        slices.get(span, "").startswith(whole) for span in range(op - _NEAR, op)
    )


def _slices(case: Case) -> dict[int, str]:
    """The shapes that each slice was given, by its span."""
    slices = case.calls_named("aten::slice")
    return dict(slices.select("op_id", "shapes").drop_nulls().iter_rows())


@lru_cache(maxsize=4096)
def _growths(shapes: str, already_there: float) -> tuple[_Growth, ...]:
    """How a concatenation of these shapes may grow what was there: its largest part, or a list by its last part."""
    try:
        parts = tuple(tuple(int(extent) for extent in part) for part in json.loads(shapes)[0])
    except (ValueError, TypeError, LookupError):
        return ()
    if len(parts) < 2 or len({len(part) for part in parts}) > 1:
        return ()
    largest = max(parts, key=prod)
    count = sum(prod(part) for part in parts)
    growths = []
    along = {place for part in parts for place, extent in enumerate(part) if extent != largest[place]}
    if len(along) == 1 and prod(largest) >= already_there * count:
        (place,) = along
        after = (*largest[:place], sum(part[place] for part in parts), *largest[place + 1 :])
        growths.append(_Growth((largest,), (after,), after, count, 1 - prod(largest) / count))
    if len(parts) > 2 and prod(parts[-1]) <= (1 - already_there) * count:
        growths.append(_Growth(parts[:-1], parts, (), count, prod(parts[-1]) / count))
    return tuple(growths)
