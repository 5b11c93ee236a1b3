"""Whether the recording can be believed: the verdict, a few figures beside it, and the notes."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

from foretrace.analyze.concepts.host.cpu_program import computes_on_cpu
from foretrace.analyze.concepts.trees import stack_tree
from foretrace.analyze.concepts.trees.call_tree import NOBODY
from foretrace.analyze.steps import StepWindow, step_windows
from foretrace.analyze.trust import judge
from foretrace.errors import MissingDataError
from foretrace.ingest import totals
from foretrace.present.facts import recordings
from foretrace.present.web.owners import device_owners
from foretrace.present.web.recording_view import RecordingView
from foretrace.units import counted, format_value

_SMALL = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_OVERHEAD_PCT, _SPREAD_PCT = 5.0, 2.0


def trust(view: RecordingView) -> dict[str, Any]:
    """The verdict in words, five figures, and every note."""
    if totals.stats(view.trace):
        # As nsys summed them up: what could be wrong with a recording is not in its sums.
        detail = "Sums by name: nothing in them tells whether the recording was whole."
        return {"verdict": "with care", "says": "With care", "detail": detail, "facts": [], "notes": []}
    judged = judge(view.trace)
    windows = step_windows(view.trace)
    shown = (_overhead, _complete, _launches, _spread, _traced)
    facts = [fact for make in shown if (fact := make(view, windows)) is not None]
    limits = sum(note.severity != "info" for note in judged.notes)
    marked = sum(fact["mark"] in ("note", "bad") for fact in facts)
    told = [{"code": "recordings", "weight": "info", "says": says} for says in recordings(view.trace)]
    return {
        "verdict": judged.verdict,
        "says": _says(judged.verdict, limits, marked),
        "detail": _detail(windows) + _diagnosed(view),
        "facts": facts,
        "notes": [
            *({"code": note.code, "weight": note.severity, "says": note.says} for note in judged.notes),
            *told,
        ],
    }


def _says(verdict: str, limits: int, marked: int) -> str:
    if verdict != "yes":
        return verdict.capitalize()
    count = max(limits, marked)
    if not count:
        return "Yes"
    word = _SMALL[count] if count < len(_SMALL) else str(count)
    return f"Yes, with {word} note{'' if count == 1 else 's'}"


def _detail(windows: tuple[StepWindow, ...]) -> str:
    whole = [window.number for window in windows if window.averaged]
    if not whole:
        return "No whole step was recorded: numbers are of the whole recording."
    if len(whole) == 1:
        return f"Numbers below use step {whole[0]} only."
    return f"Numbers below use steps {whole[0]}–{whole[-1]} only."


def _diagnosed(view: RecordingView) -> str:
    looked_at = view.case.looked_at
    return "" if looked_at is None else f" Findings use {looked_at}."


def _fact(mark: str, label: str, value: str, detail: str) -> dict[str, str]:
    return {"mark": mark, "label": label, "value": value, "detail": detail}


def _overhead(view: RecordingView, windows: tuple[StepWindow, ...]) -> dict[str, str] | None:
    recorded, clock = _recorded_step(windows)
    if recorded is None:
        return None
    unprofiled = view.case.measured_step_ns
    if unprofiled is None:
        return _fact(
            "unknown", "Profiler overhead", "not known", "give the step time without a profiler: --step-ms"
        )
    share = 100 * (recorded / unprofiled - 1)
    times = [format_value("_ns", step_ns) for step_ns in (recorded, unprofiled)]
    detail = f"{times[0]} profiled, {times[1]} without, on the {clock} clock"
    sign = "+" if share >= 0 else "− "
    return _fact(
        "good" if abs(share) < _OVERHEAD_PCT else "note",
        "Profiler overhead",
        f"{sign}{abs(share):.1f} %",
        detail,
    )


def _recorded_step(windows: tuple[StepWindow, ...]) -> tuple[float | None, str]:
    whole = [window for window in windows if window.averaged]
    on_gpu = [each.gpu_ns for each in whole if each.gpu_ns is not None]
    if on_gpu:
        return float(np.median(on_gpu)), "GPU"
    return (float(np.median([each.host_ns for each in whole])), "host") if whole else (None, "host")


def _complete(view: RecordingView, windows: tuple[StepWindow, ...]) -> dict[str, str]:
    if not windows:
        return _fact(
            "note", "Complete steps", "none marked", "call profiler.step() at the end of each iteration"
        )
    whole = [window for window in windows if window.whole]
    counts = {each.launched_count for each in whole}
    if len(counts) == 1:
        detail = f"{counts.pop():,} GPU events in each" if view.trace.has_device else "on the host"
    else:
        detail = f"{min(counts, default=0):,} to {max(counts, default=0):,} GPU events in each"
    cut = len(windows) - len(whole)
    detail += "; nothing truncated" if not cut else f"; {counted(cut, 'step')} cut off"
    return _fact("note" if cut else "good", "Complete steps", f"{len(whole)} of {len(windows)}", detail)


def _launches(view: RecordingView, _: tuple[StepWindow, ...]) -> dict[str, str] | None:
    trace = view.trace
    if computes_on_cpu(trace):
        return None
    if not trace.has_device:
        return _fact("unknown", "Launch known", "no GPU work", "record with ProfilerActivity.CUDA")
    every = trace.device_spans.height
    known = every - trace.device_spans["launch_id"].null_count()
    if known == every:
        return _fact("good", "Launch known", f"{known:,} of {every:,}", "every GPU event has its launch")
    if not known:
        return _fact("note", "Launch known", f"0 of {every:,}", "no runtime call was recorded")
    first = trace.device_spans.filter(pl.col("launch_id").is_not_null())["start_ns"].min()
    before = trace.device_spans.filter(pl.col("launch_id").is_null() & (pl.col("start_ns") < first)).height
    share = "were" if every - known != 1 else "was"
    detail = f"{every - known:,} {share} queued before recording began and left out"
    if before < every - known:
        detail = f"{every - known:,} came without a launch and are left out of steps"
    return _fact(
        "note" if every - known > every // 100 else "good", "Launch known", f"{known:,} of {every:,}", detail
    )


def _spread(_: RecordingView, windows: tuple[StepWindow, ...]) -> dict[str, str] | None:
    whole = [window for window in windows if window.averaged]
    on_gpu = [each.gpu_ns for each in whole if each.gpu_ns is not None]
    times = on_gpu or [each.host_ns for each in whole]
    if not times:
        return None
    listed = ", ".join(f"{time / 1e6:,.2f}" for time in times[:4])
    listed += " ms" + (f" and {len(times) - 4} more" if len(times) > 4 else "")
    if len(times) == 1:
        return _fact("unknown", "Step spread", "one step", f"{listed}; record three or more")
    spread = 50 * (max(times) - min(times)) / max(float(np.median(times)), 1.0)
    digits = 2 if spread < 0.1 else 1
    return _fact(
        "good" if spread < _SPREAD_PCT else "note", "Step spread", f"± {spread:.{digits}f} %", listed
    )


def _traced(view: RecordingView, _: tuple[StepWindow, ...]) -> dict[str, str] | None:
    """The share of launched GPU time whose operator, or its forward operator, has a recorded source line."""
    if not view.trace.has_device:
        return None
    share = _traced_pct(view)
    if not share:
        return _fact("unknown", "Traced to source", "not recorded", "record with with_stack=True")
    mark = "good" if share >= 90 else "note"
    return _fact(
        mark, "Traced to source", f"{share:.0f} %", "of launched GPU time, backward via sequence numbers"
    )


def _traced_pct(view: RecordingView) -> float | None:
    try:
        tree = stack_tree.find(view.trace)
    except MissingDataError:
        return None
    known = device_owners(view.trace, view.classified, tree.carried) != NOBODY
    dur = view.classified["dur_ns"].to_numpy()
    total = int(dur.sum())
    return 100 * int(dur[known].sum()) / total if total else None
