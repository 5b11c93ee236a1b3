"""Weights that nothing trains, cast and scaled again in every step."""

from __future__ import annotations

import json
from functools import lru_cache

import polars as pl

from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns.copy_readers import Shape
from foretrace.diagnose.patterns.device_copies import SAME_TYPE, device_copies
from foretrace.predict import fusion

# Operators under which autocast casts, with the places of their weights and biases.
WEIGHTS_AT = {
    "aten::linear": (1, 2), "aten::conv1d": (1, 2), "aten::conv2d": (1, 2), "aten::conv3d": (1, 2),
    "aten::_convolution": (1, 2), "aten::convolution": (1, 2),
}  # fmt: skip
_PRODUCTS = ("aten::matmul", "aten::mm", "aten::addmm")


def remade_weights(case: Case) -> DeviceWork:
    """Casts of weights where nothing is trained, with the pointwise work on them that follows.

    `certain`: the layer's name says that it is a weight. Of a plain product of two matrices, only its shape does.
    """
    return case.keep("remade weights", lambda: _remade_weights(case))


def _remade_weights(case: Case) -> DeviceWork:
    casts = device_copies(case).where(~SAME_TYPE).rows
    if case.trains:
        return DeviceWork(case, casts.clear().with_columns(certain=pl.lit(value=True)))
    known, likely, others = _weight_shapes(case)
    shapes = [next(iter(tensor_shapes(given or "")), ()) for given in casts["shapes"]]
    by_autocast = _casts_weight(case, casts["op_id"].to_list())
    certain = [cast or shape in known for cast, shape in zip(by_autocast, shapes, strict=True)]
    by_shape = [shape in known | likely and shape not in others for shape in shapes]
    of_weights = pl.Series(by_autocast, dtype=pl.Boolean) | pl.Series(by_shape, dtype=pl.Boolean)
    casts = casts.with_columns(certain=pl.Series(certain, dtype=pl.Boolean)).filter(of_weights)
    return DeviceWork(case, casts if casts.is_empty() else _with_following(case, casts))


def _with_following(case: Case, casts: pl.DataFrame) -> pl.DataFrame:
    """The casts, and what is done to their results before anything else runs: pointwise, on as many elements."""
    work = case.device_work().with_arguments().rows
    calls = list(
        zip(
            case.op_names(work["op_id"]),
            *(work[column] for column in ("shapes", "dtypes", "strides")),
            strict=True,
        )
    )
    streams = work["stream"].to_list()
    certain: dict[int, bool] = {}
    for cast, count, is_certain in casts.select("task", "count", "certain").iter_rows():
        task = cast
        while task < len(calls) and streams[task] == streams[cast]:
            if task != cast and not _is_pointwise_on(count, *calls[task]):
                break
            certain[task] = is_certain
            task += 1
    chosen = work.filter(pl.col("task").is_in(list(certain)))
    return chosen.with_columns(
        certain=pl.Series([certain[task] for task in chosen["task"]], dtype=pl.Boolean)
    )


def _is_pointwise_on(
    count: int, op: str | None, shapes: str | None, dtypes: str | None, strides: str | None
) -> bool:
    """Whether an operator is a pointwise one, or a copy, on so many elements."""
    if op is None or (work_models.find(op) or ("",))[0] not in ("elementwise", "copy"):
        return False
    moved = fusion.traffic(op, shapes, dtypes, strides)
    return moved is not None and moved.count == count


def _weight_shapes(case: Case) -> tuple[set[Shape], set[Shape], set[Shape]]:
    """Shapes of weights by the layers' names, of the second of two matrices multiplied, and of what is no weight."""
    calls = case.calls_named(*WEIGHTS_AT, *_PRODUCTS).select("shapes", "name").unique().drop_nulls()
    known: set[Shape] = set()
    likely: set[Shape] = set()
    others: set[Shape] = set()
    for shapes, name in calls.iter_rows():
        tensors = tensor_shapes(shapes)[1 if name == "aten::addmm" else 0 :]
        if len(tensors) < 2:
            continue
        others.add(tensors[0])
        weight = tensors[1]
        if name in WEIGHTS_AT:
            known |= {weight, weight[::-1]} if len(weight) == 2 else {weight}
        elif len(weight) == 2:
            likely |= {weight, weight[::-1]}
    return known, likely - known, others


def _casts_weight(case: Case, ops: list[int]) -> list[bool]:
    """Whether autocast cast a weight or bias here: by its shape among the arguments of the operator around it."""
    outer = [case.callers(op)[-1] for op in ops]
    return [
        _is_weight(
            case.argument(op, "shapes"),
            case.argument(around, "shapes"),
            WEIGHTS_AT.get(case.name(around), ()),
        )
        for op, around in zip(ops, outer, strict=True)
    ]


@lru_cache(maxsize=4096)
def _is_weight(cast: str, given: str, places: tuple[int, ...]) -> bool:
    try:
        shape, arguments = json.loads(cast)[0], json.loads(given)
        weights = [arguments[place] for place in places if place < len(arguments)]
        return shape != arguments[0] and shape in weights
    except (TypeError, ValueError, LookupError):
        return False
