"""Operators of two recordings, matched: by module, operator and shapes; then without the shapes, then without the module.

Rows are operators that launched GPU work (that ran, without a GPU), summed over the calls of one module with the same shapes.
What is left after matching was added or removed. Of several that could match, the order of their first calls decides.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from foretrace.analyze.concepts.device import device_roles
from foretrace.analyze.concepts.trees import attribution, call_tree, module_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.compare.parts import operator_part
from foretrace.compare.sides import whole_steps
from foretrace.errors import MissingDataError
from foretrace.trace import Trace

_KEYS = ("module", "op", "shapes")
_SIDE = {
    "module": pl.String, "op": pl.String, "shapes": pl.String, "role": pl.String, "kernel": pl.String,
    "count": pl.Float64, "ns": pl.Float64, "at": pl.Int64,
}  # fmt: skip
_PAIRED = ("count", "ns", "shapes", "kernel")


def operators(trace: Trace) -> pl.DataFrame:
    """One row for each module, operator and shapes: count and ns per whole step, the role and the longest kernel."""
    rows = _on_device(trace) if trace.has_device else _on_host(trace)
    numbers = whole_steps(trace)
    if numbers:
        rows = rows.filter(pl.col("step").is_in(numbers))
    share = max(len(numbers), 1)
    arguments = trace.ops.select(
        pl.col("span_id").cast(pl.Int64).alias("op_id"), pl.col("shapes").cast(pl.String)
    )
    rows = rows.join(arguments, on="op_id", how="left", maintain_order="left")
    rows = rows.with_columns(
        op=trace.spans["name"].gather(rows["op_id"]).cast(pl.String).fill_null("(no operator)"),
        module=_modules(trace, rows["op_id"]),
    )
    grouped = rows.group_by(*_KEYS).agg(
        pl.col("role", "kernel").sort_by("ns", descending=True).first(),
        count=pl.col("op_id").n_unique() / share,
        ns=pl.col("ns").sum() / share,
        at=pl.col("start_ns").min(),
    )
    return grouped.select(*_SIDE).cast(_SIDE).sort("at", *_KEYS)  # type: ignore[arg-type]


def _on_device(trace: Trace) -> pl.DataFrame:
    work = device_roles.classified(trace)
    return work.select(
        pl.col("op_id").cast(pl.Int64),
        "step", "start_ns", role=device_roles.role_names(), kernel=pl.col("name").cast(pl.String), ns="dur_ns",
    )  # fmt: skip


def _on_host(trace: Trace) -> pl.DataFrame:
    """Operators with what they take themselves."""
    tree = call_tree.build(trace, python=False)
    total = tree.end_ns - tree.start_ns
    spans = trace.spans[tree.span_id].select("id", "kind", "name", "step", "start_ns")
    rows = spans.with_columns(ns=pl.Series(total - tree.per_parent(total))).filter(pl.col("kind") == "op")
    names = {name: operator_part(name) for name in rows["name"].cast(pl.String).unique()}
    return rows.select(
        pl.col("id").cast(pl.Int64).alias("op_id"), "step", "start_ns",
        role=pl.col("name").cast(pl.String).replace_strict(names, return_dtype=pl.String),
        kernel=pl.lit(None, pl.String), ns="ns",
    )  # fmt: skip


def _modules(trace: Trace, op_ids: pl.Series) -> pl.Series:
    """The path of the module that each operator, or its forward, belongs to; empty where none is known."""
    try:
        tree = module_tree.find(trace)
    except MissingDataError:
        return pl.Series([""], dtype=pl.String).new_from_index(0, len(op_ids))
    owner = attribution.attribute(trace, tree.carried).owner
    rows = op_ids.fill_null(NOBODY).to_numpy()
    owners = np.where(rows == NOBODY, NOBODY, owner[np.maximum(rows, 0)])
    labels = {NOBODY: "", tree.optimizer: "optimizer", tree.backward: "backward"}
    labels |= dict(enumerate(tree.paths))
    return pl.Series(owners).replace_strict(labels, default="", return_dtype=pl.String)


def matched(before: pl.DataFrame, after: pl.DataFrame) -> pl.DataFrame:
    """Both sides in one table: what is on one side only has null on the other. The largest difference first."""
    first = before.rename({name: f"before_{name}" for name in _PAIRED}).with_row_index("row")
    second = after.rename({name: f"after_{name}" for name in _PAIRED}).with_row_index("row")
    first = first.with_columns(shapes=pl.col("before_shapes"))
    second = second.with_columns(shapes=pl.col("after_shapes"))
    pairs = []
    for keys in (_KEYS, ("module", "op"), ("op", "shapes"), ("op",)):
        found = _in_order(first, second, keys)
        pairs.append(found)
        first = first.filter(~pl.col("row").is_in(found["row"].implode()))
        second = second.filter(~pl.col("row").is_in(found["row_right"].implode()))
    columns = (
        "module",
        "op",
        "role",
        *(f"{side}_{name}" for side in ("before", "after") for name in _PAIRED),
    )
    alone = [
        first.with_columns(pl.lit("removed").alias("change")),
        second.with_columns(pl.lit("added").alias("change")),
    ]
    both = pl.concat([*pairs, *alone], how="diagonal").select("change", *columns)
    difference = pl.col("after_ns").fill_null(0.0) - pl.col("before_ns").fill_null(0.0)
    total = pl.col("after_ns").fill_null(0.0) + pl.col("before_ns").fill_null(0.0)
    both = both.with_columns(difference_ns=difference)
    order = (pl.col("difference_ns").abs(), total)
    return both.sort(*order, "module", "op", descending=[True, True, False, False], maintain_order=True)


def _in_order(first: pl.DataFrame, second: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Rows with the same keys, the nth of one side with the nth of the other."""
    numbered = [
        side.sort("at", maintain_order=True).with_columns(nth=pl.int_range(pl.len()).over(*keys))
        for side in (first, second)
    ]
    joined = numbered[0].join(
        numbered[1], on=[*keys, "nth"], how="inner", nulls_equal=True, maintain_order="left"
    )
    return joined.with_columns(change=pl.lit("kept"))
