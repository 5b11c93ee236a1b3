"""A Relief: what part of each rank's work and of each transfer would be left without one cause. Reliefs multiply."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from foretrace.ranks.gathered import Array, Gathered
from foretrace.ranks.replay import Change

PARTS = ("computation", "expert", "input", "other")


@dataclass(frozen=True)
class Relief:
    """Shares that are left: of the parts of a rank's work in each step (rank, step), and of transfers."""

    parts: dict[str, Array]
    transfer: Array | None = None

    def together(self, other: Relief) -> Relief:
        """Both causes gone."""
        parts = dict(self.parts)
        for name, share in other.parts.items():
            parts[name] = parts[name] * share if name in parts else share
        transfers = [each for each in (self.transfer, other.transfer) if each is not None]
        return Relief(parts, np.minimum.reduce(transfers) if transfers else None)


def combined(reliefs: Iterable[Relief]) -> Relief:
    """All causes gone."""
    result = Relief({})
    for each in reliefs:
        result = result.together(each)
    return result


def as_change(relief: Relief, job: Gathered, transfer_ns: Array, expert_rows: Array) -> Change:
    """What a replay takes off each row and communication."""
    lead, work = np.zeros(len(job.member)), np.zeros(len(job.member))
    step = np.minimum(np.searchsorted(job.steps, job.step), len(job.steps) - 1)
    of_work = (job.work_ns, job.work_computation_ns, job.work_input_ns)
    for name, share in relief.parts.items():
        gone = 1.0 - share[job.member, step]
        if name == "expert":
            gone = np.where(expert_rows, gone, 0.0)
        lead += gone * _part(name, job.lead_ns, job.computation_ns, job.input_ns)
        work += np.where(job.still, gone * _part(name, *of_work), 0.0)
    less = None if relief.transfer is None else transfer_ns * (1.0 - relief.transfer)
    return Change(lead, work, less)


def _part(name: str, whole: Array, computation: Array, loading: Array) -> Array:
    if name in ("computation", "expert"):
        return computation
    return loading if name == "input" else np.maximum(whole - computation - loading, 0.0)
