"""The Trigger: begins a capture of a job that is already running, by a signal or by touching a file.

A signal handler may run between any two instructions of the program, so it only raises a flag; the program's
own thread looks at it when a step ends.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

SIGNAL_NAME = "SIGUSR2"  # SIGUSR1 is taken by Slurm's and Lightning's checkpoint handlers
_LOOK_EVERY_S = 0.5  # a look at the file may take milliseconds on a network file system

Handler = Callable[[int, FrameType | None], object] | int | None


class Trigger:
    """Fires once for each signal received, and for each time that the file appears or is touched."""

    def __init__(self, file: str | os.PathLike[str] | None = None, *, by_signal: bool = True) -> None:
        self._flag = False
        self._file = Path(file).expanduser().absolute() if file is not None else None
        # A file left from an earlier job is no request; and it is never removed, since other ranks look too.
        self._seen = self._touched()
        self._looked_at = 0.0
        self._pid = os.getpid()
        self._previous: Handler = None
        self._number = getattr(signal, SIGNAL_NAME, None) if by_signal else None
        if self._number is not None and threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(self._number, self._received)
        else:
            self._number = None

    @property
    def says(self) -> str:
        """How to fire it, in words."""
        ways = [f"kill -{SIGNAL_NAME.removeprefix('SIG')} {self._pid}"] if self._number is not None else []
        ways += [f"touch {self._file}"] if self._file is not None else []
        return " or ".join(ways) or "nothing can begin it: neither a signal nor a file is watched"

    def fired(self) -> bool:
        """Whether a capture was asked for since the last call."""
        if self._flag:
            self._flag = False
            return True
        now = time.monotonic()
        if self._file is None or now - self._looked_at < _LOOK_EVERY_S:
            return False
        self._looked_at = now
        touched = self._touched()
        changed = touched is not None and touched != self._seen
        self._seen = touched
        return changed

    def close(self) -> None:
        """Gives the signal back to whoever had it."""
        if self._number is None or os.getpid() != self._pid:
            return
        # Someone who took the signal after us keeps it.
        if (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(self._number) == self._received
        ):
            signal.signal(self._number, self._previous if self._previous is not None else signal.SIG_DFL)
        self._number = None

    def _received(self, number: int, frame: FrameType | None) -> None:
        self._flag = True
        if callable(self._previous):
            self._previous(number, frame)

    def _touched(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns if self._file is not None else None
        except OSError:
            return None
