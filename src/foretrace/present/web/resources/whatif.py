"""`predict` and `whatif`: the step replayed with fixes ticked, or with a kernel made faster or slower by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from foretrace.errors import UsageError
from foretrace.predict.changes import Change, apply
from foretrace.predict.edits import Edit
from foretrace.predict.steady import step_ns
from foretrace.present.web.kinds import kernel_kind
from foretrace.present.web.recording_view import RecordingView
from foretrace.present.web.resources.finding import predicted
from foretrace.present.web.short_names import short

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.5, 2.0)
# A report has its answers ready; a long program takes longer to replay, so fewer are.
_KERNELS, _FINDINGS = 24, 5
_KERNELS_LONG, _FINDINGS_LONG, _LONG = 6, 3, 50_000  # tasks
_LARGEST_FACTOR = 100.0


def predict(view: RecordingView, query: Mapping[str, str | Sequence[str]]) -> dict[str, Any]:
    """`findings=1,3` and any number of `scale=NAME:FACTOR`, made together."""
    unknown = sorted(set(query) - {"findings", "scale"})
    if unknown:
        raise UsageError(f"predict has no {unknown[0]!r}; it takes findings and scale")
    numbers = _numbers(view, query.get("findings", ""))
    scales = query.get("scale", ())
    changes = [view.changes[number] for number in numbers]
    changes += [scaled(view, text) for text in ([scales] if isinstance(scales, str) else scales) if text]
    return _answer(view, numbers, tuple(changes))


def _numbers(view: RecordingView, asked: str | Sequence[str]) -> list[int]:
    text = asked if isinstance(asked, str) else ",".join(asked)
    numbers = []
    for word in filter(None, text.split(",")):
        if not word.isdigit() or int(word) not in view.changes:
            known = ", ".join(map(str, view.changes)) or "none"
            raise UsageError(f"finding {word!r} cannot be replayed; those that can: {known}")
        numbers.append(int(word))
    return sorted(set(numbers))


def scaled(view: RecordingView, text: str) -> Change:
    """NAME:FACTOR as a change of every kernel of that name."""
    name, _, word = text.rpartition(":")
    try:
        factor = float(word)
    except ValueError:
        factor = -1.0
    if not name or not 0 <= factor <= _LARGEST_FACTOR:
        raise UsageError(
            f"scale={text[:200]}: a kernel's name, a colon, and a factor from 0 to {_LARGEST_FACTOR:.0f}"
        )
    tasks = _tasks(view).get(name)
    if tasks is None:
        raise UsageError(f"no kernel named {name[:200]!r} in the recorded steps")
    return _change(view, name, tasks, factor)


def _change(
    view: RecordingView, name: str, tasks: np.ndarray[Any, np.dtype[np.int64]], factor: float
) -> Change:
    durations = view.case.program.task_dur_ns
    edit = Edit(durations_ns={int(task): round(int(durations[task]) * factor) for task in tasks})
    return Change(f"{short(name, 'kernel')} × {factor:g}", edit, exact=True)


def _tasks(view: RecordingView) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The tasks of each kernel of the program, by name."""

    def make() -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
        if view.not_replayed is not None:
            return {}
        kernels = view.case.tasks.filter(pl.col("kind") == "kernel").select("name", "task")
        groups = kernels.cast({"name": pl.String}).group_by("name", maintain_order=True).agg("task")
        return {name: np.array(tasks, np.int64) for name, tasks in groups.iter_rows()}

    return view.keep("tasks", make)


def _answer(view: RecordingView, numbers: list[int], changes: tuple[Change, ...]) -> dict[str, Any]:
    if view.not_replayed is not None:
        return {"findings": numbers, "predicted": None, "says": view.not_replayed}
    if not changes:
        return {"findings": [], "predicted": None, "says": "nothing changed"}
    made = view.case.predict(changes)
    after = made.after_ns
    says = (
        f"{made.step_ns / 1e6:.3g} → {after.low / 1e6:.3g} to {after.high / 1e6:.3g} ms a step "
        f"(× {made.speedup.low:.2f} to {made.speedup.high:.2f})"
    )
    return {"findings": numbers, "predicted": predicted(made), "says": says}


def whatif(view: RecordingView) -> dict[str, Any]:
    """The longest kernels with the step at each factor, and the findings in every combination."""
    if view.not_replayed is not None:
        return {"factors": list(FACTORS), "kernels": [], "combinations": {}}
    long = len(view.case.program.task_span) > _LONG
    return {
        "factors": list(FACTORS),
        "kernels": _kernels(view, _KERNELS_LONG if long else _KERNELS),
        "combinations": _combinations(view, _FINDINGS_LONG if long else _FINDINGS),
    }


def _kernels(view: RecordingView, most: int) -> list[dict[str, Any]]:
    durations = view.case.program.task_dur_ns
    spent = {name: int(durations[tasks].sum()) for name, tasks in _tasks(view).items()}
    longest = sorted(spent, key=lambda name: -spent[name])[:most]
    before = step_ns(view.case.program)
    shown = []
    for name in longest:
        tasks = _tasks(view)[name]
        after = []
        for factor in FACTORS:
            changes = view.case.with_clock((_change(view, name, tasks, factor),))
            changed = apply(view.case.program, changes)
            # The measured step times the replayed ratio, as a prediction's point is made.
            after.append(view.case.step_ns * step_ns(changed) / before / 1e6 if before else None)
        shown.append(
            {"name": name, "title": short(name, "kernel"), "kind": kernel_kind(name),
             "per_step_ns": spent[name] / view.case.step_count, "after_ms": after}
        )  # fmt: skip
    return shown


def _combinations(view: RecordingView, most: int) -> dict[str, Any]:
    numbers = list(view.changes)[:most]
    found = {}
    for count in range(1, len(numbers) + 1):
        for chosen in combinations(numbers, count):
            changes = tuple(view.changes[number] for number in chosen)
            found[",".join(map(str, chosen))] = _answer(view, list(chosen), changes)
    return found
