"""What a fix frees of a device's memory: the peak of the recorded curve, and that of the curve with the change made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from foretrace.analyze.concepts.memory.memory_replay import Memory, MemoryChange
from foretrace.predict.prediction import Span
from foretrace.sourced import JUDGEMENT, Share

OFF = Share(0.05, "the bytes that a change frees, by which they may be off at least", JUDGEMENT)


@dataclass(frozen=True)
class Freed:
    """A change of the curve, with the same change where what is not known about it lies at its ends."""

    memory: Memory
    change: MemoryChange
    others: tuple[MemoryChange, ...] = ()

    @cached_property
    def size_bytes(self) -> Span:
        """How much lower the peak would be, with its range."""
        return together((self,)) or Span(0.0, 0.0, 0.0)

    @property
    def share(self) -> float:
        """The same, of the recorded peak."""
        return self.size_bytes.point / max(self.memory.peak_bytes, 1)

    @property
    def after_bytes(self) -> int:
        """The peak with the change."""
        return self.memory.peak_bytes - round(self.size_bytes.point)


def together(every: Sequence[Freed]) -> Span | None:
    """What changes of one device's memory free if all are made: the peak of the curve with all of them, not a sum."""
    if not every:
        return None
    memory = every[0].memory
    every = [freed for freed in every if freed.memory is memory]
    made = [freed.change for freed in every]
    point = memory.freed_by(made)
    ends = [point * (1 - OFF), point * (1 + OFF)]
    for place, freed in enumerate(every):
        ends += [memory.freed_by([*made[:place], other, *made[place + 1 :]]) for other in freed.others]
    most = max(memory.peak_bytes, memory.curve.reserved_peak_bytes or 0)
    low, high = max(min(ends), 0.0), min(max(ends), float(most))
    return Span(float(point), float(min(low, point)), float(max(high, point)))
