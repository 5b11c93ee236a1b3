"""A Diagnosis as lines of styled text, as Markdown, and as the JSON contract of `foretrace diagnose`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import foretrace.diagnose as diagnose
from foretrace._version import __version__
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.analyze.result import Result
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Alternative, Finding, Place
from foretrace.diagnose.step_times import StepTimes
from foretrace.predict.prediction import Prediction, Span, to_dict
from foretrace.present.text import tables
from foretrace.present.text.code_lines import code_lines
from foretrace.present.text.markup import code, code_block, escaped, paragraph
from foretrace.present.text.summary_page import Line
from foretrace.present.text.verdicts import verdict_word
from foretrace.secret_formats import without_known_secrets
from foretrace.trace import Trace
from foretrace.units import format_value, shorten, visible

SCHEMA = 1
_SHOWN = 6
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_NO_PROMISE = "no fix promises a gain of 10 % or more."
_OVERVIEW = (
    "step_count", "step_gpu_ns", "step_host_ns", "gpu_busy_pct", "gpu_idle_pct", "sm_efficiency_pct", "occupancy_pct",
    "gpu_exposed_communication_pct", "gpu_exposed_copy_pct", "launches_per_step_count", "kernels_per_step_count",
)  # fmt: skip


def headline(diagnosis: Diagnosis, times: StepTimes) -> str:
    """One sentence: the step now, and what it would be with the fixes that promise a gain."""
    now = format_value("_ns", times.used_ns)
    if diagnosis.read_in_part:
        now = f"{visible(diagnosis.read_in_part)}. {now}"
    if diagnosis.contended:
        return f"{diagnosis.contended}. {now} {times.of}; no gain is promised: stop them and record again."
    if diagnosis.combined is None:
        why = diagnosis.not_promised
        return f"{now} {times.of}; " + (f"no gain is promised: {why}." if why else _NO_PROMISE)
    gains = [
        finding for finding in diagnosis.findings if finding.predicted and finding.predicted.verdict == "gain"
    ]
    after, speedup = diagnosis.combined.after_ns, diagnosis.combined.speedup
    point, low, high = (format_value("_ns", end) for end in (after.point, after.low, after.high))
    named = ", ".join(gain.rule for gain in gains)
    return (
        f"{now} → {point} ({low} to {high}) {times.of}, × {speedup.point:.2f} ({speedup.low:.2f} to {speedup.high:.2f}), "
        f"if fixed: {named}."
    )


def finding_lines(diagnosis: Diagnosis, times: StepTimes, width: int) -> Iterator[Line]:
    """Headline, how the step's time is known, findings in order of worth, and what was and was not checked."""
    for line in tables.wrap(headline(diagnosis, times), width):
        yield [(line, "strong")]
    yield from _wrapped(f"{format_value('_ns', times.used_ns)}: {times.says()}", width)
    for number, finding in enumerate(diagnosis.findings[:_SHOWN], 1):
        yield []
        yield from _one(number, finding, width)
    left = len(diagnosis.findings) - _SHOWN
    if left > 0:
        yield [(f"{left} more: foretrace diagnose PATH --format json", "quiet")]
    yield []
    if text := _together(diagnosis):
        yield from _wrapped(text, width)
    for seen in diagnosis.seen:
        yield from _wrapped(f"seen, not worth it here: {seen.rule}: {visible(seen.says)}", width)
    if diagnosis.checked:
        yield from _wrapped("checked, no issue: " + ", ".join(diagnosis.checked), width)
    for why, rules in _unchecked(diagnosis):
        yield from _wrapped(f"not checked: {rules}: {visible(why)}", width)


def _unchecked(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Why rules could not look, with all that could not for the same reason."""
    rules: dict[str, list[str]] = {}
    for each in diagnosis.unchecked:
        rules.setdefault(each.why, []).append(each.rule)
    return [(why, ", ".join(names)) for why, names in rules.items()]


def _one(number: int, finding: Finding, width: int) -> Iterator[Line]:
    style = {"high": "verdict no", "medium": "verdict with care"}.get(finding.severity, "quiet")
    yield [(f"{number} ", "quiet"), (finding.rule, style), (f"  {_worth(finding.predicted)}", "strong")]
    if finding.freed_bytes is not None:
        yield [("  ", ""), (f"frees {freed_text(finding.freed_bytes)} of the device's memory", "strong")]
    for line in tables.wrap(visible(finding.says), width - 2):
        yield [("  ", ""), (line, "")]
    if finding.predicted and finding.predicted.not_promised:
        for line in tables.wrap(f"Not promised: {visible(finding.predicted.not_promised)}.", width - 2):
            yield [("  ", ""), (line, "")]
    for place in finding.where[:2]:
        yield [("  at ", "quiet"), (shorten(visible(place.text), width - 5), "accent")]
    for line in tables.wrap(visible(finding.fix.says), width - 2):
        yield [("  ", ""), (line, "quiet")]
    for line in code_lines(finding.fix.code, width - 4):
        yield [("    ", ""), (visible(line), "code")]
    for other in finding.alternatives:
        yield from _other(other, width)
    if finding.rule:
        name, _, options = diagnose.find(finding.rule).see.partition(" ")
        yield [("  details: ", "quiet"), (f"foretrace show {name} PATH {options}".rstrip(), "command")]


def _other(other: Alternative, width: int) -> Iterator[Line]:
    """Another fix, with its worth: its code is in the page and in the JSON."""
    yield [("  or ", "quiet"), (other.label, "accent"), (f"  {_worth(other.predicted)}", "strong")]
    for line in tables.wrap(visible(other.fix.says), width - 4):
        yield [("    ", ""), (line, "quiet")]


def worths(finding: Finding) -> str:
    """What a fix is worth in time, in memory, or in both."""
    freed = finding.freed_bytes
    parts = [_worth(finding.predicted), "" if freed is None else f"frees {freed_text(freed)}"]
    return "; ".join(part for part in parts if part)


def freed_text(freed: Span) -> str:
    """9.20 (8.74 to 9.66) GiB."""
    point, _, unit = format_value("_bytes", round(freed.point)).rpartition(" ")
    if not point:  # 0, which has no unit
        return "nothing"
    size, places = 1024 ** _UNITS.index(unit), len(point.partition(".")[2])
    return f"{point} ({freed.low / size:,.{places}f} to {freed.high / size:,.{places}f}) {unit}"


def _together(diagnosis: Diagnosis) -> str:
    """What the fixes free that are about memory, made together; empty where there are fewer than two."""
    freed = diagnosis.freed_bytes
    rules = [finding.rule for finding in diagnosis.findings if finding.freed is not None]
    return f"Together {', '.join(rules)} would free {freed_text(freed)}." if freed and len(rules) > 1 else ""


def _worth(predicted: Prediction | None) -> str:
    if predicted is None:
        return ""
    low, high = predicted.speedup.low, predicted.speedup.high
    return f"{verdict_word(predicted)}, × {predicted.speedup.point:.2f} ({low:.2f} to {high:.2f})"


def _wrapped(text: str, width: int) -> Iterator[Line]:
    for line in tables.wrap(text, width):
        yield [(line, "quiet")]


def to_json(
    trace: Trace, trust: dict[str, Any], overview: Result, diagnosis: Diagnosis, facts: dict[str, Any]
) -> dict[str, Any]:
    """The documented contract: schema, trace, trust, overview, findings, combined."""
    combined, freed = diagnosis.combined, diagnosis.freed_bytes
    return {
        "schema": SCHEMA,
        "foretrace": __version__,
        "trace": {
            "path": without_known_secrets(str(trace.path)), "format": trace.format,
            "devices": [device.get("name") for device in trace.meta.get("devices", ())],
            "rank": trace.meta.get("rank"), "world_size": trace.meta.get("world_size"),
            "events": trace.meta.get("events"),
            **_beside(trace),
        },
        "trust": trust,
        "overview": {**facts, **{name: overview.values.get(name) for name in _OVERVIEW}},
        "findings": [finding_dict(finding) for finding in diagnosis.findings]
        + [
            {"rule": each.rule, "severity": "unchecked", "says": each.why, "why": "", "where": [], "evidence": {},
             "fix": None, "predicted": None}
            for each in diagnosis.unchecked
        ],
        "checked": list(diagnosis.checked),
        "seen": [{"rule": each.rule, "says": each.says} for each in diagnosis.seen],
        "combined": None if combined is None else {k: to_dict(combined)[k] for k in ("after_ms", "speedup")},
        **({} if freed is None else {"freed_bytes": asdict(freed)}),
        **({"read_in_part": diagnosis.read_in_part} if diagnosis.read_in_part else {}),
    }  # fmt: skip


def _beside(trace: Trace) -> dict[str, Any]:
    """Which file gave what, where several recordings are read as one, and how much of what ncu profiled was found."""
    told = [
        {name: each[name] for name in ("file", "format", "gives")}
        for each in trace.meta.get("recordings", ())
    ]
    if trace.profile is None:
        return {"recordings": told} if told else {}
    join = joined(trace)
    shares = {"matched_pct": join.matched_pct, "covered_pct": join.covered_pct}
    return {"recordings": told, "profiled": {"launches_count": trace.profile.height, **shares}}


def place_dict(place: Place) -> dict[str, Any]:
    """A place as the contract has it: its line where one is proven, else the lines that it may be."""
    return {
        "file": place.file,
        "line": place.line,
        "function": place.function,
        "lines": None if place.lines is None else list(place.lines),
        "line_by": place.line_by,
    }


def finding_dict(finding: Finding) -> dict[str, Any]:
    """One finding as the contract has it."""
    return {
        "rule": finding.rule, "severity": finding.severity, "says": finding.says, "why": finding.why,
        "where": [place_dict(place) for place in finding.where],
        "evidence": dict(finding.evidence),
        "fix": {"says": finding.fix.says, "code": finding.fix.code},
        "unless": finding.unless,
        "label": finding.label,
        "alternatives": [
            {"label": other.label, "fix": {"says": other.fix.says, "code": other.fix.code}, "unless": other.unless,
             "predicted": None if other.predicted is None else to_dict(other.predicted)}
            for other in finding.alternatives
        ],
        "limits": {
            name: {"value": limit, "of": limit.of, "source": limit.source}
            for name, limit in diagnose.find(finding.rule).limits.items()
        },
        "predicted": None if finding.predicted is None else to_dict(finding.predicted),
        **({} if finding.freed_bytes is None else {"freed_bytes": asdict(finding.freed_bytes)}),
    }  # fmt: skip


def to_markdown(diagnosis: Diagnosis, times: StepTimes, name: str) -> str:
    """The diagnosis to paste into an issue."""
    known = f"{format_value('_ns', times.used_ns)}: {times.says()}."
    lines = [f"**{escaped(name)}**: {escaped(headline(diagnosis, times))} {escaped(known)}", ""]
    for number, finding in enumerate(diagnosis.findings, 1):
        worth = worths(finding) or finding.severity
        lines += [f"{number}. **{finding.rule}** ({worth}): {escaped(finding.says)}"]
        if finding.predicted and finding.predicted.not_promised:
            lines += [f"   - Not promised: {escaped(finding.predicted.not_promised)}."]
        lines += [f"   - at {code(place.text)}" for place in finding.where[:3]]
        lines += [f"   - {paragraph(finding.fix.says)}", ""]
        lines += [f"   {line}" for line in code_block(finding.fix.code)]
        lines += [""]
        lines += [
            f"   - or {escaped(other.label)} ({_worth(other.predicted) or 'not predicted'}): {escaped(other.fix.says)}"
            for other in finding.alternatives
        ]
        lines += [""] * bool(finding.alternatives)
    lines += [text, ""] if (text := _together(diagnosis)) else []
    lines += [f"Seen, not worth it here: {each.rule}: {escaped(each.says)}" for each in diagnosis.seen]
    lines += [""] * bool(diagnosis.seen)
    if diagnosis.checked:
        lines += ["Checked, no issue: " + ", ".join(diagnosis.checked) + ".", ""]
    lines += [f"Not checked: {rules}: {escaped(why)}" for why, rules in _unchecked(diagnosis)]
    return "\n".join(lines).rstrip() + "\n"
