"""Whether the program had settled when it was recorded, as a note of the trust report.

A Run is timed without a profiler before its passes and again after them; the recorder compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from foretrace.analyze.concepts.trust.evidence import Evidence, Note, Severity
from foretrace.units import format_value

# For a verdict that the light pass has a part in: the note's code, its severity, why, and which time is used.
_BESIDE: dict[object, tuple[str, Severity, str, str]] = {
    "beaten": (
        "faster-profiled",
        "care",
        "the machine was busy, steps differ, or the program had not settled",
        "first",
    ),
    "calmer": ("busy-at-first", "care", "the machine was busier at first", "later"),
    "waited": ("waits-differ", "info", "they waited longer for data in one than in the other", "first"),
}
_STALE = "; the recorded steps are of the time before: record again with a longer --settle-s"


def settling(evidence: Evidence) -> Iterator[Note]:
    """What a Run's timings say of each other, where they differ."""
    found = evidence.trace.meta.get("settling")
    if not isinstance(found, Mapping):
        return
    first, again, light = (_time(found, name) for name in ("timed_first_ns", "timed_again_ns", "light_ns"))
    verdict = found.get("verdict")
    if verdict in _BESIDE and first and light:
        code, severity, why, used = _BESIDE[verdict]
        later = f", {format_value('_ns', again)} after the passes" if again else ""
        yield Note(
            code, severity,
            f"Steps took {format_value('_ns', first)} without the profiler at first{later}, "
            f"{format_value('_ns', light)} under it: {why}; the {used} time is used.",
            {"timed_first_ns": first, "timed_again_ns": again, "light_ns": light},
        )  # fmt: skip
    if verdict not in ("faster", "slower") or not first or not again:
        return
    both = (
        f"A step took {format_value('_ns', first)} when it was timed first and {format_value('_ns', again)} after the "
        "passes"
    )
    stale = found.get("light_settled") is False
    if verdict == "faster":
        says = (
            f"{both}: the program was still warming up, and the second time is used{_STALE if stale else ''}."
        )
        yield Note("warming-up", "care" if stale else "info", says, _values(first, again))
    else:
        says = (
            f"{both}: the profiler left the host slower, or the program slowed down; the first time is used."
        )
        yield Note("slower-later", "info", says, _values(first, again))


def _values(first: int, again: int) -> dict[str, int | float | str | None]:
    return {"timed_first_ns": first, "timed_again_ns": again, "share_pct": 100 * again / first}


def _time(found: Mapping[str, Any], name: str) -> int | None:
    value = found.get(name)
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if known and value > 0 else None  # type: ignore[operator, arg-type]
