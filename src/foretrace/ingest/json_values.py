"""Values of JSON events as the columns hold them: numbers within their bits, times in nanoseconds, text."""

from __future__ import annotations

import re
import sys
from typing import Any, TypeGuard

import numpy as np

from foretrace.ingest import lenient
from foretrace.ingest.columns import NULL_U64

_LARGEST_NS = 1 << 61
_INTEGER = re.compile(r"-?[0-9]+(?:\.0*)?")
_DECIMAL = re.compile(r"(-?)([0-9]+)(?:\.([0-9]*))?(?:[eE]([+-]?[0-9]+))?")


def integer(value: Any) -> int | None:
    """The integer that a value stands for, also as text or with an empty fraction."""
    if isinstance(value, int):
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return lenient.int_of(value.partition(".")[0])
    return None


def real(value: Any) -> float | None:
    """The finite number that a value stands for."""
    if isinstance(value, int):
        return float(value) if abs(value) <= sys.float_info.max else None
    if isinstance(value, str) and _DECIMAL.fullmatch(value):
        number = float(value)
        return number if np.isfinite(number) else None
    return None


def nanoseconds(value: Any) -> int | None:
    """Microseconds, as text or an integer, in whole nanoseconds; a half rounds away from zero."""
    if isinstance(value, int):
        total = value * 1000
    else:
        match = _DECIMAL.fullmatch(value) if isinstance(value, str) else None
        if not match or len(value) > 64:
            return None
        sign, whole, fraction, exponent = match[1], match[2], match[3] or "", int(match[4] or 0)
        if abs(exponent) > 30:
            return None
        shift = exponent + 3 - len(fraction)
        digits = int(whole + fraction)
        if shift >= 0:
            total = digits * 10**shift
        else:
            unit = 10**-shift
            total = (digits + unit // 2) // unit
        total = -total if sign else total
    return total if abs(total) < _LARGEST_NS else None


def is_text(value: Any) -> TypeGuard[str]:
    """Whether a value was written as a string."""
    return type(value) is str  # neither a Number nor a BareWord, which are text only here


def clean(value: int | str) -> int | str:
    """The value with the bytes that are no text replaced."""
    return lenient.clean(value) if isinstance(value, str) else value


def lane_key(value: Any) -> int | str:
    """A process or thread as it is written; nothing where that is neither a number nor text."""
    if isinstance(value, bool) or value is None:
        return ""
    return value if isinstance(value, int) else str(value) if isinstance(value, str) else ""


def text_of(item: Any) -> str | None:
    """A string, or a list or object as canonical JSON."""
    if isinstance(item, (list, dict)):
        return lenient.canonical(item)
    return item if is_text(item) else None


def triple(item: Any) -> tuple[int | None, int | None, int | None]:
    """Three sizes, such as those of a grid; null where one is missing."""
    sizes = [fit(integer(size), 31) for size in item[:3]] if isinstance(item, list) else []
    sizes += [None] * (3 - len(sizes))
    return sizes[0], sizes[1], sizes[2]


def fit(value: int | None, bits: int = 63) -> int | None:
    """The value, where so many bits hold it."""
    return value if value is not None and -(1 << bits) < value < 1 << bits else None


def fit_unsigned(value: int | None) -> int | None:
    """The value, where 64 bits without a sign hold it."""
    return value if value is not None and 0 <= value < NULL_U64 else None
