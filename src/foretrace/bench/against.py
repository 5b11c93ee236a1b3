"""How the rows of a sweep compare with one of them: speed-up with its interval, verdict, the rank test and the effect."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrace import measured
from foretrace.sourced import JUDGEMENT, Count

BLOCKS = Count(10, "blocks of samples that follow one another, whose medians are compared", JUDGEMENT)


def against(first: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Fields for `row`: how many times as fast as `first` it is.

    Samples that follow one another hang together, so medians are compared: of turns where there were any, else of blocks.
    """
    difference = measured.compare(_independent(first), _independent(row))
    return {
        "speedup": difference.speedup.point,
        "speedup_low": difference.speedup.low,
        "speedup_high": difference.speedup.high,
        "verdict": difference.verdict,
        "chance": difference.chance,
        "effect": difference.effect,
    }


def _independent(row: dict[str, Any]) -> list[float]:
    if row.get("turns_ms"):
        turns: list[float] = row["turns_ms"]
        return turns
    samples = row["samples_ms"]
    if len(samples) < 2 * BLOCKS:
        return list(samples)
    return [float(np.median(block)) for block in np.array_split(np.asarray(samples), int(BLOCKS))]
