"""A ListedRun: a recording, a benchmark or a memory snapshot of the library, and how far it has been read."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from foretrace.present.web import payload
from foretrace.present.web.run_files import Stamp

Sort = Literal["recording", "benchmark", "snapshot"]
State = Literal["waiting", "loading", "ready", "failed"]


@dataclass
class ListedRun:
    """One recording, benchmark or snapshot of the library."""

    id: str
    path: Path
    sort: Sort
    group: str
    label: str
    stamp: Stamp | None
    titles: tuple[str, str]  # the program of a Run, or nothing; the name
    state: State = "waiting"
    progress_pct: float | None = None
    says: str | None = None
    step_ms: float | None = None
    view: payload.View | None = None
    size_bytes: int = 0  # of the view, about
    used_at: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)

    def to_dict(self) -> dict[str, Any]:
        """The run as the page lists it."""
        shown = ("id", "sort", "group", "label", "state", "progress_pct", "says", "step_ms")
        title, name = self.titles
        return {"name": name, "title": title, **{field: getattr(self, field) for field in shown}}
