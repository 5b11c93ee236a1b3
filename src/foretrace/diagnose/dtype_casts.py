"""Tensors are cast to another type and straight back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.diagnose.redundant_copies import device_copies, removed
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

# Of the GPU's time, or of the host's where the step follows that.
_LEAST_SHARE = 0.02
_LEAST_SHARE_ASKED = 0.10  # of casts that nothing undoes: fewer are what mixed precision costs
_ASKED = ("aten::to", "aten::_to_copy", "aten::type_as", "aten::float", "aten::half", "aten::bfloat16")
_LEAST_SHARE_WEIGHTS = 0.03
# Operators under which autocast casts, with the places of their weights and biases.
_WEIGHTS_AT = {
    "aten::linear": (1, 2), "aten::conv1d": (1, 2), "aten::conv2d": (1, 2), "aten::conv3d": (1, 2),
    "aten::_convolution": (1, 2), "aten::convolution": (1, 2),
}  # fmt: skip
_QUANTISED = ("int8", "uint8", "fp8_e4m3", "fp8_e5m2")


@rule
def dtype_casts(case: Case) -> Iterator[Finding]:
    """Casts that are undone by the next one, such as x.float().half(), and casts that take much of the GPU's time.

    What it does
    Follows casts on the device that come one after another on equally many elements. Where the type returns to
    the one that the first cast began with, all of them could go. They must take 2 % of the GPU's time, or of the
    host's where the step follows the host; the shares below are meant so too.
    Where nothing is trained, casts of weights and biases by torch.autocast are found from 3 % on: the weights stay
    as they are, so that they could be cast once.
    Other casts that the program asks for itself (autocast's own are not among them) are found from 10 % on, with
    the scaling right behind a cast from a quantised type. They are replayed as gone; nothing is promised, for the
    wider type may be needed.

    Why it matters
    Each cast reads and writes the whole tensor and computes nothing.

    Use instead
    Keep one type through the region; under torch.autocast leave casts to torch. Layer norm and softmax compute in
    fp32 inside, whatever their input's type. Convert weights once, not at every step: model.to(torch.bfloat16) for
    inference, or one torch.autocast, with its cache, around all uses of a weight.
    """
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    copies = device_copies(case)
    trips = _round_trips(copies)
    yield from _of_weights(case, copies.filter(~pl.col("task").is_in(trips)), device_ns)
    mine = copies.filter(pl.col("task").is_in(trips))
    spent, edit = int(mine["dur_ns"].sum()), removed(case, mine)
    if mine.is_empty() or _share(case, edit, spent / device_ns) < _LEAST_SHARE:
        yield from _asked_for(case, copies.filter(~pl.col("task").is_in(trips)), device_ns)
        return
    types = sorted(set(mine["source"]) | set(mine["target"]))
    yield Finding(
        rule="dtype-casts",
        says=f"{mine.height / case.step_count:.0f} casts a step between {' and '.join(types)} undo each other and take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They read and write whole tensors and compute nothing.",
        fix=Fix("Keep one type through the region.", "y = f(x)  # not f(x.float().to(x.dtype))"),
        evidence=_evidence(case, mine, spent, device_ns),
        where=case.places(mine["op_id"].to_list()),
        change=Change("casts there and back removed", edit),
        unless="the rounding in between is wanted.",
    )


def _share(case: Case, edit: Edit, of_device: float) -> float:
    """The share of the GPU's time, or of the host's where the step follows that, whichever is larger."""
    of_host = edit.removed_host.total_ns / max(case.program.measured_host_ns, 1)
    return max(of_device, of_host) if case.calibration.host_bound else of_device


def _of_weights(case: Case, copies: pl.DataFrame, device_ns: int) -> Iterator[Finding]:
    """Autocast's casts of weights that no training changes."""
    if case.trace.ops["forward_thread"].fill_null(0).gt(0).any():
        return
    casts = copies.filter(pl.col("source") != pl.col("target"))
    casts = casts.filter(pl.Series(_casts_weight(case, casts["op_id"].to_list()), dtype=pl.Boolean))
    if casts.is_empty():
        return
    spent, edit = int(casts["dur_ns"].sum()), removed(case, casts)
    if _share(case, edit, spent / device_ns) < _LEAST_SHARE_WEIGHTS:
        return
    yield Finding(
        rule="dtype-casts",
        says=f"{casts.height / case.step_count:.0f} casts of weights a step take {100 * spent / device_ns:.0f} % of the GPU's "
        "time, though nothing changes the weights.",
        why="torch.autocast casts a weight once for each region around it, or at each use without its cache.",
        fix=Fix(
            "Cast the weights once.",
            "model = model.to(torch.bfloat16)   # for inference; not torch.autocast around fp32 weights",
        ),
        evidence=_evidence(case, casts, spent, device_ns),
        where=case.places(casts["op_id"].to_list()),
        change=Change("weights cast once", edit),
        unless="the weights are changed between steps, or layers that autocast leaves in fp32 need them so.",
    )


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


def _asked_for(case: Case, copies: pl.DataFrame, device_ns: int) -> Iterator[Finding]:
    """Casts of the program's own, with what only undoes a quantisation behind them."""
    casts = copies.filter(pl.col("source") != pl.col("target"))
    names = case.trace.spans["name"].cast(pl.String)
    asked = [names[case.callers(op)[-1]] in _ASKED for op in casts["op_id"]]
    casts = casts.filter(pl.Series(asked, dtype=pl.Boolean))
    mine = pl.concat(
        (case.tasks.filter(pl.col("task").is_in(casts["task"].implode())), _scaling(case, casts))
    )
    spent, edit = int(mine["dur_ns"].sum()), removed(case, mine)
    if casts.is_empty() or _share(case, edit, spent / device_ns) < _LEAST_SHARE_ASKED:
        return
    kinds = casts.group_by("source", "target").agg(pl.col("dur_ns").sum()).sort("dur_ns", descending=True)
    source, target, _ = kinds.row(0)
    yield Finding(
        rule="dtype-casts",
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
    """The multiplications right behind casts from quantised types: with the cast, they make the weight."""
    last = casts.filter(pl.col("source").is_in(_QUANTISED))["task"].to_numpy()
    names = case.trace.spans["name"].cast(pl.String)
    following = case.tasks.filter(pl.col("task").is_in((last + 1).tolist()))
    op = names.gather(following["op_id"])
    return following.filter(op.is_in(("aten::mul", "aten::mul_")).fill_null(value=False))


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
