"""A level over time as a picture of block characters, some lines high."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_PARTS = " ▁▂▃▄▅▆▇█"


def columns(
    at: Sequence[int] | NDArray[np.int64], level: NDArray[np.int64], before: int, width: int
) -> NDArray[np.int64]:
    """The highest level in each of `width` equal parts of the time; `before` holds until the first change."""
    times = np.maximum.accumulate(np.asarray(at, np.int64))
    if not len(times):
        return np.full(width, before)
    span = max(float(times[-1]) - float(times[0]), 1.0)
    place = np.minimum((times - times[0]).astype(np.float64) * (width / span), width - 1).astype(np.int64)
    highest = np.full(width, np.iinfo(np.int64).min)
    np.maximum.at(highest, place, level)
    # What was held when a part began is held in it too.
    begun = np.searchsorted(place, np.arange(width), side="left") - 1
    start = np.where(begun >= 0, level[np.maximum(begun, 0)], before)
    levels: NDArray[np.int64] = np.maximum(highest, start)
    return levels


def picture(highest: NDArray[np.int64], height: int) -> list[str]:
    """The picture of these levels from 0 up, the top line first."""
    most = max(int(highest.max(initial=0)), 1)
    eighths = np.round(np.maximum(highest, 0) / most * height * 8).astype(int)
    lines = []
    for row in range(height - 1, -1, -1):
        filled = np.clip(eighths - 8 * row, 0, 8)
        lines.append("".join(_PARTS[part] for part in filled))
    return lines
