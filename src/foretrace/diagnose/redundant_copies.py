"""Tensors are copied into another order that what follows does not need."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import takewhile

import polars as pl

from foretrace import intervals
from foretrace.analyze.work_models.call import parse
from foretrace.diagnose import growing
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Finding, Fix, rule
from foretrace.errors import MissingDataError
from foretrace.predict.changes import Change
from foretrace.predict.edits import Edit

_LEAST_SHARE = 0.02
_ASKED = ("aten::contiguous", "aten::clone")
# A view behind the copy may need its order, and an operator in place needs a tensor of its own.
_NEEDS_COPY = (
    r"^aten::(?:view|_unsafe_view|view_as|flatten|unflatten|reshape|_reshape_alias|as_strided|select|slice|split|"
    r"split_with_sizes|chunk|unbind|unsqueeze|squeeze|transpose|permute|t|narrow|unfold|expand|detach|\w+_)$"
)
# Operators that are nothing but the copy in them, or the scaling of what was quantised.
_COPIES = re.compile(r"aten::(?:to|_to_copy|type_as|contiguous|clone|copy_|mul|mul_)$")
_FAR = 1 << 40


@rule
def redundant_copies(case: Case) -> Iterator[Finding]:
    """Calls of .contiguous() and .clone() whose copy nothing behind them needs, and torch.cat that copies all to add a little.

    What it does
    Looks for copies on the device, without a change of type, that the program itself asks for by contiguous() or
    clone(), and that neither a view nor an operator in place follows. They must take 2 % of the GPU's time.
    Looks as well for torch.cat, outside of autograd, one part of which is nine tenths of the result or more and
    whose result another torch.cat copies again. The replay copies only what is new.

    Why it matters
    A copy reads and writes the whole tensor. Matrix products, attention and pointwise operators read tensors in
    any order. A cache that grows by torch.cat is copied as a whole for every token.

    Use instead
    Leave the call out, or move it to where a view fails without it. Write what is new into a buffer of the final
    length: cache[:, :, at] = new, and read cache[:, :, : at + 1].
    """
    device_ns = max(int(case.program.task_dur_ns.sum()), 1)
    grown = growing.growing(case)
    if int(grown["dur_ns"].sum()) >= _LEAST_SHARE * device_ns:
        yield _grown(case, grown, device_ns)
    copies = device_copies(case).filter(pl.col("source") == pl.col("target"))
    mine = copies.filter(pl.Series([_needless(case, op) for op in copies["op_id"]], dtype=pl.Boolean))
    spent = int(mine["dur_ns"].sum())
    if mine.is_empty() or spent < _LEAST_SHARE * device_ns:
        return
    yield Finding(
        rule="redundant-copies",
        says=f"{mine.height / case.step_count:.0f} copies a step by contiguous() or clone() take "
        f"{100 * spent / device_ns:.0f} % of the GPU's time.",
        why="They move whole tensors into an order that what follows does not need.",
        fix=Fix("Leave the call out.", "y = x.transpose(1, 2) @ w  # not x.transpose(1, 2).contiguous() @ w"),
        evidence={
            "copies_ns": spent // case.step_count,
            "copies_pct": 100 * spent / device_ns,
            "copies_per_step_count": mine.height / case.step_count,
            "spans": mine["id"].head(5).to_list(),
        },
        where=case.places(mine["op_id"].to_list()),
        change=Change("copies removed", removed(case, mine)),
        unless="the copy is changed in place later, or an operator behind it is slower on the other order.",
    )


def _grown(case: Case, mine: pl.DataFrame, device_ns: int) -> Finding:
    spent = int(mine["dur_ns"].sum())
    longer_pct = 100 * float(mine["new_share"].sum()) / mine.height
    return Finding(
        rule="redundant-copies",
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
        change=Change("only what is new copied", growing.edit(mine)),
        unless="the final length is not known and memory for the longest is short, or what reads the buffer is slower on a "
        "part of it.",
    )


def device_copies(case: Case) -> pl.DataFrame:
    """Tasks of aten::copy_ within the device: source and target type, elements, and `order`.

    `order` counts by one from a task to the next of its step and stream, and by more to any other.
    """
    case.trace.require("kernels", "no kernels recorded; record with ProfilerActivity.CUDA")
    work = case.tasks.filter(pl.col("kind") != "set")
    step = pl.Series(case.program.step[work["call"].to_numpy()], dtype=pl.Int64)
    stream = pl.col("stream").cast(pl.Int64) * _FAR
    work = work.with_columns(order=pl.int_range(pl.len()).over("stream") + step + stream)
    op = case.trace.spans["name"].gather(work["op_id"]).cast(pl.String)
    host = pl.col("name").cast(pl.String).str.contains("HtoD|DtoH|HtoH|Host")
    work = work.filter((op == "aten::copy_").fill_null(value=False) & ~host)
    ops = case.trace.ops.select(
        pl.col("span_id").alias("op_id"), *(pl.col(c).cast(pl.String) for c in ("shapes", "dtypes"))
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


def _needless(case: Case, op: int) -> bool:
    """Whether the program asked for this copy itself and what follows can do without."""
    names = case.trace.spans["name"]
    outermost = case.callers(op)[-1]
    if str(names[outermost]) not in _ASKED:
        return False
    following = _next_op(case, outermost)
    return following is None or not pl.Series([following]).str.contains(_NEEDS_COPY)[0]


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
    names = case.trace.spans["name"].cast(pl.String)
    outer = set()
    for op in mine["op_id"]:
        asked = list(takewhile(lambda each: _COPIES.match(names[each]), case.callers(op)))
        outer.update(asked[-1:])
    spans = case.trace.spans[sorted(outer)]
    start = (spans["start_ns"] - case.program.start_ns).to_numpy()
    host = intervals.union(start, start + spans["dur_ns"].fill_null(0).to_numpy())
    return Edit(removed_host=host, removed_tasks=mine["task"].to_numpy())
