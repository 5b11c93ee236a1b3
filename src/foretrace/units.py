"""The suffix of a name is its unit: values and column headings as text for people, chosen by that suffix."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Sequence

ABSENT = "–"
SUFFIXES = ("_ns", "_bytes", "_flops", "_pct", "_count", "_per_s", "_flops_per_byte")

_TIMES = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_BYTES = tuple((1024**power, unit) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB")))
_FLOPS = tuple((1000**power, f"{unit}FLOP") for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E")))
_PLAIN = tuple((1000**power, unit) for power, unit in enumerate(("", "k", "M", "G", "T", "P", "E")))
_SCALES = {"_ns": _TIMES, "_bytes": _BYTES, "_flops": _FLOPS}
# Control, format (bidi, zero-width), surrogate and private characters, and the line separators.
_UNSEEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_ACRONYMS = {"gpu", "cpu", "sm", "id", "ai", "nccl", "cuda"}


def suffix(name: str) -> str:
    """The unit suffix of a column or value name, or nothing."""
    return next((each for each in SUFFIXES if name.endswith(each)), "")


def heading(name: str) -> str:
    """The name without its unit, in words; a count says so unless a plural does."""
    unit = suffix(name)
    words = [word for word in name.removesuffix(unit).split("_") if word]
    if unit == "_count" and words and not words[0].endswith("s"):
        words.append("count")
    text = " ".join(word.upper() if word in _ACRONYMS else word for word in words)
    return visible(text or name) + ("/s" if unit == "_per_s" else "")


def headings(names: Sequence[str]) -> list[str]:
    """The heading of each column; where two would be the same, the unit tells them apart."""
    titles = [heading(name) for name in names]
    for units in ({"_pct": " %"}, {"_ns": " time", "_bytes": " size"}):
        titles = [
            title + units.get(suffix(name), "") if titles.count(title) > 1 else title
            for name, title in zip(names, titles, strict=True)
        ]
    return titles


def format_value(name: str, value: object) -> str:
    """A value as text in the unit that its name says; absent values as a dash."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return ABSENT
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return _number(name, value)
    if isinstance(value, list | tuple):
        return ", ".join(format_value("", each) for each in value)
    return visible(str(value))


def _number(name: str, value: int | float) -> str:
    unit = suffix(name)
    if unit in _SCALES:
        return _scaled(value, _SCALES[unit])
    if unit == "_pct":
        return f"{value:.1f} %"
    if unit == "_flops_per_byte":
        return f"{_digits(value)} FLOP/B" if value else "0"
    if unit == "_per_s":
        base = suffix(name.removesuffix("_per_s"))
        return _scaled(value, _SCALES.get(base, _PLAIN)).rstrip() + "/s"
    if isinstance(value, int):
        # Ids, ranks and step numbers are names, not amounts: only a count gets separators.
        return f"{value:,}" if unit == "_count" else str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e15 else _digits(value)


def _scaled(value: int | float, scale: tuple[tuple[int, str], ...]) -> str:
    """Three significant digits in the largest unit that keeps the number at 1 or more."""
    if value == 0:
        return "0"
    # 999.6 µs would show as 1,000 µs: it belongs to the next unit already.
    reached = [each for each in scale if abs(value) >= each[0] * 0.9995]
    factor, unit = reached[-1] if reached else scale[0]
    number = f"{value:,}" if factor == 1 and isinstance(value, int) else _digits(value / factor)
    return f"{number} {unit}".rstrip()


def _digits(value: float) -> str:
    size = abs(value)
    if size >= 99.95:
        return f"{value:,.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3g}"


def counted(count: int, noun: str) -> str:
    """A count and its noun: 1 step, 1,024 steps."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def visible(text: str) -> str:
    """The text with every character that could act on a terminal, or hide, spelled out."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(each) if unicodedata.category(each) in _UNSEEN else each for each in text)


def _spelled(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_PARAMETERS = re.compile(r"\((?:[^()]|\([^()]*\))*\)$")
_SCOPES = re.compile(r"\(anonymous namespace\)::|\b(?:at::native|at::cuda|at_cuda_detail|c10|std)::")


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)


def shorten(text: str, width: int) -> str:
    """The text in at most `width` columns: first without C++ noise, then cut in the middle."""
    if len(text) > 4096:
        text = f"{text[:2048]}…{text[-2048:]}"
    if cells(text) <= width and len(text) <= 2 * width:
        return text
    if text.startswith("void "):
        text = _PARAMETERS.sub("", text.removeprefix("void "))
    if cells(text) > width:
        text = _SCOPES.sub("", text)
    room = width
    short = text
    while cells(short) > width or len(short) > 2 * width:
        short = _cut(text, room)
        room -= 1
    return short


def _cut(text: str, width: int) -> str:
    if width < 3:
        return text[:width]
    # The beginning says what it is; the end tells variants apart.
    tail = (width - 1) // 3
    return f"{text[: width - 1 - tail]}…{text[-tail:] if tail else ''}"
