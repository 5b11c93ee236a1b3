"""Tensors are cast to another type and straight back."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any

import polars as pl

from foretrace.analyze.concepts.work import work_models
from foretrace.analyze.concepts.work.tensor_shapes import tensor_shapes
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import fp32_islands
from foretrace.diagnose.removal import host_time
from foretrace.diagnose.rule import rule
from foretrace.diagnose.rules.copies.redundant_copies import device_copies
from foretrace.predict import fusion
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

# Of the GPU's time, or of the host's where the step follows that.
_LEAST_SHARE = 0.02
_LEAST_SHARE_ASKED = 0.10  # of casts that nothing undoes: fewer are what mixed precision costs
_LEAST_SHARE_WEIGHTS = 0.03
# Operators under which autocast casts, with the places of their weights and biases.
_WEIGHTS_AT = {
    "aten::linear": (1, 2), "aten::conv1d": (1, 2), "aten::conv2d": (1, 2), "aten::conv3d": (1, 2),
    "aten::_convolution": (1, 2), "aten::convolution": (1, 2),
}  # fmt: skip
_PRODUCTS = ("aten::matmul", "aten::mm", "aten::addmm")
_NOT_TRAINED = "the weights are changed between steps, or layers that autocast leaves in fp32 need them so."
# Operators that compute in fp32 inside, whatever their input's type: a cast before and one back behind change nothing.
_WIDE_INSIDE = re.compile(
    r"aten::(?:native_layer_norm|native_group_norm|native_batch_norm|cudnn_batch_norm|_fused_rms_norm|_?(?:log_)?softmax|"
    r"gelu|silu|mish|relu|elu|leaky_relu|hardswish|sigmoid|tanh|softplus|clamp_min)_?(?:_backward)?(?:_data)?$"
)
_QUANTISED = ("int8", "uint8", "fp8")
_HALF_TIME_OF_ROWS = 0.85  # as HALF_TIME, of norms, which stay below the bandwidth in bf16


@rule(
    title="The same tensors are converted every step",
    topic="Type conversions",
    see="roles",
)
def dtype_casts(case: Case) -> Iterator[Finding]:
    """Casts that are undone by the next one, such as x.float().half(), and casts that take much of the GPU's time.

    What it does
    Follows casts on the device that come one after another on equally many elements. Where the type returns to
    the one that the first cast began with, all of them could go. They must take 2 % of the GPU's time, or of the
    host's where the step follows the host; the shares below are meant so too.
    Where nothing is trained, casts of weights and biases are found from 3 % on, by torch.autocast or by the program,
    with what else is done to the weight behind them, such as the scaling of a quantised one: the weights stay as
    they are, so that all of that could be done once. A model kept in half precision needs none of autocast's other casts
    either; with its cache alone, the worse end of the range, those stay. A weight is known by its shape, as the second
    operand of a linear layer or convolution; of a plain product of two matrices, nothing is promised.
    Casts to fp32 and back around one operator that computes in fp32 inside (a norm, a softmax, an activation) undo each
    other as well. Without them that operator moves half as much: 55 % of its time is left, of a norm or softmax 85 %.
    Casts to fp32 and back around matrix products, as of layers kept in fp32 within a bf16 model, are replayed as gone,
    forward and backward, with the products and pointwise work between them in half precision. Other casts that the
    program asks for itself (autocast's own are not among them) are found from 10 % on, and replayed as gone. Of either,
    nothing is promised, for the wider type may be needed.

    Why it matters
    Each cast reads and writes the whole tensor and computes nothing.

    Use instead
    Keep one type through the region; under torch.autocast leave casts to torch. Layer norm and softmax compute in
    fp32 inside, whatever their input's type. Convert weights once, not at every step: model.to(torch.bfloat16) for
    inference, or one torch.autocast, with its cache, around all uses of a weight.
    """
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    copies = device_copies(case)
    weights = _remade(case, copies)
    yield from _of_weights(case, weights, _by_autocast(case, copies, weights), device_ns)
    copies = copies.filter(~pl.col("task").is_in(weights["task"].implode()))
    # What the program copies into a tensor of its own is kept, whatever is cast next.
    kept = [op for op in copies["op_id"] if len(case.callers(op)) == 1]
    copies = copies.filter(~pl.col("op_id").is_in(kept))
    layers = fp32_islands.found(case, copies)
    around = list(_islands(case, copies, layers, device_ns))
    yield from around
    trips = _round_trips(copies)
    rest = copies.filter(~pl.col("task").is_in(trips))
    inside = _around_one(case, rest, set(trips))
    mine = copies.filter(pl.col("task").is_in([*trips, *inside]))
    spent, edit = int(mine["dur_ns"].sum()), _removed(case, mine)
    if mine.is_empty() or _share(case, edit, spent / device_ns) < _LEAST_SHARE:
        told = [task for layer in layers for task in layer.casts] if around else []
        yield from _asked_for(case, rest.filter(~pl.col("task").is_in([*inside, *told])), device_ns)
        return
    shorter = _shorter(case, {task for tasks in inside.values() for task in tasks})
    types = sorted(set(mine["source"]) | set(mine["target"]))
    inner = " around an operator that computes in fp32 in any case" if inside else ""
    yield Finding(
        says=f"{mine.height / case.step_count:.0f} casts a step between {' and '.join(types)} undo each other{inner} and "
        f"take {100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix(
            "Keep one type through the region.",
            "y = F.layer_norm(x, shape)   # computes in fp32 inside: not F.layer_norm(x.float(), shape).to(x.dtype)"
            if inside
            else "y = f(x)  # not f(x.float().to(x.dtype))",
        ),
        evidence=_evidence(case, mine, spent, device_ns),
        where=case.places(mine["op_id"].to_list()),
        change=Change(
            "casts there and back removed", replace(edit, durations_ns=shorter, modelled=frozenset(shorter))
        ),
        unless="the rounding in between is wanted, or the result in fp32 is used elsewhere as well.",
    )


def _shorter(case: Case, tasks: set[int]) -> dict[int, int]:
    """How long operators take that move half as much."""
    between = sorted(tasks)
    ops = case.trace.spans["name"].gather(case.tasks["op_id"].gather(between)).cast(pl.String)
    return {
        task: round(
            int(case.program.task_dur_ns[task]) * (_HALF_TIME_OF_ROWS if rows else fp32_islands.HALF_TIME)
        )
        for task, rows in zip(between, ops.str.contains("norm|softmax"), strict=True)
    }


def _share(case: Case, edit: Edit, of_device: float) -> float:
    """The share of the GPU's time, or of the host's where the step follows that, whichever is larger."""
    of_host = edit.removed_host.total_ns / max(case.program.measured_host_ns, 1)
    return max(of_device, of_host) if case.calibration.host_bound else of_device


def _by_autocast(case: Case, copies: pl.DataFrame, weights: pl.DataFrame) -> pl.DataFrame:
    """Where autocast casts weights, what else it casts: a model that is kept in half precision needs none of it."""
    if weights.is_empty():
        return copies.clear()
    names = case.names
    outer = {op: names[case.callers(op)[-1]] for op in copies["op_id"]}
    if not any(outer.get(op) in _WEIGHTS_AT for op in weights["op_id"]):
        return copies.clear()
    asked = [op for op, name in outer.items() if name in fp32_islands.ASKED or len(case.callers(op)) == 1]
    return copies.filter(
        (pl.col("source") != pl.col("target"))
        & ~pl.col("op_id").is_in(asked)
        & ~pl.col("task").is_in(weights["task"].implode())
    )


def _of_weights(case: Case, casts: pl.DataFrame, others: pl.DataFrame, device_ns: int) -> Iterator[Finding]:
    """Weights that no training changes, cast and scaled in every step."""
    if casts.is_empty():
        return
    spent, edit = int(casts["dur_ns"].sum()), _removed(case, casts)
    if _share(case, edit, spent / device_ns) < _LEAST_SHARE_WEIGHTS:
        return
    certain = bool(casts["certain"].all())
    yield Finding(
        says=f"{casts.height / case.step_count:.0f} kernels that cast weights take {100 * spent / device_ns:.0f} % of the GPU's "
        "time in every step, though nothing changes the weights.",
        why="torch.autocast casts a weight once for each region around it, or at each use without its cache; so does .to().",
        fix=Fix(
            "Cast the weights once.",
            "model = model.to(torch.bfloat16)   # for inference; not torch.autocast around fp32 weights\n"
            "weight = quantised.to(x.dtype) * scale   # once, not at every step",
        ),
        evidence=_evidence(case, casts, spent, device_ns),
        where=case.places(casts["op_id"].to_list()),
        change=Change(
            "weights cast once",
            edit if others.is_empty() else _removed(case, pl.concat((casts, others), how="diagonal")),
            others=() if others.is_empty() else (edit,),  # with autocast's cache alone
            doubt="" if certain else "what is cast may be another in every step",
        ),
        unless=f"{_NOT_TRAINED[:-1]}, or memory for a second copy is short.",
    )


def _remade(case: Case, copies: pl.DataFrame) -> pl.DataFrame:
    """Casts of weights that nothing trains, with the pointwise work on them that follows; `certain` by the layer's name."""
    empty = copies.head(0).with_columns(certain=pl.lit(value=True))
    if case.trace.ops["forward_thread"].fill_null(0).gt(0).any():
        return empty
    known, likely, others = _weight_shapes(case)
    casts = copies.filter(pl.col("source") != pl.col("target"))
    shapes = [_shape(each) for each in casts["shapes"]]
    by_autocast = _casts_weight(case, casts["op_id"].to_list())
    by_shape = [shape in known | likely and shape not in others for shape in shapes]
    casts = casts.with_columns(
        mine=pl.Series([a or b for a, b in zip(by_autocast, by_shape, strict=True)], dtype=pl.Boolean),
        certain=pl.Series(
            [a or shape in known for a, shape in zip(by_autocast, shapes, strict=True)], dtype=pl.Boolean
        ),
    ).filter("mine")
    if casts.is_empty():
        return empty
    return _with_following(case, casts.drop("mine"))


def _with_following(case: Case, casts: pl.DataFrame) -> pl.DataFrame:
    """The casts, and what is done to their results before anything else runs: pointwise, on as many elements."""
    tasks = case.tasks.join(
        case.trace.ops.select(
            pl.col("span_id").alias("op_id"), *(pl.col(each).cast(pl.String) for each in ("shapes", "dtypes", "strides"))
        ),
        on="op_id", how="left", maintain_order="left",
    )  # fmt: skip
    ops = case.trace.spans["name"].gather(tasks["op_id"]).cast(pl.String)
    calls = list(zip(ops, *(tasks[each] for each in ("shapes", "dtypes", "strides")), strict=True))
    streams, told = tasks["stream"].to_list(), dict(casts.select("task", "certain").iter_rows())
    found: dict[int, bool] = {}
    for task, count in casts.select("task", "count").iter_rows():
        at = task
        while (
            at < len(calls) and (at == task or _same_size(calls[at], count)) and streams[at] == streams[task]
        ):
            found[at] = told[task]
            at += 1
    mine = tasks.filter(pl.col("task").is_in(list(found)))
    return mine.with_columns(certain=pl.Series([found[task] for task in mine["task"]], dtype=pl.Boolean))


def _same_size(call: tuple[str | None, str | None, str | None, str | None], count: int) -> bool:
    op, *arguments = call
    pointwise = op is not None and (work_models.find(op) or ("",))[0] in ("elementwise", "copy")
    moved = fusion.traffic(op, *arguments) if op and pointwise else None
    return moved is not None and moved.count == count


def _weight_shapes(case: Case) -> tuple[set[tuple[int, ...]], set[tuple[int, ...]], set[tuple[int, ...]]]:
    """Shapes of weights by the layers' names, of the second of two matrices multiplied, and of what is no weight."""
    names = (*_WEIGHTS_AT, *_PRODUCTS)
    spans = case.trace.spans.filter((pl.col("kind") == "op") & pl.col("name").cast(pl.String).is_in(names))
    calls = spans.select(pl.col("id").alias("span_id"), pl.col("name").cast(pl.String)).join(
        case.trace.ops.select("span_id", pl.col("shapes").cast(pl.String)), on="span_id", how="left"
    )
    known: set[tuple[int, ...]] = set()
    likely: set[tuple[int, ...]] = set()
    others: set[tuple[int, ...]] = set()
    for name, shapes in calls.select("name", "shapes").unique().drop_nulls().iter_rows():
        tensors = tensor_shapes(shapes)[1 if name == "aten::addmm" else 0 :]
        if len(tensors) < 2:
            continue
        others.add(tensors[0])
        weight = tensors[1]
        if name in _WEIGHTS_AT:
            known |= {weight, weight[::-1]} if len(weight) == 2 else {weight}
        elif len(weight) == 2:
            likely |= {weight, weight[::-1]}
    return known, likely - known, others


def _shape(shapes: str | None) -> tuple[int, ...]:
    try:
        return tuple(json.loads(shapes or "")[0])
    except (TypeError, ValueError, LookupError):
        return ()


def _casts_weight(case: Case, ops: list[int]) -> list[bool]:
    """Whether autocast cast a weight or bias here: by its shape among the arguments of the operator around it."""
    outer = [case.callers(op)[-1] for op in ops]
    rows = case.trace.ops.filter(pl.col("span_id").is_in([*ops, *outer]))
    shapes = dict(rows.select("span_id", pl.col("shapes").cast(pl.String)).iter_rows())
    names = case.trace.spans["name"].gather(outer).cast(pl.String)
    return [
        _is_weight(shapes.get(op), shapes.get(around), _WEIGHTS_AT.get(name, ()))
        for op, around, name in zip(ops, outer, names, strict=True)
    ]


@lru_cache(maxsize=4096)
def _is_weight(cast: str | None, given: str | None, places: tuple[int, ...]) -> bool:
    try:
        shape, arguments = json.loads(cast or "")[0], json.loads(given or "")
        return shape != arguments[0] and shape in [
            arguments[place] for place in places if place < len(arguments)
        ]
    except (TypeError, ValueError, LookupError):
        return False


def _around_one(case: Case, copies: pl.DataFrame, gone: set[int]) -> dict[int, list[int]]:
    """Tasks of casts up and back with one operator that computes in fp32 inside between them, with the tasks of that."""
    names = case.names
    casts = {
        row[0]: row[1:]
        for row in copies.select("task", "source", "target", "count", "op_id", "stream").iter_rows()
    }
    ops, streams = case.tasks["op_id"].to_list(), case.tasks["stream"].to_list()
    found: dict[int, list[int]] = {}
    backward: dict[int, tuple[int, list[int]]] = {}
    counts = set()
    for task, (source, target, count, op, stream) in casts.items():
        end = task + 1
        while end < len(ops) and ops[end] == ops[task + 1] and streams[end] == stream:
            end += 1
        tasks = list(range(task + 1, end))
        while end in gone:
            end += 1
        other = casts.get(end)
        if target != "fp32" or other is None or other[:3] != (target, source, count) or ops[task + 1] is None:
            continue
        if not _WIDE_INSIDE.match(names[ops[task + 1]]) or not tasks:
            continue
        around = [names[case.callers(each)[-1]] for each in (op, other[3])]
        if all(name in fp32_islands.ASKED for name in around):
            counts.add(count)
            found |= {task: tasks, end: tasks}
        elif all("ToCopyBackward" in name for name in around):
            backward |= {task: (count, tasks), end: (count, tasks)}
    # What autograd casts may be autocast's doing: only where the program asked for the same in the forward pass.
    return found | {task: tasks for task, (count, tasks) in backward.items() if count in counts}


def _islands(
    case: Case, copies: pl.DataFrame, found: list[fp32_islands.Island], device_ns: int
) -> Iterator[Finding]:
    """Casts around products that run in fp32 within a program of half precision."""
    if not any(not island.backward for island in found):
        return
    mine = copies.filter(pl.col("task").is_in([task for island in found for task in island.casts]))
    shorter = fp32_islands.in_half(case, [task for island in found for task in island.between])
    edit = _removed(case, mine)
    spent = int(mine["dur_ns"].sum())
    saved = spent + sum(int(case.program.task_dur_ns[task]) - new for task, new in shorter.items())
    if _share(case, edit, saved / device_ns) < _LEAST_SHARE_ASKED:
        return
    half = next(each for each in (*mine["source"], *mine["target"]) if each != "fp32")
    yield Finding(
        says=f"{mine.height / case.step_count:.0f} casts a step between {half} and fp32 lie around matrix products in fp32: "
        f"{100 * saved / device_ns:.0f} % of the GPU's time would go with both.",
        why=f"The products run without the tensor cores' {half}, and the casts read and write whole tensors.",
        fix=Fix(
            "Keep these layers in the model's type too.",
            "layer = layer.to(torch.bfloat16)   # not layer(x.float()).to(x.dtype) with a layer in fp32",
        ),
        evidence=_evidence(case, mine, spent, device_ns),
        where=case.places(mine["op_id"].to_list()),
        change=Change(
            "casts removed, and what lies between in half precision",
            replace(edit, durations_ns=shorter, modelled=frozenset(shorter)),
            doubt="what comes after the cast may need the wider type",
        ),
        unless="these layers need fp32: an optimizer that adds small steps to their weights may.",
    )


def _asked_for(case: Case, copies: pl.DataFrame, device_ns: int) -> Iterator[Finding]:
    """Casts of the program's own, with what only undoes a quantisation behind them."""
    casts = copies.filter(pl.col("source") != pl.col("target"))
    names = case.names
    asked = [names[case.callers(op)[-1]] in fp32_islands.ASKED for op in casts["op_id"]]
    casts = casts.filter(pl.Series(asked, dtype=pl.Boolean))
    mine = pl.concat(
        (case.tasks.filter(pl.col("task").is_in(casts["task"].implode())), _scaling(case, casts))
    )
    spent, edit = int(mine["dur_ns"].sum()), _removed(case, mine)
    if casts.is_empty() or _share(case, edit, spent / device_ns) < _LEAST_SHARE_ASKED:
        return
    kinds = casts.group_by("source", "target").agg(pl.col("dur_ns").sum()).sort("dur_ns", descending=True)
    source, target, _ = kinds.row(0)
    yield Finding(
        says=f"{casts.height / case.step_count:.0f} casts a step, most of them from {source} to {target}, take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix(
            "Cast once, or not at all.",
            "weight = weight.to(x.dtype)   # once, not at every step\n"
            "y = F.layer_norm(x, shape)    # computes in fp32 inside: not F.layer_norm(x.float(), shape).to(x.dtype)",
        ),
        evidence=_evidence(case, casts, spent, device_ns),
        where=case.places(casts["op_id"].to_list()),
        change=Change("casts removed", edit, doubt="what comes after the cast may need the wider type"),
        unless="the wider type is needed, or memory for a second copy is short.",
    )


def _scaling(case: Case, casts: pl.DataFrame) -> pl.DataFrame:
    """The multiplications right behind casts from quantised types: with the cast, they make what was quantised."""
    last = casts.filter(pl.col("source").is_in(_QUANTISED))["task"].to_numpy()
    following = case.tasks.filter(pl.col("task").is_in((last + 1).tolist()))
    op = case.trace.spans["name"].gather(following["op_id"]).cast(pl.String)
    return following.filter(op.is_in(("aten::mul", "aten::mul_")).fill_null(value=False))


def _removed(case: Case, mine: pl.DataFrame) -> Edit:
    """The edit without this work and the host time of what asked for it."""
    return Edit(
        removed_host=host_time(case, mine["op_id"].drop_nulls()), removed_tasks=mine["task"].to_numpy()
    )


def _evidence(case: Case, casts: pl.DataFrame, spent: int, device_ns: int) -> dict[str, Any]:
    return {
        "casts_ns": spent // case.step_count,
        "casts_pct": 100 * spent / device_ns,
        "casts_per_step_count": casts.height / case.step_count,
        "spans": casts["id"].head(5).to_list(),
    }


def _round_trips(copies: pl.DataFrame) -> list[int]:
    """Tasks of casts that return within a step to the type they began with, nothing else on the stream between."""
    found: list[int] = []
    run: list[tuple[int, str, str, int]] = []  # task, source, target, elements
    previous = -2
    for task, order, source, target, count in copies.select(
        "task", "order", "source", "target", "count"
    ).iter_rows():
        follows = run and order == previous + 1 and count == run[-1][3] and source == run[-1][2]
        if not follows:
            run = []
        previous = order
        if source == target:
            run = []
            continue
        run.append((task, source, target, count))
        back = [place for place, each in enumerate(run) if each[1] == target]
        if back:
            found += [each[0] for each in run[back[-1] :]]
            run = run[: back[-1]]
    return found
