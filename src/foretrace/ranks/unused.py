"""Recordings of a job that are not compared, or only in part, and why: none is dropped silently."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

UNREADABLE = "unreadable"  # not a recording, or damaged beyond repair
LOST = "lost"  # the worker or the node that read it died
DUPLICATE = "duplicate"  # of a rank and a time that another recording covers
OTHER_CYCLE = "other-cycle"  # of another profiling cycle, or of another run
CUT_OFF = "cut-off"  # truncated before it shows a step that the others recorded
REASONS = (UNREADABLE, LOST, CUT_OFF, DUPLICATE, OTHER_CYCLE)


@dataclass(frozen=True)
class Unused:
    """A recording that is not compared."""

    path: str
    why: str  # of REASONS
    says: str
    rank: int | None = None  # None where nothing tells it

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)
