"""`overview`: the whole diagnosis on one page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import polars as pl

import foretrace.diagnose as diagnose
from foretrace.analyze.concepts.device.profiled_kernels import joined
from foretrace.analyze.concepts.memory import memory_curve
from foretrace.diagnose import RULES
from foretrace.diagnose.bound import bound
from foretrace.diagnose.step_times import worded
from foretrace.errors import FaultError, MissingDataError, NothingLeftError, contained
from foretrace.ingest import totals
from foretrace.predict.changes import Change
from foretrace.predict.prediction import Prediction, to_dict
from foretrace.present.facts import facts
from foretrace.present.text import findings
from foretrace.present.web import rule_texts
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.finding import finding
from foretrace.present.web.resources.gpu_tiles import gpu_tiles
from foretrace.present.web.resources.step_time import one_step, step_time
from foretrace.present.web.resources.trust import trust
from foretrace.present.web.snapshot_view import has_snapshot
from foretrace.trace import Trace
from foretrace.units import counted, format_value

_ROWS = 8  # of the waterfall
_COMMANDS = 3
_FOLLOWS = {
    "gpu": "the CPU keeps up with the GPU", "host": "the CPU sets the pace", "input": "it waits for data",
    "copy": "copies set the pace", "communication": "communication sets the pace",
    "mixed": "CPU and GPU are about equally slow",
}  # fmt: skip
_NOTE = "Solid: low end of the prediction. Faded: up to its high end. Each row counts only what is left after the rows above."


def overview(view: RecordingView, query: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Trust, headline, waterfall, findings, step time, what was checked, and one step.

    `findings=no` does not wait for the diagnosis: `pending` then says what is still to come.
    """
    if (query or {}).get("findings") == "no":
        return _before_diagnosis(view)
    diagnosis = view.diagnosis
    return {
        "name": view.name,
        "facts": facts(view.trace),
        "counts": {"findings": str(len(diagnosis.findings)), **counts(view)},
        "missing": missing(view),
        "left_out": list(view.left_out),
        "pending": None,
        **{name: _whole(name, partial(make, view)) for name, make in _PARTS.items()},
    }


def _whole(name: str, make: Callable[[], Any]) -> Any:
    """A part of the page; where it could not be made, an empty one that says so."""
    try:
        with contained(name):
            return make()
    except FaultError as fault:
        return _empty(str(fault))[name]


def _empty(says: str) -> dict[str, Any]:
    """Every part in its own shape, with these words for content."""
    nothing = {"before_ms": None, "after_ms": None, "speedup": None}
    return {
        "trust": {"verdict": "no", "says": "Not known", "detail": says, "facts": [], "notes": []},
        "headline": {"caption": "", **nothing, "title": "This could not be worked out", "says": says},
        "waterfall": {"now_ms": None, "rows": [], "together_ms": None, "note": says},
        "gpu": [], "findings": [], "step_time": {"caption": says, "steps": [], "steps_count": 0, "odd": [], "parts": []}, "checked": [],
        "one_step": None, "markdown": says, "next": [],
    }  # fmt: skip


def _all_findings(view: RecordingView) -> list[dict[str, Any]]:
    return [finding(view, number) for number in range(1, len(view.diagnosis.findings) + 1)]


def _before_diagnosis(view: RecordingView) -> dict[str, Any]:
    """What needs no diagnosis, in the shape of the whole."""
    now = view.step_ns
    before = None if now is None else now / 1e6
    looked_at = view.case.looked_at or counted(len(view.trace.steps), "step")
    fitting = sum(rule.fits(view.case) for rule in RULES)
    pending = f"{counted(fitting, 'rule')} are checking {looked_at}"
    return {
        "name": view.name,
        "facts": facts(view.trace),
        "counts": counts(view),
        "missing": missing(view),
        "left_out": list(view.left_out),
        "pending": pending,
        "trust": trust(view),
        "headline": {
            "caption": _caption(view), "before_ms": before, "after_ms": None, "speedup": None,
            "title": "Checking for problems", "says": "",
        },
        "waterfall": {"now_ms": before, "rows": [], "together_ms": None, "note": ""},
        "findings": [],
        "gpu": gpu_tiles(view),
        "step_time": step_time(view),
        "checked": [],
        "one_step": one_step(view),
        "markdown": "",
        "next": [],
    }  # fmt: skip


def counts(view: RecordingView) -> dict[str, str]:
    """The number beside each view's name."""
    trace = view.trace
    spans = trace.spans
    shown: dict[str, str] = {}
    operators = spans.filter(pl.col("kind") == "op")["name"].n_unique()
    if operators:
        shown["operators"] = f"{operators:,}"
    kernels = spans.filter(pl.col("kind") == "kernel")["name"].n_unique()
    if kernels:
        shown["kernels"] = f"{kernels:,}"
    if trace.modules.height:
        shown["modules"] = f"{trace.modules.height:,}"
    if trace.allocations.height:
        shown["memory"] = format_value("_bytes", memory_curve.curves(trace)[0].peak_bytes)
    if trace.profile is not None:
        shown["profiled"] = f"{joined(trace).profiled.height:,}"
    size = trace.meta.get("world_size")
    if size:
        shown["ranks"] = str(size)
    return shown


def missing(view: RecordingView) -> dict[str, str]:
    """For each view without data, why, and what to record."""
    found = {}
    for page in _doubtful(view.trace):
        try:
            result = view.result(_ASKED.get(page, page))
        except MissingDataError as reason:
            if page == "memory" and has_snapshot(view):
                continue  # the page shows that, and says why there is no more
            found[page] = without_file(view, str(reason))
            continue
        if page == "ranks" and not result.table.height:
            found[page] = "One rank, and no collective recorded: open the recording of a distributed run."
    if view.not_replayed is not None:
        found["findings"] = without_file(view, view.not_replayed)
    if totals.stats(view.trace):
        return dict.fromkeys(("timeline", *found), _sums(view.trace))
    return found


def _sums(trace: Trace) -> str:
    where = trace.meta.get("timeline_by") or "`foretrace formats` says what to record instead"
    return f"Kernels and Sections show what these sums by name tell. They hold no timeline; {where}."


_ASKED = {"ranks": "communication", "waiting": "idle"}  # the analysis that a page is made of, by another name


def _doubtful(trace: Trace) -> list[str]:
    """Views that may have no data: only these are worth an analysis, which then says why."""
    kinds = trace.spans["kind"]
    shapes = trace.ops["shapes"]
    ranges = trace.spans["name"].filter(kinds == "annotation").unique().cast(pl.String)
    doubts = {
        "waiting": not trace.has_device or bool(trace.device_spans["launch_id"].is_null().all()),
        "operators": not (kinds == "op").any(),
        "kernels": not (kinds == "kernel").any(),
        "modules": trace.modules.is_empty(),
        "sections": bool(ranges.str.starts_with("ProfilerStep#").all()),
        "memory": trace.allocations.is_empty(),
        "roofline": trace.profile is None
        and (not (kinds == "kernel").any() or shapes.null_count() == len(shapes)),
        "profiled": trace.profile is None,
        "ranks": trace.collectives.is_empty(),
    }
    return [page for page, doubtful in doubts.items() if doubtful]


def without_file(view: RecordingView, reason: str) -> str:
    """The reason as a sentence of its own: the page already names the recording."""
    text = reason.removeprefix(f"{view.trace.path.name}: ")
    # An option of the profiler keeps its spelling.
    return text if "_" in text.partition(" ")[0] else text[:1].upper() + text[1:]


def headline(view: RecordingView) -> dict[str, Any]:
    """The step now and after the fixes that promise a gain."""
    before = view.step_ns
    gains = [number for number in range(1, len(view.diagnosis.findings) + 1) if _gains(view, number)]
    combined = view.diagnosis.combined
    shown: dict[str, Any] = {
        "before_ms": None if before is None else before / 1e6, "after_ms": None, "speedup": None,
    }  # fmt: skip
    if combined is None or not gains:
        return {**shown, "caption": _caption(view), **_without_gain(view)}
    plain = to_dict(combined)
    first = view.diagnosis.findings[gains[0] - 1]
    listed = _listed(gains)
    return {
        **shown,
        "caption": f"{_caption(view)}; predicted after finding{'s' if len(gains) > 1 else ''} {listed}",
        "after_ms": plain["after_ms"],
        "speedup": plain["speedup"],
        "title": worded(diagnose.find(first.rule).heading(first.evidence), marked=view.step_times.marked),
        "says": f"{_busy(view)} {first.says}".strip(),
    }


def _gains(view: RecordingView, number: int) -> bool:
    """Whether the fix of a finding promises a gain."""
    predicted = view.diagnosis.findings[number - 1].predicted
    return predicted is not None and predicted.verdict == "gain"


def _caption(view: RecordingView) -> str:
    if totals.stats(view.trace):
        return "Tables of nsys stats"
    if view.step_ns is None:
        return "No steps recorded"
    if not view.trace.steps:
        return "Time of the recording, in which no steps are marked"
    return f"Step time, {view.step_times.known()}"


def _listed(numbers: list[int]) -> str:
    words = [str(number) for number in numbers]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _without_gain(view: RecordingView) -> dict[str, str]:
    if totals.stats(view.trace):
        return {"title": "Sums by name, without a timeline", "says": _sums(view.trace)}
    if view.not_replayed is not None:
        return {
            "title": "Nothing could be predicted from this recording",
            "says": without_file(view, view.not_replayed) + ".",
        }
    why = view.diagnosis.not_promised
    if view.diagnosis.contended:
        return {
            "title": "Other programs use the cores: record again without them",
            "says": f"{view.diagnosis.contended}.",
        }
    if why:
        return {"title": "No gain is promised from this recording", "says": f"{why[:1].upper()}{why[1:]}."}
    return {"title": "No fix promises a gain of 10 % or more", "says": _busy(view)}


def _busy(view: RecordingView) -> str:
    result = view.maybe("overview")
    values = result.values if result is not None else {}
    running, idle = values.get("gpu_busy_pct"), values.get("gpu_idle_pct")
    if not isinstance(running, float) or not isinstance(idle, float):
        return ""
    return f"Kernels run {running:.1f} % of the time, and the GPU is idle {idle:.1f} %; {_FOLLOWS[bound(view.case)]}."


def waterfall(view: RecordingView) -> dict[str, Any]:
    """Each fix on top of those above: the step is replayed with all of them together, never summed.

    The fixes that promise a gain, as the headline's number has them; where none does, all that can be replayed.
    """
    now = view.step_ns
    rows: list[dict[str, Any]] = []
    made: tuple[Change, ...] = ()
    together: Prediction | None = None
    gains = {number: change for number, change in view.changes.items() if _gains(view, number)}
    shown = list((gains or view.changes).items())[:_ROWS]
    for number, change in shown:
        made = (*made, change)
        alone = view.diagnosis.findings[number - 1].predicted if len(made) == 1 else None
        everything = view.diagnosis.combined if len(made) == len(gains) else None
        before = view.case.step_ns if together is None else together.after_ns.point
        try:
            together = everything or alone or view.case.predict(made)
        except NothingLeftError:  # of a recording that holds little else
            break
        rows.append(
            {"finding": number, "label": diagnose.find(view.diagnosis.findings[number - 1].rule).title,
             "before_ms": before / 1e6, "after_ms": to_dict(together)["after_ms"]}
        )  # fmt: skip
    return {
        "now_ms": None if now is None else now / 1e6,
        "rows": rows,
        "together_ms": None if together is None else to_dict(together)["after_ms"],
        "note": _NOTE if rows else "",
    }


def checked(view: RecordingView) -> list[dict[str, Any]]:
    """What is there but not worth it here, what was checked without finding an issue, then what could not be checked."""
    looked: list[dict[str, Any]] = [
        {"rule": each.rule, "label": diagnose.find(each.rule).topic, "says": each.says, "looked": True, "seen": True}
        for each in view.diagnosis.seen
    ]  # fmt: skip
    looked += [
        {"rule": rule, "label": diagnose.find(rule).topic, "says": rule_texts.checked(view, rule),
         "looked": True, "seen": False}
        for rule in view.diagnosis.checked
    ]  # fmt: skip
    return looked + [
        {"rule": each.rule, "label": diagnose.find(each.rule).topic,
         "says": f"not checked: {each.why.removeprefix(f'{view.trace.path.name}: ')}", "looked": False, "seen": False}
        for each in view.diagnosis.unchecked
    ]  # fmt: skip


def _markdown(view: RecordingView) -> str:
    if view.step_ns is None or view.not_replayed is not None:
        overview_result = view.maybe("overview")
        says = overview_result.says if overview_result is not None else ""
        return f"**{view.name}**: {says}\n\n{without_file(view, view.not_replayed or '')}\n"
    return findings.to_markdown(view.diagnosis, view.step_times, view.name)


def _next(view: RecordingView) -> list[str]:
    """Commands that show more of the first findings."""
    file = view.trace.path.name
    commands = []
    for each in view.diagnosis.findings[:_COMMANDS]:
        name, _, options = diagnose.find(each.rule).see.partition(" ")
        commands.append(f"foretrace show {name} {file} {options}".rstrip())
    commands += [f"foretrace diagnose --explain {each.rule}" for each in view.diagnosis.findings[:1]]
    return list(dict.fromkeys(commands))


_PARTS: Mapping[str, Callable[[RecordingView], Any]] = {
    "trust": trust, "headline": headline, "waterfall": waterfall, "findings": _all_findings, "gpu": gpu_tiles,
    "step_time": step_time,
    "checked": checked, "one_step": one_step, "markdown": _markdown, "next": _next,
}  # fmt: skip
