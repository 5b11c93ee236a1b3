"""Copies that the program asks for and that what follows could do without."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.diagnose.patterns import copy_readers
from foretrace.diagnose.patterns.copy_readers import Layout
from foretrace.diagnose.patterns.device_copies import SAME_TYPE, device_copies, without_copies
from foretrace.predict.costs import streaming
from foretrace.predict.edits import Edit, merge
from foretrace.sourced import JUDGEMENT, Count

_INSIDE = Count(16, "spans after an operator's, among which those inside of it are looked for", JUDGEMENT)
_NEXT = Count(64, "spans after an operator's, among which the next one is looked for", JUDGEMENT)
_ASKED = ("aten::contiguous", "aten::clone")
_REPEATS = ("aten::repeat", "aten::repeat_interleave", "aten::tile", "aten::reshape", "aten::flatten")
# Of these, the order is that of heads which enable_gqa knows: each comes several times in a row.
_IN_A_ROW = ("aten::repeat_interleave", "aten::reshape", "aten::flatten")
# Where strides were not recorded: a view after the copy may need its order, and an operator in place its own tensor.
_NEEDS_COPY = re.compile(
    r"aten::(?:view|_unsafe_view|view_as|flatten|unflatten|reshape|_reshape_alias|as_strided|select|slice|split|"
    r"split_with_sizes|chunk|unbind|unsqueeze|squeeze|transpose|permute|t|narrow|unfold|expand|detach|\w+_)$"
)


@dataclass(frozen=True)
class _Without:
    """How what follows would do without a copy: "well", "slowly" or "not"."""

    how: str
    repeated: bool = False  # whether the copy repeats elements
    reader: int | None = None
    times: int = 1  # how many times as much attention of one query reads


def needless_copies(case: Case, *, repeated: bool) -> DeviceWork:
    """Copies that could go, of those that repeat elements or of those that do not."""
    copies = case.keep("needless copies", lambda: _needless_copies(case))
    return copies.where(pl.col("repeated") == repeated)


def _needless_copies(case: Case) -> DeviceWork:
    """Copies that could go, with the columns of `_Without`."""
    copies = device_copies(case).where(SAME_TYPE).rows
    without = [_without(case, *copy) for copy in copies.select("op_id", "shapes", "strides").iter_rows()]
    columns = pl.DataFrame(
        [(copy.how, copy.repeated, copy.reader, copy.times) for copy in without],
        schema={"how": pl.String, "repeated": pl.Boolean, "reader": pl.Int64, "times": pl.Int64},
        orient="row",
    )
    return DeviceWork(case, copies.hstack(columns)).where(pl.col("how") != "not")


def without_needless(copies: DeviceWork) -> Edit:
    """The copies gone; where what follows reads rows that are not dense, one pass over the tensor is saved."""
    durations: dict[int, int] = {}
    device = copies.case.device
    if device is not None:
        rate = streaming.rate_bytes_per_ns(device)
        slowly = copies.where(pl.col("how") == "slowly").rows
        for task, dur, count, item_bytes in slowly.select(
            "task", "dur_ns", "count", "item_bytes"
        ).iter_rows():
            durations[task] = max(dur - round(2 * count * item_bytes / rate), 0)
    removed = without_copies(copies.where(pl.col("how") == "well"))
    return merge((removed, Edit(durations_ns=durations | _attention_of_one_query(copies))))


def _attention_of_one_query(copies: DeviceWork) -> dict[int, int]:
    """Attention of one query reads its keys and values once: unrepeated ones, that many times faster."""
    times = {
        op: times
        for op, times in copies.rows.select("reader", "times").iter_rows()
        if op is not None and times > 1
    }
    if not times:
        return {}
    case = copies.case
    work = case.tasks.drop_nulls("op_id").select("op_id", "task", "dur_ns")
    return {
        task: max(dur // times[outermost], min(dur, streaming.START_NS))
        for op, task, dur in work.iter_rows()
        if (outermost := case.callers(op)[-1]) in times
    }


def _without(case: Case, op: int, shapes: str | None, strides: str | None) -> _Without:
    """Whether the program asked for this copy itself and what follows can do without."""
    outermost = case.callers(op)[-1]
    asked = case.name(outermost)
    layouts = copy_readers.tensors(shapes, strides)
    original = layouts[1] if len(layouts) > 1 else None
    repeats = original is not None and bool(original.repeated)
    if asked not in _ASKED and not (repeats and asked in _REPEATS):
        return _Without("not")
    if original is None:  # of a single element, or strides were not recorded
        return _Without("not" if _next_needs_copy(case, outermost) else "well")
    if asked == "aten::contiguous" and outermost in _formatted(case):
        return _Without("not")  # into channels-last order: layout-conversions is about that
    copy = layouts[0] if asked == "aten::clone" and not repeats else copy_readers.ordered(original.shape)
    reader = copy_readers.reader(case, outermost, copy, original, reshaped=asked in _REPEATS)
    if reader is None:
        return _Without("not" if repeats or _next_needs_copy(case, outermost) else "well")
    heads = asked in _IN_A_ROW and _repeats_heads(original)
    how = copy_readers.readable(
        reader,
        copy,
        heads=heads,
        backend=_inside(case, reader.op),
        any_order=copy_readers.from_product(case, outermost),
    )
    query = reader.tensors[0].shape if reader.tensors else ()
    one_query = heads and len(query) > 1 and query[-2] == 1
    return _Without(how, repeats, reader.op, original.shape[2] if one_query else 1)


def _repeats_heads(original: Layout) -> bool:
    """Whether it is heads of keys or values that are repeated: batch, heads, times, tokens, width."""
    return len(original.shape) == 5 and original.repeated == (2,)


def _formatted(case: Case) -> set[int]:
    """Calls of contiguous() that ask for an order of their own, such as channels last."""
    return case.keep("contiguous in another order", lambda: _all_formatted(case))


def _all_formatted(case: Case) -> set[int]:
    calls = case.calls_named("aten::contiguous")
    return set(calls.filter(pl.col("inputs").str.contains(r'^\["", "[1-9]"\]$'))["op_id"])


def _inside(case: Case, op: int) -> str:
    """The names of the operators inside of one."""
    spans = case.trace.spans
    end = spans["start_ns"][op] + (spans["dur_ns"][op] or 0)
    near = spans.slice(op + 1, _INSIDE).filter((pl.col("kind") == "op") & (pl.col("start_ns") < end))
    return " ".join(near["name"].cast(pl.String))


def _next_needs_copy(case: Case, op: int) -> bool:
    """Whether the operator that its thread calls next may need the order of the copy, or a tensor of its own."""
    spans = case.trace.spans
    track, start, dur = spans.select("track_id", "start_ns", "dur_ns").row(op)
    near = spans.slice(op + 1, _NEXT).filter(
        (pl.col("kind") == "op") & (pl.col("track_id") == track) & (pl.col("start_ns") >= start + (dur or 0))
    )
    return bool(near.height) and _NEEDS_COPY.match(str(near["name"][0])) is not None
