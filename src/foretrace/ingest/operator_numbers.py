"""Operator numbers: how many of those that the profiler gave to operators are in a recording, and how far they reach."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

_LONG_JUMPS = 20  # one in so many


def operator_numbers(external: Iterable[int | None]) -> dict[str, int]:
    """The operators whose number and the next one there is known (`op_ids`), and the numbers between (`op_id_range`).

    A profiler numbers operators one after the other, so in a whole recording the two are alike. The longest jumps, one in
    twenty, are left out of both: there the profiler was paused, or numbered what it did not record.
    """
    jumps = np.sort(np.diff(np.unique(np.array([number for number in external if number], np.uint64))))
    jumps = jumps[: len(jumps) - len(jumps) // _LONG_JUMPS]
    return {"op_ids": len(jumps), "op_id_range": min(int(jumps.sum()), 2**63 - 1)}
