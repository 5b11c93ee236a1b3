"""Numbers and units as Nsight Compute prints them: 8,520,123 and 2.61 Tbyte/s."""

from __future__ import annotations

import re
from functools import cache

_PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_LARGEST = 1e24  # bytes, operations or cycles; also false for what is no number
_SECONDS = re.compile(r"(|n|u|m)(?:s|sec|second)")
_SCALED = re.compile(r"(|K|M|G|T|P)(?:byte|hz)", re.IGNORECASE)


def number(text: str) -> float | None:
    """The value of a field; None where it holds none that a counter can have."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if abs(value) < _LARGEST else None


@cache
def factor(unit: str) -> float:
    """What a value in this unit is multiplied with for bytes, seconds and hertz; 1 for units that have no prefix."""
    above, _, below = unit.strip().partition("/")
    return _part(above) / _part(below)


def _part(text: str) -> float:
    if found := _SECONDS.fullmatch(text):
        return _PREFIXES[found[1]]
    if found := _SCALED.fullmatch(text):
        return _PREFIXES[found[1].upper()]
    return 1.0
