"""The LineMarks: which moments of a rank are steps and which are Foretrace's own, for reading the sampler's lines."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from foretrace.capture import line_sampler
from foretrace.capture.options import AGAIN

_MOST_WINDOWS = 1_000


class LineMarks:
    """Of one rank; call `boundary` at each boundary, and `passed` when all that it causes is done."""

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._thread: int | None = None
        self._first_ns: int | None = None
        self._last_ns: int | None = None
        self._count = 0
        self._windows: list[list[int]] = []  # recorded under a profiler, writing included
        self._profiling = False
        self._at_ns = 0

    def boundary(self) -> None:
        """A step of the program ended here."""
        self._at_ns = time.time_ns()
        if self._first_ns is None:
            self._first_ns, self._thread = self._at_ns, threading.get_native_id()
        else:
            self._count += 1
        self._last_ns = self._at_ns

    def passed(self, kind: str | None) -> None:
        """What is open from here on: the kind of a pass."""
        profiling = kind is not None and kind != AGAIN
        if profiling and not self._profiling and len(self._windows) < _MOST_WINDOWS:
            self._windows.append([self._at_ns, self._at_ns])
        if (profiling or self._profiling) and self._windows:
            self._windows[-1][1] = time.time_ns()
        self._profiling = profiling

    def facts(self, *, over: bool) -> dict[str, Any]:
        """As rank.json holds them; `over`: the program goes on, and nobody looks at its steps any more."""
        if self._profiling and self._windows:
            self._windows[-1][1] = time.time_ns()
        return {
            "pid": os.getpid(),
            "why_off": line_sampler.why_off if self._wanted else "--no-lines was given",
            "thread": self._thread,
            "steps": self._count,
            "first_ns": self._first_ns,
            "last_ns": None if over else self._last_ns,
            "profiled_ns": self._windows,
        }
