"""Copies between the host and the device, and which of them the host waits for."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.diagnose.device_work import DeviceWork
from foretrace.predict.costs import transfer
from foretrace.predict.numbers import Calls
from foretrace.predict.program import BLOCKING_COPY, SYNC
from foretrace.sourced import JUDGEMENT, Count, Share

MANY_SMALL = Count(3, "small copies a step: from here on, their number is the problem", JUDGEMENT)
STAGED_SPEED = Share(
    0.5, "the speed of pinned memory, below which a large copy is taken for one of pageable memory", JUDGEMENT
)


def host_copies(case: Case, direction: str) -> DeviceWork:
    """Copies of a direction, such as "HtoD", with `size_bytes`, whether they are `pageable`, and whether that was `told`.

    ROCm does not tell: there, large ones that are far slower than the bus are taken for pageable.
    """
    copies = case.copies.filter(pl.col("direction") == direction).select(
        pl.col("span_id").alias("id"), "size_bytes", "pageable"
    )
    rows = case.tasks.join(copies, on="id", maintain_order="left")
    pinned_ns = [transfer.pinned_ns(case.device, size) for size in rows["size_bytes"].fill_null(0)]
    slow = pl.Series(pinned_ns, dtype=pl.Float64) < STAGED_SPEED * rows["dur_ns"]
    large = pl.col("size_bytes") > transfer.STAGED_BYTES
    return DeviceWork(
        case,
        rows.with_columns(
            told=pl.col("pageable").is_not_null(),
            pageable=pl.col("pageable").fill_null((large & slow).fill_null(value=False)),
        ),
    )


def waited(case: Case, calls: Calls) -> NDArray[np.bool_]:
    """For calls that copy, whether the host waits: within the call, or in one of the same operator right after it."""
    program = case.program
    following = np.minimum(calls + 1, len(program.kind) - 1)
    op = case.trace.spans["op_id"].gather(program.call_span).cast(pl.Int64).fill_null(-1).to_numpy()
    same_op = (op[calls] == op[following]) & (op[calls] >= 0)
    waiting: NDArray[np.bool_] = program.kind[calls] == BLOCKING_COPY
    waiting |= same_op & (program.kind[following] == SYNC)
    return waiting


def waits_after(case: Case, calls: Calls) -> Calls:
    """The next call after each copy where it waits: .cpu() waits for its stream after the copy has been asked for."""
    following = np.unique(calls + 1)
    following = following[following < len(case.program.kind)]
    return Calls(following[case.program.kind[following] == SYNC])
