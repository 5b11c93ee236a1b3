"""The Diagnosis: every rule over one Case, findings in the order of what each fix would be worth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from foretrace import intervals
from foretrace.diagnose.case import Case
from foretrace.diagnose.finding import Alternative, Finding
from foretrace.diagnose.freed import together
from foretrace.diagnose.promises import guarded
from foretrace.diagnose.rule import Rule
from foretrace.diagnose.seen import Seen
from foretrace.diagnose.step_times import worded
from foretrace.errors import FaultError, MissingDataError, NothingLeftError, contained, unknown
from foretrace.predict.changes import Change
from foretrace.predict.prediction import Prediction, Span, withheld
from foretrace.sourced import JUDGEMENT, Count, Factor, Share

_HIGH = Share(0.10, "the step, saved by a finding of high severity", JUDGEMENT)
_MEDIUM = Share(0.03, "the step, saved by a finding of medium severity", JUDGEMENT)
_BETTER = Factor(1.03, "the speed-up of a rule's plainest fix, from which another one leads", JUDGEMENT)
_SPECIFIC = Factor(
    1.35,
    "times the worth of a specific fix: as much more a general one must be worth to stand before it",
    JUDGEMENT,
)
_MOST_RANKS = Count(
    8, "other ranks that are asked whether they get the same verdict: each is diagnosed", JUDGEMENT
)
_OF_BOUND = Share(
    0.5, "what a finding could save at best, by which it is ranked where nothing is replayed", JUDGEMENT
)
_SAME = Share(0.95, "the host's time that two findings about the same thing would both take out", JUDGEMENT)


@dataclass(frozen=True)
class Unchecked:
    """A rule that could not look, and what to record so that it can."""

    rule: str
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """What was found, what was looked at in vain, and what could not be looked at."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]  # rules that looked and found nothing
    unchecked: tuple[Unchecked, ...]
    combined: Prediction | None  # all fixes with a gain, made together
    seen: tuple[Seen, ...] = ()  # what is there, but not worth a finding here
    contended: str = ""  # what other programs took of the cores, where that comes before all findings
    read_in_part: str = ""  # how many ranks of the job were read, where it is not all of them

    @property
    def freed_bytes(self) -> Span | None:
        """How much lower the peak of memory would be with all fixes made that free some; None where none does."""
        return together([finding.freed for finding in self.findings if finding.freed is not None])

    @property
    def promised(self) -> frozenset[str]:
        """Rules with a finding whose fix promises a gain."""
        return frozenset(each.rule for each in self.findings if _promises(each))

    @property
    def not_promised(self) -> str:
        """Why the recording cannot carry the promise that the first finding without one would have made."""
        return next((each.predicted.not_promised for each in self.findings if each.predicted), "")


def diagnose(case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
    """Runs the rules and predicts what each fix, and all together, would be worth.

    Lines, and what a light recording cannot show, come from the rich one of the same program where there is one. What is a
    gain on one rank of a job and none on another is promised on neither.
    """
    diagnosis = _worded(_agreed(_joined(_of_one(case, rules), case, rules), case, rules), case)
    contended = case.core_use.says() if case.contended and case.core_use else ""
    return replace(diagnosis, read_in_part=case.read_in_part(), contended=contended)


def diagnosed(case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
    """The same, made once for a case, which keeps it."""
    names = " ".join(rule.name for rule in rules)
    return case.keep(f"diagnosis by {names}", lambda: diagnose(case, rules))


def _worded(found: Diagnosis, case: Case) -> Diagnosis:
    """The diagnosis in words of the recording, where no steps are marked."""
    if case.whole.steps:
        return found
    of_recording = partial(worded, marked=False)
    findings = [
        replace(each, says=of_recording(each.says), why=of_recording(each.why)) for each in found.findings
    ]
    seen = [replace(each, says=of_recording(each.says)) for each in found.seen]
    return replace(found, findings=tuple(findings), seen=tuple(seen))


def _of_one(case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
    findings: list[Finding] = []
    checked, unchecked, noticed = [], [], []
    case.forget_claims()
    for rule in (rule for rule in rules if rule.fits(case)):
        case.lost_calls, case.seen = False, []
        try:
            with contained(rule.name):
                judged = [_judged(case, _located(case, finding)) for finding in rule(case)]
        except (MissingDataError, NothingLeftError) as reason:
            unchecked.append(Unchecked(rule.name, str(reason)))
            continue
        for finding in judged:
            case.claim(finding.claims)
        if not judged and case.seen:
            noticed += [replace(each, rule=rule.name) for each in case.seen]
        elif not judged and not case.lost_calls:
            checked.append(rule.name)
        findings += judged
    findings = _apart(sorted(findings, key=_order))
    combined = None
    try:
        with contained("the worth of all fixes together"):
            combined = _combined(case, findings)
    except FaultError as fault:
        unchecked.append(Unchecked(findings[0].rule, str(fault)))
    return Diagnosis(tuple(findings), tuple(checked), tuple(unchecked), combined, tuple(noticed))


def _joined(found: Diagnosis, case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
    unchecked = {each.rule for each in found.unchecked}
    nowhere = {each.rule for each in found.findings if not any(place.file for place in each.where)}
    asked = tuple(each for each in rules if each.name in unchecked | nowhere)
    rich = case.rich if asked else None
    if rich is None:
        return found
    other = _of_one(rich, asked)
    findings = [_placed(each, found, other) if each.rule in nowhere else each for each in found.findings]
    findings += [_from(rich, each) for each in other.findings if each.rule in unchecked]
    looked = {each.rule for each in other.findings} | {each.rule for each in other.seen} | set(other.checked)
    return replace(
        found,
        findings=tuple(sorted(findings, key=_order)),
        checked=found.checked + tuple(each for each in other.checked if each in unchecked),
        unchecked=tuple(each for each in found.unchecked if each.rule not in looked),
        seen=found.seen + tuple(each for each in other.seen if each.rule in unchecked),
    )


def _agreed(found: Diagnosis, case: Case, rules: tuple[Rule, ...]) -> Diagnosis:
    """The diagnosis with the verdict that all ranks of the job get: ranks march in step, so one cannot gain alone."""
    if not found.promised:
        return found
    refused: dict[str, str] = {}
    try:
        for other in case.other_ranks(timed=True)[:_MOST_RANKS]:
            theirs = _of_one(other, rules)
            seen = {each.rule for each in theirs.findings if each.predicted is not None}
            rank = other.whole.meta.get("rank")
            for rule in (found.promised & seen) - theirs.promised:
                refused.setdefault(rule, f"the same change promises no gain on rank {rank} of this job")
    except MissingDataError:
        return found  # `straggler` says which rank cannot be read
    if not refused:
        return found
    findings = [
        _without_promise(each, refused[each.rule]) if each.rule in refused else each
        for each in found.findings
    ]
    findings.sort(key=_order)
    return replace(found, findings=tuple(findings), combined=_combined(case, findings))


def _without_promise(finding: Finding, why: str) -> Finding:
    """The finding with no fix of it promised."""
    kept = replace(
        finding,
        predicted=finding.predicted and _not_a_gain(finding.predicted, why),
        alternatives=tuple(
            replace(other, predicted=other.predicted and _not_a_gain(other.predicted, why))
            for other in finding.alternatives
        ),
    )
    return replace(kept, severity=_severity(kept.predicted)) if kept.predicted else kept


def _not_a_gain(predicted: Prediction, why: str) -> Prediction:
    return withheld(predicted, why) if predicted.verdict == "gain" else predicted


def _promises(finding: Finding) -> bool:
    return finding.predicted is not None and finding.predicted.verdict == "gain"


def _placed(finding: Finding, found: Diagnosis, other: Diagnosis) -> Finding:
    """The finding with the lines of its twin, where there is no doubt which one that is."""
    same = [each for each in found.findings if each.rule == finding.rule]
    twins = [each for each in other.findings if each.rule == finding.rule]
    if len(same) != 1 or len(twins) != 1 or not twins[0].where:
        return finding
    return replace(finding, where=twins[0].where)


def _from(rich: Case, finding: Finding) -> Finding:
    """A finding of the rich recording: its spans, and what it would edit, are not in the light one."""
    evidence = {name: value for name, value in finding.evidence.items() if name != "spans"}
    return replace(
        finding,
        change=None,
        alternatives=tuple(replace(other, change=None) for other in finding.alternatives),
        evidence={**evidence, "recording": rich.whole.path.name},
    )


def _located(case: Case, finding: Finding) -> Finding:
    """The finding with its spans as ids of the whole recording."""
    if case.trace is case.whole or "spans" not in finding.evidence:
        return finding
    spans = case.whole_ids(np.array(finding.evidence["spans"], np.int64)).tolist()
    return replace(finding, evidence={**finding.evidence, "spans": spans})


def _judged(case: Case, finding: Finding) -> Finding:
    if finding.change is None:
        given = finding.predicted  # a rule may have made it, and no rule is past the guard
        likely = _OF_BOUND * finding.at_best
        severity = "medium" if likely >= _MEDIUM else finding.severity
        return replace(finding, severity=severity, predicted=given and guarded(case, given))
    finding = replace(
        finding,
        predicted=case.predict((finding.change,)),
        alternatives=tuple(
            replace(other, predicted=case.predict((other.change,))) if other.change else other
            for other in finding.alternatives
        ),
    )
    finding = _best_first(finding)
    assert finding.predicted is not None  # the plainest fix has one, and none without leads
    if finding.freed is not None:
        return finding  # its rule says how short memory is
    return replace(finding, severity=_severity(finding.predicted))


def _best_first(finding: Finding) -> Finding:
    """The finding with the alternative that promises most as its fix, and the others behind it in order of worth."""
    label, most = finding.label, finding.predicted
    for other in sorted(finding.alternatives, key=_worth):
        if other.may_lead and _leads(other.predicted, most):
            label, most = other.label, other.predicted
    finding = finding.led_by(label)
    return replace(finding, alternatives=tuple(sorted(finding.alternatives, key=_worth)))


def _leads(one: Prediction | None, other: Prediction | None) -> bool:
    """Whether one fix promises enough more than another, plainer or better, to stand before it."""
    if one is None or other is None or one.verdict == "no gain":
        return False
    if (one.verdict == "gain") != (other.verdict == "gain"):
        return one.verdict == "gain"
    return one.speedup.point > _BETTER * other.speedup.point


def _severity(predicted: Prediction) -> str:
    saved = 1 - 1 / predicted.speedup.point if predicted.speedup.point > 0 else 0.0
    if predicted.verdict == "gain" and saved >= _HIGH:
        return "high"
    return "medium" if predicted.verdict != "no gain" and saved >= _MEDIUM else "low"


def _order(finding: Finding) -> tuple[int, float]:
    """Gains first, by what they save, then what is uncertain, then the rest; findings without a prediction last.

    What cannot be replayed but is known to take a share of the step stands among what is uncertain, by half of that.
    """
    if finding.predicted is None:
        return (1, -1 / (1 - _OF_BOUND * finding.at_best)) if finding.at_best else (3, 0.0)
    speedup = finding.predicted.speedup
    if finding.predicted.verdict == "no gain":
        return 2, -speedup.high  # what it could be worth at best: its point is noise around 1
    worth = speedup.point / _SPECIFIC if finding.general else speedup.point
    return (0 if finding.predicted.verdict == "gain" else 1), -worth


def _worth(alternative: Alternative) -> float:
    """Alternatives by what they promise, most first; those without a prediction last."""
    return -alternative.predicted.speedup.point if alternative.predicted else 0.0


def _apart(findings: list[Finding]) -> list[Finding]:
    """The findings; one that is about the same stretches of the host as one before it says so."""
    told: list[Finding] = []
    for finding in findings:
        twin = next((each for each in told if _same_time(each, finding)), None)
        says = finding.says if twin is None else f"{finding.says} That is the same time as in {twin.rule}."
        told.append(replace(finding, says=says))
    return told


def _same_time(one: Finding, other: Finding) -> bool:
    if one.change is None or other.change is None:
        return False
    a, b = one.change.edit.removed_host, other.change.edit.removed_host
    shared = int(intervals.covered_ns(a, b.start, b.end).sum()) if len(a.start) and len(b.start) else 0
    return shared > _SAME * max(a.total_ns, b.total_ns)


def _combined(case: Case, findings: list[Finding]) -> Prediction | None:
    changes = tuple(
        finding.change for finding in findings if finding.change is not None and _promises(finding)
    )
    try:
        return case.predict(changes) if changes else None
    except NothingLeftError:  # of a recording that holds little else
        return None


def fix_of(case: Case, name: str, rules: tuple[Rule, ...]) -> Change:
    """The change of the first finding of a rule, as the diagnosis has it; RULE:LABEL is one of its alternatives."""
    name, _, label = name.partition(":")
    if name not in (rule.name for rule in rules):
        raise unknown(f"no rule named {name!r}", name, (rule.name for rule in rules))
    findings = [finding for finding in diagnosed(case, rules).findings if finding.rule == name]
    finding = next((finding for finding in findings if finding.change is not None), None)
    if finding is None or finding.change is None:
        raise MissingDataError(f"{case.whole.path.name}: {name} finds nothing here whose fix can be replayed")
    changes = {finding.label: finding.change}
    changes |= {other.label: other.change for other in finding.alternatives if other.change is not None}
    if label and label not in changes:
        raise unknown(f"{name} has no fix named {label!r} here", label, filter(None, changes))
    return changes[label or finding.label]
