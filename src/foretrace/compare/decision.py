"""A Decision: whether a change may go in, by the limits that it must keep, or why that cannot be told.

`compare` says what differs, whatever was compared. A Decision is for a build server, which acts on it unseen: it never calls a
change a regression, nor in order, where the two sides were not made under the same conditions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretrace.compare import steps
from foretrace.compare.environment import Difference, differences
from foretrace.compare.gates import STEP, Checked, Gate, State, check
from foretrace.compare.steps import StepComparison
from foretrace.compare.verdicts import FEWEST
from foretrace.errors import MissingDataError
from foretrace.trace import Trace

SCHEMA = "foretrace.gate/1"
EXIT_CODES: dict[State, int] = {"passed": 0, "failed": 1, "inconclusive": MissingDataError.exit_code}


@dataclass(frozen=True)
class Decision:
    """The outcome, each limit, and the comparison behind them; without one, `why` says what was missing."""

    gates: tuple[Checked, ...]
    found: StepComparison | None = None
    differences: tuple[Difference, ...] = ()
    why: str = ""

    @property
    def outcome(self) -> State:
        """Failed where any limit is; else inconclusive where any cannot be told."""
        states = {checked.state for checked in self.gates}
        if "failed" in states:
            return "failed"
        return "inconclusive" if self.found is None or "inconclusive" in states else "passed"

    @property
    def comparable(self) -> bool:
        """Whether both sides were made under the same conditions, as far as is known."""
        return not any(each.decisive for each in self.differences)

    @property
    def exit_code(self) -> int:
        """0, 1 or 4."""
        return EXIT_CODES[self.outcome]

    @property
    def says(self) -> str:
        """The outcome in a few words."""
        if self.found is None:
            return self.why
        if not self.comparable and any(checked.state == "inconclusive" for checked in self.gates):
            others = _others(self.differences)
            return others if self.outcome == "inconclusive" else f"{self._limits()}; the rest {others}"
        return self._limits()

    def _limits(self) -> str:
        """How many limits decide the outcome."""
        total, which = len(self.gates), sum(checked.state == self.outcome for checked in self.gates)
        word = {"passed": "kept", "failed": "broken", "inconclusive": "undecided"}[self.outcome]
        if total == 1:
            return f"the limit is {word}"
        return f"all {total} limits {word}" if which == total else f"{which} of {total} limits {word}"


def _others(apart: Sequence[Difference]) -> str:
    return "not judged: " + ", ".join(f"other {each.what}" for each in apart if each.decisive)


def decide(
    gates: Sequence[Gate], found: StepComparison, before: Trace | None, after: Trace | None
) -> Decision:
    """The decision on two sides; a baseline has no trace."""
    apart = differences(found.before, found.after)
    checked = tuple(_checked(gate, found, before, after, apart) for gate in gates)
    return Decision(checked, found, apart)


def inconclusive(why: str) -> Decision:
    """There is nothing to compare, or it cannot be compared."""
    return Decision((), why=why)


def _checked(
    gate: Gate,
    found: StepComparison,
    before: Trace | None,
    after: Trace | None,
    apart: Sequence[Difference],
) -> Checked:
    """One limit; one on a change cannot be decided where something else changed as well."""
    try:
        checked = check(gate, found, before, after)
    except MissingDataError as error:
        return Checked(gate, "inconclusive", f"not recorded: {error}")
    if not (gate.relative or gate.change):
        return checked
    why = _others(apart) if any(each.decisive for each in apart) else ""
    if not why and gate.name == STEP:
        why = found.why_not or _too_few(found)
    if not why or why in checked.says:
        return checked
    return replace(checked, state="inconclusive", says=f"{checked.says}; {why}")


def _too_few(found: StepComparison) -> str:
    """Why a step limit says nothing, kept or not: one or two times could be anything."""
    recorded = found.known_by == "recorded"
    times = [side.times_ns if recorded else side.blocks_ns for side in (found.before, found.after)]
    return found.judged.why if min(map(len, times)) < FEWEST else ""


def to_dict(decision: Decision) -> dict[str, Any]:
    """The decision as `--format json` prints it; documented in docs/guide/ci.md."""
    return {
        "schema": SCHEMA,
        "outcome": decision.outcome,
        "exit_code": decision.exit_code,
        "says": decision.says,
        "gates": [
            {"limit": each.gate.text, "state": each.state, "says": each.says} for each in decision.gates
        ],
        "environments": [
            {"what": each.what, "before": each.before, "after": each.after, "decisive": each.decisive}
            for each in decision.differences
        ],
        "comparison": None if decision.found is None else steps.to_dict(decision.found),
    }
