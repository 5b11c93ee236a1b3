"""How long a server may take, and how much it may send: nothing that is read from a URL is without an end."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from foretrace.errors import InputError, UsageError

_PATIENCE_S = 30.0
_ANSWERS = 4  # a whole answer of limited size may take so many times as long as silence
_LIMIT_BYTES = 16 << 30
_SLOWEST_BYTES_PER_S = 4_000
_JUDGED_AFTER = 2  # times the patience: the first seconds of a connection say little about its speed


def patience_s() -> float:
    """How long a server may say nothing: FORETRACE_URL_TIMEOUT, in seconds."""
    return _number("FORETRACE_URL_TIMEOUT", _PATIENCE_S, 86_400, "seconds")


def answer_s() -> float:
    """How long a whole answer of limited size may take."""
    return _ANSWERS * patience_s()


def limit_bytes() -> int:
    """How much one URL may send: FORETRACE_URL_LIMIT, in bytes."""
    return int(_number("FORETRACE_URL_LIMIT", _LIMIT_BYTES, 1 << 60, "bytes"))


def _number(variable: str, default: float, most: float, unit: str) -> float:
    text = os.environ.get(variable, "")
    try:
        chosen = float(text) if text else default
    except ValueError:
        chosen = 0.0
    if not 0 < chosen < most:
        raise UsageError(f"{variable} must be a number of {unit}, not {text!r}")
    return chosen


class Allowance:
    """What one URL has sent and how long that took; raises InputError when it is too much or too slow."""

    def __init__(self, shown: str) -> None:
        self._shown = shown
        self._bytes, self._waited_s = 0, 0.0
        self._since: float | None = None  # when the wait under way began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the time inside: only waits for the server count, not the work between them."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._since = self._so_far_s(), None

    def check(self, size_bytes: int | None) -> None:
        """Refuses a file that is too large before it is fetched."""
        if size_bytes is not None and size_bytes > limit_bytes():
            raise InputError(
                f"{self._shown}: {size_bytes:,} bytes; FORETRACE_URL_LIMIT allows {limit_bytes():,}"
            )

    def take(self, count: int) -> None:
        """Counts bytes that came."""
        self._bytes += count
        if self._bytes > limit_bytes():
            raise InputError(
                f"{self._shown}: more than {limit_bytes():,} bytes came, and no end; FORETRACE_URL_LIMIT sets the limit"
            )
        spent_s = self._so_far_s()
        if spent_s > _JUDGED_AFTER * patience_s() and self._bytes < _SLOWEST_BYTES_PER_S * spent_s:
            raise InputError(
                f"{self._shown}: too slow: {self._bytes:,} bytes in {spent_s:.0f} s; copy the file first, or set "
                "FORETRACE_URL_TIMEOUT to more seconds"
            )

    def _so_far_s(self) -> float:
        return self._waited_s + (0.0 if self._since is None else time.monotonic() - self._since)
