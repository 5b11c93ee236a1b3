"""A Trace becomes Results: one analysis per file, all of them listed in ANALYSES."""

from __future__ import annotations

from typing import Any

from foretrace.analyze.kernels import kernels
from foretrace.analyze.operators import operators
from foretrace.analyze.overview import overview
from foretrace.analyze.result import Analysis, Result
from foretrace.analyze.steps import steps
from foretrace.analyze.tracks import tracks
from foretrace.analyze.trust import trust
from foretrace.errors import UsageError
from foretrace.trace import Trace

ANALYSES: tuple[Analysis, ...] = (trust, overview, steps, operators, kernels, tracks)


def find(name: str) -> Analysis:
    """The analysis of that name."""
    for each in ANALYSES:
        if each.name == name:
            return each
    raise UsageError(f"no analysis named {name!r}; there are: {', '.join(each.name for each in ANALYSES)}")


def run(trace: Trace, name: str, **options: Any) -> Result:
    """One analysis by name, with its options."""
    chosen = find(name)
    unknown = sorted(set(options) - set(chosen.options))
    if unknown:
        takes = ", ".join(chosen.options) or "none"
        raise UsageError(f"{name} has no option {unknown[0]!r}; its options: {takes}")
    return chosen(trace, **options)
