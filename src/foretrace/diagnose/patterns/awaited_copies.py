"""Awaited copies: calls that copy and hold the host until the copy has arrived."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace.diagnose.case import Case
from foretrace.predict.program import BLOCKING_COPY, SYNC


def awaited(case: Case, calls: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For calls that copy, whether the host waits: within the call, or in the next call of the same operator."""
    program = case.program
    following = np.minimum(calls + 1, len(program.kind) - 1)
    op = case.trace.spans["op_id"].fill_null(-1).cast(pl.Int64).gather(program.call_span).to_numpy()
    same_op = (op[calls] == op[following]) & (op[calls] >= 0)
    waits: NDArray[np.bool_] = program.kind[calls] == BLOCKING_COPY
    waits |= same_op & (program.kind[following] == SYNC)
    return waits
