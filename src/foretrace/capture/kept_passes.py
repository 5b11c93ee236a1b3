"""The KeptPasses: what was recorded, as rank.json lists it, and where its files lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foretrace.capture.options import LIGHT, MEMORY
from foretrace.capture.passes import Pass
from foretrace.capture.plan import PlannedPass
from foretrace.capture.run_folder import RunFolder
from foretrace.capture.timing import StepTimes


class KeptPasses:
    """Of one rank. A pass that is recorded once more is written beside the first, and may take its place."""

    def __init__(self, folder: RunFolder, rank: int) -> None:
        self.passes: list[dict[str, Any]] = []
        self._folder, self._rank = folder, rank

    @property
    def kinds(self) -> set[str]:
        """Those that were recorded."""
        return {kept["kind"] for kept in self.passes}

    @property
    def light_ns(self) -> float | None:
        """What a step took in the light pass."""
        return next((kept["step_ns"] for kept in reversed(self.passes) if kept["kind"] == LIGHT), None)

    def path(self, planned: PlannedPass, *, beside: bool = False) -> Path:
        """Where a pass is written; `beside` one that was written before."""
        suffix = "pickle" if planned.kind == MEMORY else "json"
        number = f"-{planned.number + 1}" if planned.number else ""
        name = f"{planned.kind}{number}.{suffix}"
        return self._folder.rank_folder(self._rank) / (f".{name}" if beside else name)

    def step_ns(self, planned: PlannedPass) -> float:
        """What a step took in a pass that was kept just now, or before it."""
        place = self._place(planned)
        return float(self.passes[-1 if place is None else place]["step_ns"])

    def keep(self, done: Pass, facts: dict[str, Any], *, nearest_to_ns: float | None) -> None:
        """A pass was written: it takes the place of an earlier one, or, if its steps have to be nearest, the nearer stays."""
        place, kept = self._place(done.planned), self.path(done.planned)
        if place is None:
            self.passes.append(facts)
        elif nearest_to_ns is not None and not _nearer(facts, self.passes[place], nearest_to_ns):
            done.path.unlink()
        else:
            done.path.replace(kept)
            self.passes[place] = {**facts, "file": kept.name}

    def holds(self, planned: PlannedPass) -> bool:
        """Whether there is such a pass already, which this one would take the place of."""
        return self._place(planned) is not None

    def forget(self) -> None:
        """Drops everything: it is of another kind of step."""
        for kept in self.passes:
            (self._folder.rank_folder(self._rank) / kept["file"]).unlink(missing_ok=True)
        self.passes.clear()

    def _place(self, planned: PlannedPass) -> int | None:
        files = [kept["file"] for kept in self.passes]
        name = self.path(planned).name
        return files.index(name) if name in files else None


def slowed_s(facts: dict[str, Any], times: StepTimes | None) -> float:
    """How much longer the steps of a pass took than unprofiled ones."""
    if times is None:
        return 0.0
    unprofiled_s = (facts["steps"] + facts["warmup_steps"]) * times.median_ns / 1e9
    return float(max(0.0, facts["warmup_s"] + facts["record_s"] - unprofiled_s))


def _nearer(one: dict[str, Any], two: dict[str, Any], measured_ns: float) -> bool:
    """Whether the steps of one pass are nearer to what was measured than those of the other."""
    return bool(abs(one["step_ns"] - measured_ns) < abs(two["step_ns"] - measured_ns))
