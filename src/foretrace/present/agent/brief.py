"""A Diagnosis as an Answer: what `diagnose --format agent` and the tool `diagnose` say."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import foretrace.diagnose as diagnose
from foretrace.analyze.trust import Trust
from foretrace.diagnose.diagnosis import Diagnosis
from foretrace.diagnose.finding import Finding, Place
from foretrace.diagnose.step_times import StepTimes
from foretrace.predict.prediction import Prediction, Span
from foretrace.present.agent.answer import Answer, Next
from foretrace.present.agent.patches import Source, confidence, patch, source_of
from foretrace.present.text.findings import headline
from foretrace.urls import is_url

BRIEF_TOKENS = 1_500
_PLACES, _REASONS = 2, 4


def finding_ids(findings: Iterable[Finding]) -> list[str]:
    """An id for each finding: the same for the same problem in another recording of the program, whatever moved its line."""
    ids: list[str] = []
    for finding in findings:
        place = finding.where[0] if finding.where else None
        about = "" if place is None else f"{Path(place.file or '').name}:{place.function}"
        digest = hashlib.blake2b(about.encode("utf-8", "surrogatepass"), digest_size=2).hexdigest()
        wanted = f"{finding.rule}.{digest}"
        twins = sum(each == wanted or each.startswith(f"{wanted}-") for each in ids)
        ids.append(f"{wanted}-{twins + 1}" if twins else wanted)
    return ids


def brief(
    diagnosis: Diagnosis,
    trust: Trust,
    times: StepTimes,
    facts: Mapping[str, Any],
    path: Path,
    *,
    top: int | None = None,
    roots: Sequence[Path] = (),
) -> Answer:
    """The diagnosis, its most valuable findings first; `facts` are those of its JSON document's overview."""
    kept = diagnosis.findings if top is None else diagnosis.findings[:top]
    rows = [
        told(finding, number, diagnosis, source_folders(path, *roots)) for number, finding in enumerate(kept)
    ]
    step = {
        name: facts.get(name)
        for name in ("step_known_by", "recorded_step_ms", "estimated_step_ms", "unprofiled_step_ms", "steps")
    }
    shape = {
        name: facts.get(name) for name in ("bound", "gpu_busy_pct", "gpu_idle_pct", "kernels_per_step_count")
    }
    return Answer(
        trust=trust.verdict,
        reasons=reasons(trust),
        says=headline(diagnosis, times),
        facts={
            "step": {name: value for name, value in step.items() if value is not None},
            "shape": {name: value for name, value in shape.items() if value is not None},
            "rules": {
                "checked_no_issue": len(diagnosis.checked),
                "seen_not_worth_it": [each.rule for each in diagnosis.seen],
                "not_checked": [each.rule for each in diagnosis.unchecked],
            },
        },
        of="findings",
        rows=rows,
        total=len(diagnosis.findings),
        more="raise top, or ask finding for one",
        next=_next(diagnosis, path),
    )


def source_folders(path: Path, *roots: Path) -> tuple[Path, ...]:
    """Where the program's source may lie: here, in the roots of a server, or with the recording."""
    beside = () if is_url(path) else (path if path.is_dir() else path.parent,)
    return (Path.cwd(), *(root for root in roots if not is_url(root)), *beside)


def reasons(trust: Trust) -> tuple[str, ...]:
    """The notes that limit what can be concluded, the most serious first."""
    limits = [f"{note.code}: {note.says}" for note in trust.notes if note.severity != "info"]
    left = len(limits) - _REASONS
    return (*limits[:_REASONS], *([f"and {left} more: show trust"] if left > 0 else []))


def told(finding: Finding, number: int, diagnosis: Diagnosis, folders: Sequence[Path]) -> dict[str, Any]:
    """One finding as an agent needs it; what is empty is left out."""
    same = [each for each in diagnosis.findings[:number] if each.rule == finding.rule]
    sources = [source_of(place, folders) for place in finding.where[:_PLACES]]
    made = patch(finding, sources)
    places = [_place(place, source) for place, source in zip(finding.where[:_PLACES], sources, strict=True)]
    freed = finding.freed_bytes
    row = {
        "id": finding_ids(diagnosis.findings[: number + 1])[-1],
        "rule": finding.rule,
        "index": len(same),
        **worth(finding.predicted),
        "freed_bytes": None if freed is None else _span(freed, 1),
        "says": finding.says,
        "at": places,
        "fix": finding.fix.says,
        "patch": made.text if made else "",
        "patch_is": made.kind if made else "",
        "patch_in": str(made.folder) if made and made.folder != Path.cwd() else "",
        "unless": finding.unless,
        "or": {other.label: worth(other.predicted).get("speedup") for other in finding.alternatives},
    }
    if not row["patch"]:
        row["code"] = finding.fix.code
    return {name: value for name, value in row.items() if value not in (None, "", [], {})}


def _place(place: Place, source: Source | None) -> dict[str, Any]:
    line: dict[str, Any] = {} if place.file is None else {"file": place.file, "line": place.line}
    if place.line is None and place.lines is not None:
        line["lines"] = list(place.lines)
    return {**line, "function": place.function, "confidence": confidence(place, source)}


def worth(predicted: Prediction | None) -> dict[str, Any]:
    """What a fix is worth: the point, the low and the high end."""
    if predicted is None:
        return {}
    told = {
        "verdict": predicted.verdict,
        "speedup": _span(predicted.speedup, 1),
        "after_ms": _span(predicted.after_ns, 1e6),
    }
    return {**told, "not_promised": predicted.not_promised} if predicted.not_promised else told


def _span(span: Span, unit: float) -> list[float]:
    return [span.point / unit, span.low / unit, span.high / unit]


def _next(diagnosis: Diagnosis, path: Path) -> Next:
    first = next(iter(diagnosis.findings), None)
    if first is None:
        return next_step("show", path, command=f"show overview {_quoted(path)}", analysis="overview")
    if len(diagnosis.findings) > 1 and diagnosis.combined is not None:
        gains = [
            each for each in diagnosis.findings if each.change is not None and each.rule in diagnosis.promised
        ]
        fixes = list(dict.fromkeys(f"fix {each.rule}" for each in gains))[:3]
        changes = " ".join(f"--change {shlex.quote(fix)}" for fix in fixes)
        return next_step("predict", path, command=f"predict {_quoted(path)} {changes}", changes=fixes)
    name, _, options = diagnose.find(first.rule).see.partition(" ")
    command = f"show {name} {_quoted(path)} {options}".rstrip()
    return next_step("finding", path, command=command, rule=first.rule, index=0)


def next_step(tool: str, path: Path | None = None, *, command: str, **arguments: Any) -> Next:
    """A call of a tool, and the command that says the same."""
    given = ({} if path is None else {"path": str(path)}) | arguments
    words = ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in given.items())
    return Next(f"{tool}({words})", f"foretrace {command}")


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
