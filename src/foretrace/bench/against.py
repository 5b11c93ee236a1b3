"""How the rows of a sweep compare with one of them: speed-up with its interval, verdict, the rank test and the effect."""

from __future__ import annotations

from typing import Any

from foretrace import measured


def against(first: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Fields for `row`: how many times as fast as `first` it is."""
    difference = measured.compare(first["samples_ms"], row["samples_ms"])
    return {
        "speedup": difference.speedup.point,
        "speedup_low": difference.speedup.low,
        "speedup_high": difference.speedup.high,
        "verdict": difference.verdict,
        "chance": difference.chance,
        "effect": difference.effect,
    }
