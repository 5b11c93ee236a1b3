"""What a recording's steps are, and which process's they are, as notes of the trust report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretrace.analyze.concepts.trust.evidence import Evidence, Note, Severity, some
from foretrace.ingest.step_marks import repeated_ranges
from foretrace.units import format_value, shorten, visible

_LISTED = 3
_LONGEST_NAME = 60


@dataclass(frozen=True)
class _Source:
    """What steps were taken from: the note's weight, what is counted, and where it comes from."""

    severity: Severity
    noun: str
    where: str


# Ranges and batches may be a part of a step, or several steps.
_SOURCES: dict[object, _Source] = {
    "chosen": _Source("info", "range", "that --step {name} names"),
    "optimizer": _Source(
        "info",
        "optimizer step",
        "({name}), the first from the beginning of the recording: step() was not called",
    ),
    "server": _Source("info", "batch", "that the server ran ({name}): step() was not called"),
    "loader": _Source(
        "care",
        "batch",
        "of the DataLoader: step() was not called; where a step takes several batches, name what marks it (--step NAME)",
    ),
    "range": _Source(
        "care",
        "range",
        "named {name}: step() was not called; if that is not a step, name the range that is one (--step NAME)",
    ),
}


def processes(evidence: Evidence) -> Iterator[Note]:
    """Which of several processes was read."""
    found: list[dict[str, Any]] = list(evidence.trace.meta.get("processes") or ())
    if len(found) < 2:
        return
    read, *others = found
    listed = [
        f"process {_name(other['pid'])} ({format_value('_ns', other['device_ns'])} of GPU time)"
        for other in others[:_LISTED]
    ]
    more = f" and {len(others) - _LISTED:,} more" if len(others) > _LISTED else ""
    yield Note(
        "several-processes", "care",
        f"The file holds the events of {len(found):,} processes: process {_name(read['pid'])} is read "
        f"({format_value('_ns', read['device_ns'])} of GPU time), {', '.join(listed)}{more} left out; --pid reads another.",
        {"processes_count": len(found), "affected_count": sum(int(other["host_count"]) + int(other["device_count"]) for other in others),
         "affected_ns": sum(int(other["device_ns"]) for other in others)},
    )  # fmt: skip


def marks(evidence: Evidence) -> Iterator[Note]:
    """What the steps were taken from, where that is not step(), and what kinds there are."""
    facts = evidence.trace.meta.get("step_marks") or {}
    windows = evidence.windows
    if facts.get("source") in _SOURCES:
        source = _SOURCES[facts["source"]]
        where = source.where.format(name=_name(facts["name"]))
        says = f"Taken as steps: {some(int(facts['count']), source.noun)} {where}."
        yield Note(
            "step-marks",
            source.severity,
            says,
            {"source": facts["source"], "steps_count": int(facts["count"])},
        )
    if nested := int(facts.get("nested_count") or 0):
        yield Note(
            "nested-steps", "info",
            f"{some(nested, 'step mark')} around or inside others: each step counts once.",
            {"affected_count": nested},
        )  # fmt: skip
    kinds = Counter(window.kind or "other" for window in windows)
    if len(kinds) > 1:
        averaged = next((window.kind or "other" for window in windows if window.averaged), None)
        listed = " and ".join(f"{count:,} {kind}" for kind, count in kinds.items())
        yield Note(
            "step-kinds", "info",
            f"{listed} steps: averages and predictions are of the {averaged} steps, which take most of the time.",
            {f"{kind.replace(' ', '_')}_count": count for kind, count in kinds.items()},
        )  # fmt: skip


def unmarked(evidence: Evidence) -> str:
    """What else could be a step, as the end of a sentence."""
    found = repeated_ranges(evidence.trace)
    return f" Ranges that repeat: {', '.join(found)}; name one that is a step with --step." if found else ""


def _name(name: object) -> str:
    return shorten(visible(str(name)), _LONGEST_NAME)
