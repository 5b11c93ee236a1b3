"""The RecordingView: one Case as the page sees it, with its diagnosis worked out once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from threading import Lock, RLock
from typing import Any, Generic, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from foretrace import analyze
from foretrace.analyze.concepts.device import device_roles
from foretrace.analyze.result import Result
from foretrace.diagnose import RULES
from foretrace.diagnose.case import Case
from foretrace.diagnose.diagnosis import Diagnosis, Unchecked, diagnose
from foretrace.diagnose.finding import Finding
from foretrace.diagnose.step_times import StepTimes, step_times
from foretrace.errors import MissingDataError
from foretrace.ingest import totals
from foretrace.ingest.run import pass_of
from foretrace.predict.changes import Change
from foretrace.present.web.kinds import device_kinds
from foretrace.secret_formats import without_known_secrets

Kept = TypeVar("Kept")
_NOTHING = np.empty(0, np.int64)
_SUFFIXES = (".gz", ".zst", ".json", ".trace", ".pt")


class _Once(Generic[Kept]):
    """A property that is worked out once."""

    def __init__(self, make: Callable[[Any], Kept]) -> None:
        self._make, self._name = make, make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, view: RecordingView, owner: type[RecordingView]) -> Kept:
        return view.keep(self._name, lambda: self._make(view))


class RecordingView:
    """A Case, its diagnosis, and the names under which the page lists it.

    A server asks it on several threads: each thing is worked out by the first that asks, and only those that need
    the same thing wait for it.
    """

    def __init__(
        self,
        case: Case,
        *,
        run_id: str = "run",
        group: str | None = None,
        label: str | None = None,
    ) -> None:
        self.case = case
        self.trace = case.whole
        self.id = run_id
        self.title, self.name = titles(self.trace.path)
        program, _, variant = (self.title, "", "") if self.title else self.name.partition(".")
        self.group = group or program
        self.label = label or variant or program
        self.left_out: tuple[str, ...] = ()  # what a report had to drop, in words
        self._lock = Lock()
        self._made: dict[str, Any] = {}
        self._making: dict[str, RLock] = {}

    def keep(self, name: str, make: Callable[[], Kept]) -> Kept:
        """What `make` gives, made once."""
        if name not in self._made:
            with self._lock:
                making = self._making.setdefault(name, RLock())
            with making:
                if name not in self._made:
                    self._made[name] = make()
        kept: Kept = self._made[name]
        return kept

    @property
    def kinds(self) -> NDArray[np.uint8]:
        """For each row of the trace's device spans, the number of its kind."""
        return self.keep("kinds", lambda: device_kinds(self.trace, self.classified))

    @_Once
    def classified(self) -> pl.DataFrame:
        """The device work that was launched in the recording, with what it is for."""
        return device_roles.classified(self.trace)

    def result(self, name: str, **options: Any) -> Result:
        """One analysis; raises MissingDataError where its input was not recorded."""
        key = f"result {name} {sorted(options.items())!r}"
        return self.keep(key, lambda: analyze.run(self.trace, name, **options))

    def maybe(self, name: str, **options: Any) -> Result | None:
        """One analysis, or None where its input was not recorded."""
        try:
            return self.result(name, **options)
        except MissingDataError:
            return None

    @_Once
    def not_replayed(self) -> str | None:
        """Why the steps cannot be replayed; None where they can."""
        try:
            self.case.require_replay()
        except MissingDataError as reason:
            return str(reason)
        return None

    @_Once
    def diagnosis(self) -> Diagnosis:
        """What is wrong; where nothing can be replayed, no rule could look."""
        if totals.stats(self.trace):
            return Diagnosis((), (), (), None)  # no rule is about sums
        if self.not_replayed is not None:
            fitting = (rule for rule in RULES if rule.fits(self.case))
            unchecked = tuple(Unchecked(rule.name, self.not_replayed) for rule in fitting)
            return Diagnosis((), (), unchecked, None)
        return diagnose(self.case, RULES)

    @_Once
    def step_times(self) -> StepTimes:
        """The step's time as recorded, measured without a profiler, or estimated."""
        return step_times(self.case)

    @property
    def step_ns(self) -> float | None:
        """The step time without a profiler, measured or estimated; else as recorded; None without steps."""
        return self.step_times.used_ns

    @_Once
    def changes(self) -> dict[int, Change]:
        """The changes that can be replayed, by the number of their finding."""
        return {
            number: finding.change
            for number, finding in enumerate(self.diagnosis.findings, 1)
            if finding.change is not None and finding.predicted is not None
        }

    @_Once
    def finding_spans(self) -> tuple[NDArray[np.int64], ...]:
        """For each finding, the spans that it is about: what its change edits, else its evidence."""
        return tuple(self._spans_of(finding) for finding in self.diagnosis.findings)

    def _spans_of(self, finding: Finding) -> NDArray[np.int64]:
        evidence = np.array(finding.evidence.get("spans", ()), np.int64)
        if finding.change is None:
            return np.unique(evidence)
        edit, program = finding.change.edit, self.case.program
        tasks = np.concatenate(
            (edit.removed_tasks, _numbers(edit.durations_ns), _numbers(edit.moved_tasks), _NOTHING)
        ).astype(np.int64)
        calls = np.concatenate((edit.removed_calls, edit.unwaited_calls, edit.captured_calls)).astype(
            np.int64
        )
        edited = self.case.whole_ids(np.concatenate((program.task_span[tasks], program.call_span[calls])))
        together: NDArray[np.int64] = np.unique(np.concatenate((edited, evidence)))
        return together

    @_Once
    def finding_of(self) -> dict[int, int]:
        """For each span of a finding, the number of the first finding that it belongs to."""
        first: dict[int, int] = {}
        for number, spans in enumerate(self.finding_spans, 1):
            for span in spans.tolist():
                first.setdefault(span, number)
        return first


def _numbers(mapping: dict[int, int]) -> NDArray[np.int64]:
    return np.fromiter(mapping, np.int64, len(mapping))


def titles(path: Path) -> tuple[str, str]:
    """The program of the Run that a recording is of, or nothing; and what the recording is called."""
    recorded = pass_of(path)
    if recorded is None:
        return "", display_name(path.name)
    rank = "" if recorded.rank is None else f", rank {recorded.rank}"
    kind = "" if recorded.main else f", {recorded.kind} pass"
    return as_text(recorded.program), as_text(f"{recorded.program}{rank}{kind}")


def display_name(file: str) -> str:
    """The file's name without what only says its format."""
    name = file
    while name.endswith(_SUFFIXES):
        name = name[: name.rindex(".")]
    return as_text(name or file)


def as_text(name: str) -> str:
    """A file's name as text: on Linux it may be any bytes, and what is no UTF-8 of them shows as a question mark."""
    return without_known_secrets(os.fsencode(name).decode("utf-8", "replace"))
