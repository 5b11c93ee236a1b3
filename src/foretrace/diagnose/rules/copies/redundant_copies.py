"""Tensors are copied into another order that what follows does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

import polars as pl

from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix
from foretrace.diagnose.patterns import copy_readers, growing_cats, one_hot_products, shifted_logits
from foretrace.diagnose.rule import Healthy, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.costs.streaming import BANDWIDTH_SHARE, START_NS
from foretrace.predict.edits import Edit, merge

_LEAST_SHARE = 0.02
_ASKED = ("aten::contiguous", "aten::clone")
_REPEATS = ("aten::repeat", "aten::repeat_interleave", "aten::tile", "aten::reshape", "aten::flatten")
# Of these, the order is that of heads which enable_gqa knows: each comes several times in a row.
_IN_A_ROW = ("aten::repeat_interleave", "aten::reshape", "aten::flatten")
_TIMES = (
    5,
    2,
)  # batch, heads, times, tokens, width: how many dimensions, and the place of the times among them
# Where strides were not recorded: a view behind the copy may need its order, and an operator in place its own tensor.
_NEEDS_COPY = re.compile(
    r"aten::(?:view|_unsafe_view|view_as|flatten|unflatten|reshape|_reshape_alias|as_strided|select|slice|split|"
    r"split_with_sizes|chunk|unbind|unsqueeze|squeeze|transpose|permute|t|narrow|unfold|expand|detach|\w+_)$"
)
# Operators that are nothing but the copy in them, or the scaling of what was quantised.
_COPIES = re.compile(
    r"aten::(?:to|_to_copy|type_as|contiguous|clone|copy_|mul|mul_|repeat|repeat_interleave|tile|reshape|flatten)$"
)
_FAR = 1 << 40
_ITEM_BYTES = {
    "fp32": 4,
    "fp64": 8,
    "fp16": 2,
    "bf16": 2,
    "fp8": 1,
    "int64": 8,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}
_FIX = Fix("Leave the call out.", "y = x.transpose(1, 2) @ w  # not x.transpose(1, 2).contiguous() @ w")
_REPEAT_FIX = Fix(
    "Let what follows repeat: by broadcasting, expand() in place of repeat(), or enable_gqa=True in attention.",
    "y = x[:, None] + z  # not x[:, None].repeat(1, n, 1) + z\n"
    "y = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)  # not k.repeat_interleave(4, 1)",
)


def _no_issue(values: Mapping[str, Any]) -> str | None:
    share = values.get("moving_pct")
    return None if share is None else f"{share:.0f} % of GPU time only moves data"


@rule(
    title="Tensors are copied without need",
    topic="Needless copies",
    see="roles",
    healthy=Healthy("gpu-efficiency", _no_issue),
)
def redundant_copies(case: Case) -> Iterator[Finding]:
    """Copies by contiguous(), clone() or repeat() that nothing behind them needs, and torch.cat that copies all to add a little.

    What it does
    Looks for copies on the device, without a change of type, that the program itself asks for by contiguous() or
    clone(), and for elements repeated by repeat(), repeat_interleave() or expand().reshape(). What reads such a copy is
    known by its shape and strides: a copy is needless if that could read the original. It could not where a view of
    the copy is no view of the original, where it works in place, or where it would bring its input into order itself,
    as norms, softmax and convolutions do. A pointwise operator that would read rows that are not dense saves one pass
    over the tensor, unless a matrix product made them, which can write any order. Attention takes repeated heads of
    keys and values unrepeated. One-hot tensors that are multiplied are replaced by a lookup of rows. Logits
    without the last few rows of each text, copied for a loss, are read where they lie, with labels to ignore for those
    rows; where there is a backward pass, the gradient's copy back goes as well. All of one kind must take 2 % of the
    GPU's time.
    Looks as well for torch.cat whose result another torch.cat copies again to add a tenth or less, or that moves a window
    along, unless autograd keeps the parts for a backward pass. The replay copies only what is new.

    Why it matters
    A copy reads and writes the whole tensor. Matrix products, attention and pointwise operators read tensors in
    any order, and repeat elements as they read. A cache that grows by torch.cat is copied as a whole for every token.

    Use instead
    Leave the call out, or move it to where a view fails without it; expand() in place of repeat();
    scaled_dot_product_attention(..., enable_gqa=True). Write what is new into a buffer of the final length:
    cache[:, :, at] = new, and read cache[:, :, : at + 1].
    """
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    grown = growing_cats.growing(case)
    if int(grown["dur_ns"].sum()) >= _LEAST_SHARE * device_ns:
        yield _grown(case, grown, device_ns)
    if lookups := one_hot_products.lookups(case):
        yield from _looked_up(case, lookups, device_ns)
    copies = device_copies(case).filter(pl.col("source") == pl.col("target"))
    if left_out := shifted_logits.shifted(case, copies):
        yield from _shifted(case, left_out, device_ns)
    found = [_without(case, *row) for row in copies.select("op_id", "shapes", "strides").iter_rows()]
    copies = copies.with_columns(
        how=pl.Series([each.how for each in found], dtype=pl.String),
        repeated=pl.Series([each.repeated for each in found], dtype=pl.Boolean),
        reader=pl.Series([each.reader for each in found], dtype=pl.Int64),
        times=pl.Series([each.times for each in found], dtype=pl.Int64),
    )
    for repeated in (False, True):
        mine = copies.filter((pl.col("how") != "not") & (pl.col("repeated") == repeated))
        if mine.height and int(mine["dur_ns"].sum()) >= _LEAST_SHARE * device_ns:
            yield _needless(case, mine, device_ns, repeated=repeated)


def _needless(case: Case, mine: pl.DataFrame, device_ns: int, *, repeated: bool) -> Finding:
    spent = int(mine["dur_ns"].sum())
    by, why, fix = (
        ("repeat() or expand()", "What follows can repeat the elements as it reads them.", _REPEAT_FIX)
        if repeated
        else (
            "contiguous() or clone()",
            "They move whole tensors into an order that what follows does not need.",
            _FIX,
        )
    )
    return Finding(
        says=f"{mine.height / case.step_count:.0f} copies a step by {by} take {100 * spent / device_ns:.0f} % of the GPU's time.",
        why=why,
        fix=fix,
        evidence={
            "copies_ns": spent // case.step_count,
            "copies_pct": 100 * spent / device_ns,
            "copies_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].to_list()),
        change=Change("copies removed", _edit(case, mine)),
        unless="the copy is changed in place later, or an operator behind it is slower on the other order.",
    )


def _edit(case: Case, mine: pl.DataFrame) -> Edit:
    """The step without the copies; those of rows that are not dense are read as slowly by what follows."""
    gone = removed(case, mine.filter(pl.col("how") == "well"))
    kept = mine.filter(pl.col("how") == "slowly")
    shorter: dict[int, int] = {}
    if case.device is not None:
        rate = case.device.memory_bandwidth_bytes * BANDWIDTH_SHARE / 1e9
        for task, dur, count, dtype in kept.select("task", "dur_ns", "count", "target").iter_rows():
            shorter[task] = max(dur - round(2 * count * _ITEM_BYTES.get(dtype, 4) / rate), 0)
    return merge((gone, Edit(durations_ns=shorter | _single_query(case, mine))))


def _single_query(case: Case, mine: pl.DataFrame) -> dict[int, int]:
    """Attention of one query reads its keys and values once: unrepeated ones, that many times faster."""
    times = {
        op: times for op, times in mine.select("reader", "times").iter_rows() if op is not None and times > 1
    }
    if not times:
        return {}
    work = case.tasks.drop_nulls("op_id")
    outermost = [case.callers(op)[-1] for op in work["op_id"]]
    return {
        task: max(dur // times[op], min(dur, START_NS))
        for op, (task, dur) in zip(outermost, work.select("task", "dur_ns").iter_rows(), strict=True)
        if op in times
    }


def _looked_up(case: Case, lookups: list[one_hot_products.Lookup], device_ns: int) -> Iterator[Finding]:
    made, multiplied = one_hot_products.tasks(case, lookups)
    spent = int(made["dur_ns"].sum()) + int(multiplied["dur_ns"].sum())
    if case.device is None or spent < _LEAST_SHARE * device_ns:
        return
    yield Finding(
        says=f"{len(lookups) / case.step_count:.0f} one-hot tensors a step are made and multiplied: "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="All but one of each row's products are with zero.",
        fix=Fix("Look the rows up.", "y = F.embedding(ids, table)  # not F.one_hot(ids, n).float() @ table"),
        evidence={
            "copies_ns": spent // case.step_count,
            "copies_pct": 100 * spent / device_ns,
            "copies_per_step_count": len(lookups) / case.step_count,
            "spans": multiplied["id"].head(5).to_list(),
        },
        where=case.places([each.product for each in lookups]),
        change=Change("rows looked up", one_hot_products.edit(case, case.device, lookups, made, multiplied)),
        unless="the tensor is made soft later.",
    )


def _shifted(case: Case, left_out: list[shifted_logits.Shifted], device_ns: int) -> Iterator[Finding]:
    mine = shifted_logits.tasks(case, left_out)
    spent = int(mine["dur_ns"].sum())
    if spent < _LEAST_SHARE * device_ns:
        return
    yield Finding(
        says=f"All rows but those without a label are copied for the loss: {100 * spent / device_ns:.0f} % of the GPU's time "
        "with the gradient's way back.",
        why="The loss leaves out rows by itself whose label is to be ignored.",
        fix=Fix(
            "Shift the labels, not the logits.",
            "labels = F.pad(labels[:, 1:], (0, 1), value=-100)   # not logits[:, :-1].contiguous()\n"
            "loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())",
        ),
        evidence={
            "copies_ns": spent // case.step_count,
            "copies_pct": 100 * spent / device_ns,
            "copies_per_step_count": len(left_out) / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places([each.op for each in left_out]),
        change=Change("labels shifted in place of rows", shifted_logits.edit(case, left_out, mine)),
        unless="the copy is used for more than the loss.",
    )


def _grown(case: Case, mine: pl.DataFrame, device_ns: int) -> Finding:
    spent = int(mine["dur_ns"].sum())
    longer_pct = 100 * float(mine["new_share"].sum()) / mine.height
    return Finding(
        says=f"{mine.height / case.step_count:.0f} times a step torch.cat copies a whole tensor to make it "
        f"{longer_pct:.2g} % longer: {100 * spent / device_ns:.0f} % of the GPU's time.",
        why="What was there already is read and written again each time.",
        fix=Fix(
            "Write what is new into a buffer of the final length.",
            "cache[:, :, at : at + 1] = new   # not: cache = torch.cat([cache, new], 2)\n"
            "keys = cache[:, :, : at + 1]",
        ),
        evidence={
            "copies_ns": spent // case.step_count,
            "copies_pct": 100 * spent / device_ns,
            "copies_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].to_list()),
        change=Change("only what is new copied", growing_cats.edit(mine)),
        unless="the final length is not known and memory for the longest is short, or what reads the buffer is slower on a "
        "part of it.",
    )


def device_copies(case: Case) -> pl.DataFrame:
    """Tasks of aten::copy_ within the device: source and target type, elements, and `order`.

    `order` counts by one from a task to the next of its step and stream, and by more to any other.
    """
    return case.keep("copies", lambda: _device_copies(case))


def _device_copies(case: Case) -> pl.DataFrame:
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    work = case.tasks.filter(pl.col("kind") != "set")
    step = pl.Series(case.program.step[work["call"].to_numpy()], dtype=pl.Int64)
    stream = pl.col("stream").cast(pl.Int64) * _FAR
    work = work.with_columns(order=pl.int_range(pl.len()).over("stream") + step + stream)
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    host = pl.col("name").cast(pl.String).str.contains("HtoD|DtoH|HtoH|Host")
    work = work.filter((op == "aten::copy_").fill_null(value=False) & ~host)
    ops = case.trace.ops.select(
        pl.col("span_id").alias("op_id"),
        *(pl.col(c).cast(pl.String) for c in ("shapes", "dtypes", "strides")),
    )
    work = work.join(ops, on="op_id", how="left", maintain_order="left")
    if work.height and work["shapes"].null_count() == work.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    told = [_told(*row) for row in work.select("shapes", "dtypes").iter_rows()]
    return work.with_columns(
        pl.Series("target", [each[0] for each in told], dtype=pl.String),
        pl.Series("source", [each[1] for each in told], dtype=pl.String),
        pl.Series("count", [each[2] for each in told], dtype=pl.Int64),
    ).drop_nulls(("source", "target"))


@lru_cache(maxsize=4096)
def _told(shapes: str | None, dtypes: str | None) -> tuple[str | None, str | None, int]:
    """Types of target and source, and the elements copied."""
    try:
        call = parse("aten::copy_", shapes or "", dtypes, None, None, None)
        target, source = call.tensor(0), call.tensor(1)
    except (ValueError, LookupError, TypeError):
        return None, None, 0
    return target.dtype, source.dtype, target.count


@dataclass(frozen=True)
class _Without:
    """How what follows would do without a copy: "well", "slowly" or "not"."""

    how: str
    repeated: bool = False
    reader: int | None = None
    times: int = 1  # how many times as much attention of one query reads


def _without(case: Case, op: int, shapes: str | None, strides: str | None) -> _Without:
    """Whether the program asked for this copy itself and what follows can do without."""
    names = case.trace.spans["name"]
    outermost = case.callers(op)[-1]
    asked = str(names[outermost])
    lying = copy_readers.tensors(shapes, strides)
    original = lying[1] if len(lying) > 1 else None
    repeats = original is not None and bool(original.repeated)
    if asked not in _ASKED and not (repeats and asked in _REPEATS):
        return _Without("not")
    if original is None:  # of a single element, or strides were not recorded
        following = _next_op(case, outermost)
        return _Without("not" if following and _NEEDS_COPY.match(following) else "well")
    copy = lying[0] if asked == "aten::clone" and not repeats else copy_readers.ordered(original.shape)
    if asked == "aten::contiguous" and _formatted(case, outermost):
        return _Without("not")  # into channels-last order: `layout-conversions` looks at that
    found = copy_readers.reader(case, outermost, copy, original, reshaped=asked in _REPEATS)
    if found is None:
        following = _next_op(case, outermost)
        needed = repeats or (following is not None and _NEEDS_COPY.match(following))
        return _Without("not" if needed else "well")
    heads = asked in _IN_A_ROW and (len(original.shape), *original.repeated) == _TIMES
    any_order = copy_readers.from_product(case, outermost)
    backend = _inside(case, found.op)
    how = copy_readers.readable(found, copy, heads=heads, backend=backend, any_order=any_order)
    query = found.tensors[0].shape if found.tensors else ()
    times = original.shape[_TIMES[1]] if heads and len(query) > 1 and query[-2] == 1 else 1
    return _Without(how, repeats, found.op, times)


def _formatted(case: Case, op: int) -> bool:
    """Whether contiguous() was asked for an order of its own, such as channels last."""
    return op in case.keep("contiguous in another order", lambda: _all_formatted(case))


def _all_formatted(case: Case) -> set[int]:
    ops = case.trace.ops.filter(pl.col("inputs").cast(pl.String).str.contains(r'^\["", "[1-9]"\]$'))
    names = case.trace.spans["name"].gather(ops["span_id"]).cast(pl.String)
    return set(ops.filter(names == "aten::contiguous")["span_id"])


def _inside(case: Case, op: int) -> str:
    """The names of the operators inside of one."""
    spans = case.trace.spans
    end = spans["start_ns"][op] + (spans["dur_ns"][op] or 0)
    near = spans.slice(op + 1, 16).filter((pl.col("kind") == "op") & (pl.col("start_ns") < end))
    return " ".join(near["name"].cast(pl.String))


def _next_op(case: Case, op: int) -> str | None:
    """The outermost operator that its thread calls next."""
    spans = case.trace.spans
    track, start, dur = spans.select("track_id", "start_ns", "dur_ns").row(op)
    near = spans.slice(op + 1, 64).filter(
        (pl.col("kind") == "op") & (pl.col("track_id") == track) & (pl.col("start_ns") >= start + (dur or 0))
    )
    return str(near["name"][0]) if near.height else None


def removed(case: Case, mine: pl.DataFrame) -> Edit:
    """The edit without these copies, with the host time of the calls that asked for them."""
    names = case.names
    outer = set()
    for op in mine["op_id"]:
        asked = list(takewhile(lambda each: _COPIES.match(names[each]), case.callers(op)))
        outer.update(asked[-1:])
    host = case.during(case.trace.spans[sorted(outer)])
    return Edit(removed_host=host, removed_tasks=mine["task"].to_numpy())
