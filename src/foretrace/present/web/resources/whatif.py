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
from foretrace.predict.prediction import predict as predict_changes
from foretrace.predict.steady import step_ns
from foretrace.present.web.kinds import kernel_kind
from foretrace.present.web.recording_view import Session
from foretrace.present.web.resources.finding import predicted
from foretrace.present.web.short_names import short

FACTORS = (0.0, 0.25, 0.5, 0.75, 1.5, 2.0)
# A report has its answers ready; a long program takes longer to replay, so fewer are.
_KERNELS, _FINDINGS = 24, 5
_KERNELS_LONG, _FINDINGS_LONG, _LONG = 6, 3, 50_000  # tasks
_LARGEST_FACTOR = 100.0


def predict(session: Session, query: Mapping[str, str | Sequence[str]]) -> dict[str, Any]:
    """`findings=1,3` and any number of `scale=NAME:FACTOR`, made together."""
    unknown = sorted(set(query) - {"findings", "scale"})
    if unknown:
        raise UsageError(f"predict has no {unknown[0]!r}; it takes findings and scale")
    numbers = _numbers(session, query.get("findings", ""))
    scales = query.get("scale", ())
    changes = [session.changes[number] for number in numbers]
    changes += [scaled(session, text) for text in ([scales] if isinstance(scales, str) else scales) if text]
    return _answer(session, numbers, tuple(changes))


def _numbers(session: Session, asked: str | Sequence[str]) -> list[int]:
    text = asked if isinstance(asked, str) else ",".join(asked)
    numbers = []
    for word in filter(None, text.split(",")):
        if not word.isdigit() or int(word) not in session.changes:
            known = ", ".join(map(str, session.changes)) or "none"
            raise UsageError(f"finding {word!r} cannot be replayed; those that can: {known}")
        numbers.append(int(word))
    return sorted(set(numbers))


def scaled(session: Session, text: str) -> Change:
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
    tasks = _tasks(session).get(name)
    if tasks is None:
        raise UsageError(f"no kernel named {name[:200]!r} in the recorded steps")
    return _change(session, name, tasks, factor)


def _change(session: Session, name: str, tasks: np.ndarray[Any, np.dtype[np.int64]], factor: float) -> Change:
    durations = session.case.program.task_dur_ns
    edit = Edit(durations_ns={int(task): round(int(durations[task]) * factor) for task in tasks})
    return Change(f"{short(name, 'kernel')} × {factor:g}", edit, exact=True)


def _tasks(session: Session) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    """The tasks of each kernel of the program, by name."""

    def make() -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
        if session.not_replayed is not None:
            return {}
        kernels = session.case.tasks.filter(pl.col("kind") == "kernel").select("name", "task")
        groups = kernels.cast({"name": pl.String}).group_by("name", maintain_order=True).agg("task")
        return {name: np.array(tasks, np.int64) for name, tasks in groups.iter_rows()}

    return session.keep("tasks", make)


def _answer(session: Session, numbers: list[int], changes: tuple[Change, ...]) -> dict[str, Any]:
    if session.not_replayed is not None:
        return {"findings": numbers, "predicted": None, "says": session.not_replayed}
    if not changes:
        return {"findings": [], "predicted": None, "says": "nothing changed"}
    # A fix promises what its finding promises; a kernel changed by hand is taken at the user's word.
    made = session.case.predict(changes) if numbers else predict_changes(session.case.calibration, changes)
    after = made.after_ns
    says = (
        f"{made.step_ns / 1e6:.3g} → {after.low / 1e6:.3g} to {after.high / 1e6:.3g} ms a step "
        f"(× {made.speedup.low:.2f} to {made.speedup.high:.2f})"
    )
    return {"findings": numbers, "predicted": predicted(made), "says": says}


def whatif(session: Session) -> dict[str, Any]:
    """The longest kernels with the step at each factor, and the findings in every combination."""
    if session.not_replayed is not None:
        return {"factors": list(FACTORS), "kernels": [], "combinations": {}}
    long = len(session.case.program.task_span) > _LONG
    return {
        "factors": list(FACTORS),
        "kernels": _kernels(session, _KERNELS_LONG if long else _KERNELS),
        "combinations": _combinations(session, _FINDINGS_LONG if long else _FINDINGS),
    }


def _kernels(session: Session, most: int) -> list[dict[str, Any]]:
    durations = session.case.program.task_dur_ns
    spent = {name: int(durations[tasks].sum()) for name, tasks in _tasks(session).items()}
    longest = sorted(spent, key=lambda name: -spent[name])[:most]
    before = step_ns(session.case.program)
    shown = []
    for name in longest:
        tasks = _tasks(session)[name]
        after = []
        for factor in FACTORS:
            changed = apply(session.case.program, (_change(session, name, tasks, factor),))
            # The measured step times the replayed ratio, as a prediction's point is made.
            after.append(session.case.step_ns * step_ns(changed) / before / 1e6 if before else None)
        shown.append(
            {"name": name, "title": short(name, "kernel"), "kind": kernel_kind(name),
             "per_step_ns": spent[name] / session.case.step_count, "after_ms": after}
        )  # fmt: skip
    return shown


def _combinations(session: Session, most: int) -> dict[str, Any]:
    numbers = list(session.changes)[:most]
    found = {}
    for count in range(1, len(numbers) + 1):
        for chosen in combinations(numbers, count):
            changes = tuple(session.changes[number] for number in chosen)
            found[",".join(map(str, chosen))] = _answer(session, list(chosen), changes)
    return found
