"""Copies within the device: the kernels of aten::copy_, with the types and the number of elements copied."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import takewhile

import polars as pl

from foretrace.analyze.concepts.names.per_name import matching
from foretrace.analyze.concepts.work.work_models.call import parse
from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.errors import MissingDataError
from foretrace.predict.edits import Edit

SAME_TYPE = pl.col("source") == pl.col("target")
_WITH_THE_HOST = "HtoD|DtoH|HtoH|Host"  # in names of copies that leave the device or come from outside
# Operators that are nothing but the copy in them, or the scaling of what was quantised.
_COPIES = re.compile(
    r"aten::(?:to|_to_copy|type_as|contiguous|clone|copy_|mul|mul_|repeat|repeat_interleave|tile|reshape|flatten)$"
)


def device_copies(case: Case) -> DeviceWork:
    """All copies within the device, with the columns below beside their operators' arguments.

    `target` and `source` are types, `count` the elements copied, `item_bytes` the size of one as written; `program_step` is the
    step of the copy, and `place` counts the kernels and copies of its stream.
    """
    return case.keep("device copies", lambda: _device_copies(case))


def _device_copies(case: Case) -> DeviceWork:
    work = case.device_work(pl.col("kind") != "set").rows
    step = pl.Series("program_step", case.program.step[work["call"].to_numpy()], dtype=pl.Int64)
    work = work.with_columns(step, place=pl.int_range(pl.len()).over("stream"))
    every = DeviceWork(case, work).launched_by("aten::copy_")
    copies = every.where(~matching(every.rows["name"], _WITH_THE_HOST)).with_arguments().rows
    if copies.height and copies["shapes"].null_count() == copies.height:
        raise MissingDataError(f"{case.trace.path.name}: no shapes recorded; record with record_shapes=True")
    copied = [
        _copied(shapes or "", dtypes) for shapes, dtypes in copies.select("shapes", "dtypes").iter_rows()
    ]
    schema = {"target": pl.String, "source": pl.String, "count": pl.Int64, "item_bytes": pl.Int64}
    columns = pl.DataFrame(copied, schema=schema, orient="row")
    return DeviceWork(case, copies.hstack(columns).drop_nulls(("source", "target")))


@lru_cache(maxsize=4096)
def _copied(shapes: str, dtypes: str | None) -> tuple[str | None, str | None, int, int]:
    """Types of target and source, the elements copied and the bytes of one; no types where they were not recorded."""
    try:
        call = parse("aten::copy_", shapes, dtypes, None, None, None)
        target, source = call.tensor(0), call.tensor(1)
    except (ValueError, LookupError, TypeError):
        return None, None, 0, 0
    return target.dtype, source.dtype, target.count, target.item_bytes


def without_copies(copies: DeviceWork) -> Edit:
    """The copies gone, with the host time of the calls that asked for them."""
    case = copies.case
    outer = set()
    for op in copies.ops:
        around = list(takewhile(lambda caller: _COPIES.match(case.name(caller)), case.callers(op)))
        outer.update(around[-1:])
    host = case.during(case.trace.spans[sorted(outer)])
    return Edit(removed_host=host, removed_tasks=copies.tasks)
