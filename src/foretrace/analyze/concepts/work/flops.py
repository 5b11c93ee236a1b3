"""What operators had to compute and move, from their recorded shapes; `work_models` contains the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.analyze.concepts.names import kernel_names
from foretrace.analyze.concepts.work import work_models
from foretrace.ingest.server_marks import lengths_of
from foretrace.trace import Trace, once_per_trace

Array = NDArray[Any]

_ARGUMENTS = ("shapes", "dtypes", "strides", "inputs")
# What tells one call from another: calls that agree in all of it did the same work. `label` is the name of a server's step.
CALL = ("op", *_ARGUMENTS, "kernel", "label")
_WORK = {"flops": pl.Int64, "bytes": pl.Int64, "dtype": pl.String, "model": pl.String}
_NOBODY = -1
_LARGEST = 2**53  # sizes beyond that are a damaged recording, not work


def op_work(trace: Trace) -> pl.DataFrame:
    """Work of each operator that has a model and recorded shapes: span_id, flops, bytes, dtype, model.

    `bytes` is compulsory traffic: every operand read once, every result written once. `flops` is null where
    shapes do not tell it (Inductor's kernels). `dtype` is what is computed in: tf32 where the kernel's name says
    so, else the operands' type. Operators nested in one another count once. Where operators launched kernels,
    one counts if a kernel of its own, or of a callee without a model, ran for it: aten::addmm, not the
    aten::linear around it. On a CPU one counts unless a callee of the same family does.
    """
    owners = kernel_owners(trace)
    if owners["op_id"].null_count() < owners.height:
        return work_of(trace, owners)
    alone = _without_callers(trace, _candidates(trace)).to_frame("span_id")
    calls = with_arguments(trace, alone).with_columns(kernel=pl.lit(None, pl.Categorical))
    return with_work(calls).drop_nulls("bytes").select("span_id", *_WORK)


def work_of(trace: Trace, owners: pl.DataFrame) -> pl.DataFrame:
    """`op_work` of the operators that own these kernels, rows of `kernel_owners`."""
    return with_work(owned_calls(trace, owners)).drop_nulls("bytes").select("span_id", *_WORK)


def owned_calls(trace: Trace, owners: pl.DataFrame, *, marks: Sequence[str] = ()) -> pl.DataFrame:
    """Operators that own kernels, with their arguments, the sum of their kernels' time, and the longest of them.

    `marks` are columns of `owners` that hold for a call if they do for any of its kernels.
    """
    # The longest kernel of an operator tells its types; the others prepare or finish its work.
    by_length = owners.drop_nulls("owner_id").sort("owner_id", "dur_ns")
    calls = by_length.group_by(span_id="owner_id", maintain_order=True).agg(
        pl.col("device").last(),
        pl.col(marks).any(),
        kernel=pl.col("name").last(),
        time_ns=pl.col("dur_ns").sum(),
    )
    return with_arguments(trace, calls)


def kernel_owners(trace: Trace) -> pl.DataFrame:
    """Kernels with a sound duration, and owner_id: the operator whose model they belong to, if any.

    The innermost operator around the launch that has a model by name; one that no callee stands in for.
    """
    kernels = trace.device_spans.filter(pl.col("kind") == "kernel")
    kernels = kernels.select("id", "name", "dur_ns", "device", "op_id", "launch_id")
    owner = _nearest(trace, kernels["op_id"], _marked(trace, _candidates(trace)))
    # aten::linear may launch a kernel of its own beside its aten::addmm: it must not count the product again.
    owning = owner.drop_nulls().unique()
    matrix = pl.concat(_by_family(trace, owning, work_models.MATRIX_FAMILIES))
    # A server's attention holds products of other operands; only attention inside attention is the same work.
    served = _by_family(trace, owning, work_models.SERVED_FAMILIES)
    doubled = pl.concat(_callers(trace, group) for group in (matrix, *served))
    if len(doubled):
        owner = owner.set(owner.is_in(doubled.implode()), None)
    return kernels.with_columns(owner_id=owner)


def _candidates(trace: Trace) -> pl.Series:
    """Ids of the operators that have recorded shapes and a model by name."""
    ops = trace.ops.select("span_id", "shapes").drop_nulls("shapes")["span_id"]
    return pl.concat(_by_family(trace, ops, work_models.FAMILIES))


def _by_family(trace: Trace, ops: pl.Series, families: Sequence[str]) -> list[pl.Series]:
    """The operators of each family, by name."""
    names = trace.spans["name"].gather(ops).to_physical()
    distinct = pl.DataFrame({"op": ops, "code": names}).unique("code", keep="any")
    texts = trace.spans["name"].gather(distinct["op"]).cast(pl.String)
    models = [work_models.find(text) for text in texts]
    number = {family: place for place, family in enumerate(families)}
    places = [number.get(model[0], _NOBODY) if model else _NOBODY for model in models]
    place = names.replace_strict(distinct["code"], pl.Series(places, dtype=pl.Int8), return_dtype=pl.Int8)
    return [ops.filter(place == code) for code in number.values()]


def _without_callers(trace: Trace, ops: pl.Series) -> pl.Series:
    """The operators, less those that hold another of their family: that one did the work."""
    matrix = work_models.MATRIX_FAMILIES
    others = [family for family in work_models.FAMILIES if family not in matrix]
    groups = [pl.concat(_by_family(trace, ops, matrix)), *_by_family(trace, ops, others)]
    alone = [group.filter(~group.is_in(_callers(trace, group).implode())) for group in groups]
    return pl.concat(alone).sort()


def _callers(trace: Trace, ops: pl.Series) -> pl.Series:
    """Those of the operators that hold another of them."""
    above = _calling_op(trace, ops.unique())
    return _nearest(trace, above, _marked(trace, ops)).drop_nulls().unique()


def _nearest(trace: Trace, spans: pl.Series, wanted: Array) -> pl.Series:
    """For each operator, itself or its innermost caller that is wanted, or null.

    A Python function or an annotation ends the search: what it calls is no part of the operator's model.
    """
    result = spans.to_frame("at").with_row_index("row").drop_nulls("at")
    nearest = np.zeros(len(spans), np.uint32)
    has_owner = np.zeros(len(spans), bool)
    while result.height:
        at = result["at"].to_numpy()
        here = wanted[at]
        row = result["row"].to_numpy()[here]
        nearest[row], has_owner[row] = at[here], True
        left = result.filter(~here)
        result = left.with_columns(at=_calling_op(trace, left["at"])).drop_nulls("at")
    return pl.Series("owner_id", nearest).set(pl.Series(~has_owner), None)


def _calling_op(trace: Trace, spans: pl.Series) -> pl.Series:
    """For each span, the operator right around it, or null."""
    parent = trace.spans["parent_id"].gather(spans)
    is_op = trace.spans["kind"].gather(parent) == "op"
    return parent.set(~is_op.fill_null(value=False), None)


def _marked(trace: Trace, spans: pl.Series) -> Array:
    """For each span of the trace, whether it is one of the given."""
    mark = np.zeros(trace.spans.height, bool)
    mark[spans.to_numpy()] = True
    return mark


def with_arguments(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """The operators with their name and what they were called with; null where that was not recorded."""
    place = np.full(trace.spans.height + 1, _NOBODY, np.int64)
    place[trace.ops["span_id"].to_numpy()] = np.arange(trace.ops.height)
    ids = calls["span_id"]
    row = pl.Series(place[ids.fill_null(trace.spans.height).to_numpy()])
    row = row.set(row == _NOBODY, None)
    arguments = [trace.ops[name].gather(row).alias(name) for name in _ARGUMENTS]
    named = calls.with_columns(trace.spans["name"].gather(ids).alias("op"), *arguments)
    return named.with_columns(_labels(trace, named))


def _labels(trace: Trace, calls: pl.DataFrame) -> pl.Series:
    """For operators whose work their step's name tells, that name; else null."""
    steps = _labelled_steps(trace)
    distinct = calls["op"].unique().drop_nulls()
    told = distinct.filter(
        pl.Series([work_models.by_step(name) for name in distinct.cast(pl.String)], dtype=pl.Boolean)
    )
    if steps.is_empty() or told.is_empty():
        return pl.Series("label", [None] * calls.height, pl.String)
    at = trace.spans["start_ns"].gather(calls["span_id"])
    place = pl.Series(
        np.searchsorted(steps["start_ns"].to_numpy(), at.fill_null(-1).to_numpy(), side="right") - 1
    )
    place = place.set(place < 0, None)
    inside = (at < steps["end_ns"].gather(place)) & calls["op"].is_in(told.implode())
    return steps["label"].gather(place).set(~inside.fill_null(value=False), None)


@once_per_trace
def _labelled_steps(trace: Trace) -> pl.DataFrame:
    """The ranges of a server's steps that tell what attention works on, in order."""
    ranges = trace.spans.filter((pl.col("kind") == "annotation") & (pl.col("dur_ns") > 0))
    names = ranges["name"].unique().cast(pl.String)
    told = names.filter(pl.Series([lengths_of(name) is not None for name in names], dtype=pl.Boolean))
    label = pl.col("name").cast(pl.String)
    return ranges.filter(label.is_in(told.implode())).select(
        "start_ns", end_ns=pl.col("start_ns") + pl.col("dur_ns"), label=label
    )


def with_work(calls: pl.DataFrame) -> pl.DataFrame:
    """Calls (rows of `owned_calls`, or groups of them) with flops, bytes, dtype and model; null without a model."""
    distinct = calls.select(CALL).unique(maintain_order=True)
    rows = [_row(*row) for row in distinct.with_columns(pl.all().cast(pl.String)).iter_rows()]
    work = pl.DataFrame(rows, schema=_WORK, orient="row")
    return calls.join(distinct.hstack(work), on=CALL, how="left", nulls_equal=True, maintain_order="left")


def _row(name: str, *arguments: str | None) -> tuple[int | None, int | None, str | None, str | None]:
    *_, kernel, _ = arguments
    model = work_models.find(name)
    work = work_models.work(name, *arguments)
    if model is None or work is None or max(work.flops or 0, work.bytes) > _LARGEST:
        return None, None, None, None
    family, dtype = model[0], work.dtype
    if dtype == "fp32" and kernel and family in work_models.MATRIX_FAMILIES:
        dtype = "tf32" if kernel_names.decode(kernel).input_dtype == "tf32" else dtype
    return work.flops, work.bytes, dtype, family
