"""The CoreUse: what a Run knows of the processor's cores while its steps were timed or recorded, and whether others took them.

Threads, workers and child processes of the program itself are no neighbours: where they alone wait for each other, the cores
are crowded, not contended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foretrace.sourced import JUDGEMENT, Share
from foretrace.units import counted

WAITED = Share(
    0.1,
    "the time that was timed, for which others kept a ready thread waiting: contended from here on",
    JUDGEMENT,
)
TAKEN = Share(0.25, "the cores that others use: contended from here on, if none is idle", JUDGEMENT)
FULL = Share(0.9, "the cores at work, from which none is idle", JUDGEMENT)
SLIGHTLY = Share(0.25, "a core that other programs may use, and it still counts as idle", JUDGEMENT)
_LEAST_S = 0.2  # Linux counts in hundredths of a second: shorter times tell nothing


@dataclass(frozen=True)
class CoreUse:
    """Figures of the timed steps, or of the recorded ones; None where the system did not count one."""

    wall_ns: float
    usable: float | None  # cores that the program may use
    own_ns: float | None = None  # processor time of the program, with its children and ranks
    others_ns: float | None = None  # of everything else on the same cores
    waited_ns: float | None = None  # the longest that a thread of the program was ready and had no core
    switches: float | None = None  # how often a core was taken from the program
    load_average: float | None = None  # when timing ended
    quota: float | None = None  # cores' worth of time that a container gives the program
    ranks: int = 1  # that share the cores
    steps: str = "timed"  # or recorded

    @property
    def others(self) -> float | None:
        """Cores that other programs used, on average."""
        return None if self.others_ns is None else self.others_ns / self.wall_ns

    @property
    def waited(self) -> float | None:
        """The share of the time for which a thread of the program waited for a core."""
        return None if self.waited_ns is None else min(self.waited_ns / self.wall_ns, 1.0)

    @property
    def contended(self) -> bool:
        """Whether other programs took the cores that this one needed.

        Either a thread waited for a core that others had, or every core was at work and others had a good part of them.
        """
        return self.wall_ns >= _LEAST_S * 1e9 and (self._kept_waiting or self._full)

    def left_of(self, cores: float) -> int:
        """Of so many cores of a rank, the whole ones that other programs leave it."""
        if self.others is None or not self.usable or self.wall_ns < _LEAST_S * 1e9:
            return int(cores)
        return int(min(cores, max(self.usable - self.others, 0.0) / self.ranks + SLIGHTLY))

    @property
    def _kept_waiting(self) -> bool:
        if self.waited_ns is None or self._used_up:
            return False
        by_others = self.others_ns if self.others_ns is not None else self._not_own_ns
        return by_others is not None and min(self.waited_ns, by_others) >= WAITED * self.wall_ns

    @property
    def _used_up(self) -> bool:
        """Whether the program's own quota makes its threads wait."""
        return bool(self.quota) and (self.own_ns or 0.0) >= FULL * (self.quota or 0.0) * self.wall_ns

    @property
    def _not_own_ns(self) -> float | None:
        """What others can have used at most, where nothing counted them."""
        if self.own_ns is None or not self.usable:
            return None
        return max(min(self.usable, self.quota or self.usable) * self.wall_ns - self.own_ns, 0.0)

    @property
    def _full(self) -> bool:
        if self.own_ns is None or self.others_ns is None or not self.usable:
            return False
        every_ns = self.usable * self.wall_ns
        return self.others_ns >= TAKEN * every_ns and self.own_ns + self.others_ns >= FULL * every_ns

    def says(self) -> str:
        """What happened on the cores, as a sentence."""
        parts = []
        if self.others is not None and self.usable:
            parts.append(
                f"Other programs used {self.others:.1f} of {counted(int(self.usable), 'core')} while steps were {self.steps}"
            )
        if self.waited is not None:
            parts.append(f"this one waited for a core {100 * self.waited:.0f} % of the time")
        return "; ".join(parts) or f"Other programs used the cores while steps were {self.steps}"


def read_core_use(
    facts: object, *, quota: object = None, ranks: int = 1, steps: str = "timed"
) -> CoreUse | None:
    """From the `cores` of a timing or a pass in rank.json; what is missing or makes no sense is not known."""
    if not isinstance(facts, Mapping):
        return None
    wall_ns = _number(facts.get("wall_ns"))
    if not wall_ns:
        return None
    load = facts.get("load_average")
    return CoreUse(
        wall_ns=wall_ns,
        usable=_number(facts.get("usable_cpu_count")),
        own_ns=_number(facts.get("own_cpu_ns")),
        others_ns=_number(facts.get("others_cpu_ns")),
        waited_ns=_number(facts.get("longest_wait_ns")),
        switches=_number(facts.get("involuntary_switches")),
        load_average=_number(load[-1]) if isinstance(load, list) and load else None,
        quota=_number(quota),
        ranks=ranks,
        steps=steps,
    )


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
