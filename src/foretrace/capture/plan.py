"""The Plan: in which steps each pass warms up and records. Steps are counted, so every rank does the same.

One rank, the leader, works it out from its timing and leaves it as a file in the Run folder; the others follow.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from foretrace.capture.options import AGAIN, DEVICE, LIGHT, MEMORY, RICH, CaptureOptions
from foretrace.whole_files import replace_text

FILE = "plan.json"
_ACTIVE = {DEVICE: 50, LIGHT: 10, RICH: 3, MEMORY: 8}  # steps recorded, of short steps
# Steps that are longer are recorded fewer times. A device's clock moves up and down within about a second.
_WINDOW_S = {DEVICE: 1.0, LIGHT: 2.0, RICH: 1.0, MEMORY: 2.0}
_LEAST_ACTIVE = {MEMORY: 4}  # growth over three steps needs the ends of four
_LEAST_WARM = 2
_EARLY_WARM, _EARLY_ACTIVE = 1, {LIGHT: 5, RICH: 1}
AGAIN_S = 1.0  # steps are timed for so long after the passes
_LEAD_S, _LEAST_LEAD = 1.0, 5  # so far ahead of the leader the plan begins, for the others to see it in time


@dataclass(frozen=True)
class PlannedPass:
    """One pass: its warm-up begins after step `start`; the recording follows after `warm` steps."""

    kind: str
    number: int  # which repetition
    start: int
    warm: int
    active: int
    anew: bool = False  # takes the place of one that was recorded before the program had settled

    @property
    def extra(self) -> bool:
        """Whether a capture is complete without it."""
        return self.anew or self.kind in (AGAIN, DEVICE)

    @property
    def opens(self) -> int:
        """The boundary at which recording begins."""
        return self.start + self.warm

    @property
    def closes(self) -> int:
        """The boundary at which it ends."""
        return self.opens + self.active


@dataclass(frozen=True)
class Plan:
    """All passes, in order."""

    passes: tuple[PlannedPass, ...]

    @property
    def end(self) -> int:
        """The boundary at which nothing is left to do."""
        return self.passes[-1].closes if self.passes else 0

    def then(self, *more: PlannedPass) -> Plan:
        """This one, with further passes behind it."""
        return Plan((*self.passes, *more))


def make_plan(
    options: CaptureOptions, *, at: int, step_ns: float | None, ranks: int, device: bool = False
) -> Plan:
    """The plan of the leader, which has just passed boundary `at`; `device`: whether there is one to time."""
    step_s = (step_ns or 20e6) / 1e9
    lead = max(_LEAST_LEAD, math.ceil(_LEAD_S / step_s)) if ranks > 1 and options.wait is None else 0
    kinds = [each for _ in range(options.repeat) for each in options.passes]
    if options.memory and MEMORY not in kinds:
        kinds.append(MEMORY)
    given = options.wait is not None or options.warmup is not None or options.active is not None
    if device and LIGHT in options.passes and not given:
        kinds.insert(0, DEVICE)
    passes: list[PlannedPass] = []
    start = at + lead
    for kind in kinds:
        warm = options.warmup if options.warmup is not None else _warm_steps(options, kind, step_s)
        active = options.active or _active_steps(kind, step_s)
        number = sum(each.kind == kind for each in passes)
        passes.append(PlannedPass(kind, number, start, warm, active))
        start = passes[-1].closes + (options.wait if options.wait is not None else 1)
    if options.wait is None and step_ns is not None and {LIGHT, RICH} & set(kinds):
        passes.append(timed_again(options, at=passes[-1].closes, step_ns=step_ns))
    return Plan(tuple(passes))


def early_plan(options: CaptureOptions, *, at: int) -> Plan:
    """A few steps of each pass, at once: what is left of a program that ends before its steps are timed."""
    passes: list[PlannedPass] = []
    for kind in (kind for kind in (LIGHT, RICH) if kind in options.passes):
        start = passes[-1].closes + 1 if passes else at
        passes.append(PlannedPass(kind, 0, start, _EARLY_WARM, _EARLY_ACTIVE[kind]))
    return Plan(tuple(passes))


def timed_again(options: CaptureOptions, *, at: int, step_ns: float) -> PlannedPass:
    """Steps that are timed once more; long ones are not first let go by."""
    step_s = step_ns / 1e9
    active = max(1, math.ceil(min(AGAIN_S, options.time_s) / step_s))
    return PlannedPass(AGAIN, 0, at, _LEAST_WARM if step_s < AGAIN_S / 4 else 0, active)


def recorded_anew(
    options: CaptureOptions, done: Plan, *, at: int, step_ns: float, kinds: tuple[str, ...]
) -> list[PlannedPass]:
    """Of these kinds the last pass of a plan again, with the length of steps as it is now."""
    found: list[PlannedPass] = []
    for kind in kinds:
        before = next((each for each in reversed(done.passes) if each.kind == kind), None)
        if before is None:
            continue
        warm = options.warmup if options.warmup is not None else _warm_steps(options, kind, step_ns / 1e9)
        active = options.active or _active_steps(kind, step_ns / 1e9)
        start = found[-1].closes + 1 if found else at
        found.append(PlannedPass(kind, before.number, start, warm, active, anew=True))
    return found


def _warm_steps(options: CaptureOptions, kind: str, step_s: float) -> int:
    if kind == MEMORY:
        return 0
    return max(_LEAST_WARM if step_s < 1 else 1, math.ceil(options.warm_s / step_s))


def _active_steps(kind: str, step_s: float) -> int:
    in_window = math.ceil(_WINDOW_S.get(kind, _WINDOW_S[RICH]) / step_s)
    return max(_LEAST_ACTIVE.get(kind, 1), min(_ACTIVE.get(kind, _ACTIVE[RICH]), in_window))


def write_plan(folder: Path, plan: Plan) -> None:
    """Leaves the plan where the other ranks look; whole or not at all."""
    replace_text(folder / FILE, json.dumps([asdict(planned) for planned in plan.passes]))


def read_plan(folder: Path) -> Plan | None:
    """The leader's plan, or `None` as long as there is none."""
    try:
        text = (folder / FILE).read_text(encoding="utf-8")
    except OSError:
        return None
    return Plan(tuple(PlannedPass(**entry) for entry in json.loads(text)))
