"""A Verification: what a finding predicted, beside what a later recording of the changed program measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foretrace.analyze.concepts.work import throughput
from foretrace.analyze.steps import step_windows
from foretrace.compare.sides import side_of
from foretrace.compare.steps import compare_sides
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import diagnose
from foretrace.diagnose.finding import Finding
from foretrace.errors import MissingDataError, unknown
from foretrace.measured import Interval
from foretrace.predict.prediction import STEP_KNOWN, Prediction, to_dict
from foretrace.trial.ledger import Record

SCHEMA = "foretrace.verify/1"


@dataclass(frozen=True)
class Verification:
    """One finding, before and after."""

    rule: str
    change: str  # the label of the fix, where the rule has several
    device: str
    predicted: Prediction
    before_ns: float
    after_ns: float
    speedup: Interval
    inside: bool | None  # None where the two cannot be compared
    differs: str = ""  # why they cannot be compared

    @property
    def verdict(self) -> str:
        """inside, outside or not comparable."""
        if self.inside is None:
            return "not comparable"
        return "inside" if self.inside else "outside"

    def record(self, at: str) -> Record:
        """For the ledger."""
        range_ = self.predicted.speedup
        return Record(
            self.rule, self.change, self.device, "verify", range_.low, range_.point, range_.high,
            self.speedup.low, self.speedup.point, self.speedup.high, bool(self.inside),
            self.predicted.verdict == "gain", at,
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """The documented contract."""
        return {
            "schema": SCHEMA,
            "rule": self.rule,
            "change": self.change,
            "device": self.device,
            "predicted": to_dict(self.predicted),
            "before_ms": self.before_ns / 1e6,
            "after_ms": self.after_ns / 1e6,
            "speedup": self.speedup.__dict__,
            "verdict": self.verdict,
            "differs": self.differs,
        }


def verify(before: Case, after: Case, name: str) -> Verification:
    """What came of the fix of a finding; RULE:LABEL names one of its alternatives."""
    rule, _, label = name.partition(":")
    finding = _finding(before, rule)
    fixes = {finding.label: finding.predicted}
    fixes |= {other.label: other.predicted for other in finding.alternatives}
    if label and label not in fixes:
        raise unknown(f"{rule} has no fix named {label!r} here", label, filter(None, fixes))
    predicted = fixes[label or finding.label]
    if predicted is None:
        raise MissingDataError(f"{before.whole.path.name}: nothing was predicted for {name}")
    differs = _differs(before, after)
    speedup = _speedup(before, after, per_item=predicted.items)
    range_ = predicted.speedup
    inside = speedup.low <= range_.high and speedup.high >= range_.low
    return Verification(
        rule, label or finding.label, device_of(before), predicted, before.step_ns, after.step_ns, speedup,
        None if differs else inside, differs,
    )  # fmt: skip


def _finding(case: Case, rule: str) -> Finding:
    if rule not in (known.name for known in RULES):
        raise unknown(f"no rule named {rule!r}", rule, (known.name for known in RULES))
    findings = diagnose(case, RULES).findings
    found = [finding for finding in findings if finding.rule == rule]
    if not found:
        there = ", ".join(dict.fromkeys(finding.rule for finding in findings)) or "nothing"
        raise MissingDataError(f"{case.whole.path.name}: {rule} finds nothing here; found were: {there}")
    return next((finding for finding in found if finding.predicted is not None), found[0])


def _speedup(before: Case, after: Case, *, per_item: float) -> Interval:
    """As `foretrace compare` has it where both were timed; else from the step times, as far as two runs of one program differ."""
    sides = [side_of(case, case.whole.path.name) for case in (before, after)]
    told = compare_sides(*sides)
    if told.known_by == "unprofiled":
        return told.speedup
    point = before.step_ns / after.step_ns * per_item
    return Interval(point, point * (1 - STEP_KNOWN), point * (1 + STEP_KNOWN))


def _differs(before: Case, after: Case) -> str:
    """Why two recordings are not of the same work; nothing where they seem to be."""
    if device_of(before) != device_of(after):
        return f"they are of different devices: {device_of(before)} and {device_of(after)}"
    taken = [throughput.taken_in(case.whole, step_windows(case.whole)) for case in (before, after)]
    for what in sorted(set(taken[0]) & set(taken[1])):
        if abs(taken[0][what] / taken[1][what] - 1) > STEP_KNOWN:
            return f"a step takes {taken[0][what]:g} {what} in one and {taken[1][what]:g} in the other"
    known = [case.measured_step_ns is not None for case in (before, after)]
    if known[0] != known[1]:
        return "the step of one was measured without a profiler, and that of the other was not"
    return ""


def device_of(case: Case) -> str:
    """The GPU of a recording, or CPU."""
    names = [device.get("name") for device in case.whole.meta.get("devices", ())]
    return str(names[0]) if names and names[0] else "CPU"
