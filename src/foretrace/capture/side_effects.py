"""The SideEffects of a tried program: files that it writes outside of the scratch folder, and hosts that it connects to.

torch.save is led into the scratch folder. Everything else is only seen, by Python's audit events, and told.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from typing import Any

from foretrace.capture.patches import replaced

_MOST = 20  # of each kind, that are told
_BYTECODE = re.compile(r"\.pyc(\.\d+)?$")  # with a number while it is written
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class SideEffects:
    """Of one process."""

    def __init__(self, scratch: str) -> None:
        self.written: dict[str, None] = {}
        self.redirected: dict[str, None] = {}
        self.connected: dict[str, None] = {}
        self.problems: list[str] = []  # why no more was looked at
        self._scratch = scratch
        caches = (os.path.expanduser("~/.cache"), os.path.expanduser("~/.triton"), "/dev", "/proc", "/sys")
        inside = [scratch, tempfile.gettempdir(), *caches]
        self._passed = tuple(os.path.realpath(place) + os.sep for place in inside if place)
        self._listening = True

    def install(self) -> None:
        """Torch has just been imported."""
        sys.addaudithook(self._audit)
        if self._scratch:
            self._lead_saves_away()

    def end(self) -> None:
        """Nothing more is looked at; an audit hook cannot be taken out."""
        self._listening = False

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._listening or event not in ("open", "socket.connect"):
            return
        try:
            if event == "open":
                self._opened(*args)
            elif len(self.connected) < _MOST and isinstance(args[1], tuple):
                self.connected[str(args[1][0])] = None
        except Exception as error:  # a program must not fail because somebody looks on
            self._listening = False
            self.problems.append(f"{type(error).__name__}: {error}")

    def _opened(self, path: Any, mode: Any, flags: Any) -> None:
        writes = (
            any(letter in mode for letter in "wax+")
            if isinstance(mode, str)
            else bool((flags or 0) & _WRITES)
        )
        if not writes or not isinstance(path, (str, bytes)) or len(self.written) >= _MOST:
            return
        name = os.path.realpath(os.fsdecode(path))
        if not name.startswith(self._passed) and not _BYTECODE.search(name):
            self.written[name] = None

    def _lead_saves_away(self) -> None:
        import torch

        def wrapping(original: Any) -> Any:
            def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
                if isinstance(f, (str, os.PathLike)):
                    self.redirected[os.path.basename(os.fspath(f))] = None
                    f = os.path.join(self._scratch, os.path.basename(os.fspath(f)))
                return original(obj, f, *args, **kwargs)

            return save

        replaced(torch, "save", wrapping)

    def to_dict(self) -> dict[str, list[str]]:
        """As the result file holds it; the files by their names alone."""
        return {
            "written": [os.path.basename(name) for name in self.written],
            "redirected": list(self.redirected),
            "connected": list(self.connected),
            "problems": self.problems,
        }
