"""Launch runs: calls that launch device work one after the other, with no other launch between them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrace.diagnose.case import Case


class LaunchRuns(NamedTuple):
    """All launching calls of a program, and the first and last of each run by their place among them."""

    launching: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]


def launch_runs(case: Case, calls: NDArray[np.int64]) -> LaunchRuns:
    """The runs of some of the program's launching calls."""
    launching = np.flatnonzero(np.diff(case.program.task_from) > 0)
    place = np.searchsorted(launching, np.unique(calls))
    opens = np.concatenate(([True], np.diff(place) > 1))
    closes = np.concatenate((opens[1:], [True]))
    return LaunchRuns(launching, place[opens], place[closes])
