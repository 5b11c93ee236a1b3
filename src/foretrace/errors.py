"""Every error a user can see. The command line maps each to its exit code, in one place.

ForetraceError
├── UsageError        2  the call itself is wrong: an unknown name, a bad flag value
├── InputError        3  the input could not be read
│   └── FormatError   3  the input is readable, but no reader knows its format
└── MissingDataError  4  what was asked for was not recorded
    └── FaultError   70  it could not be made, by a fault of Foretrace's own; the rest goes on without it
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class ForetraceError(Exception):
    """The root: its text is one line that says what, where and what next."""

    exit_code = 1
    kind = "failed"  # as JSON names it


class UsageError(ForetraceError):
    """The call is wrong, whatever the input holds."""

    exit_code = 2
    kind = "usage"

    def __init__(self, says: str = "", *, near: Iterable[str] = ()) -> None:
        super().__init__(says)
        self.near = tuple(near)  # names that may be meant


class NothingLeftError(UsageError):
    """Changes that, made together, leave nothing of the step."""


_NEAR, _AS_NEAR = (
    0.6,
    0.1,
)  # likeness by difflib, of 1: of a name that may be meant, and of one as near as the nearest


def unknown(says: str, name: str, known: Iterable[str], *, listed: str = "there are") -> UsageError:
    """A name that there is none of: says which one may be meant, or all there are; where `listed` is empty, not all."""
    names = list(dict.fromkeys(known))
    near = near_names(name, names)
    if near:
        return UsageError(f"{says}{did_you_mean(near)}", near=near)
    return UsageError(f"{says}; {listed}: {', '.join(names) or 'none'}" if listed else says)


def did_you_mean(near: Iterable[str]) -> str:
    """The names that may be meant, as the end of a message; nothing where there are none."""
    names = " or ".join(near)
    return f"; did you mean {names}?" if names else ""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Those that may be meant by a mistyped name, nearest first, three at most; none where nothing is like it."""
    import difflib

    wanted = _plain(name)[:100]
    if not wanted:
        return []

    def likeness_of(other: str) -> float:
        # With and without the unit of a column: `cals` is meant for calls_count.
        texts = (_plain(other), _plain(other.rpartition("_")[0]))
        ratios = [difflib.SequenceMatcher(None, wanted, text).ratio() for text in texts]
        # A part is near too: `attention` of unfused-attention.
        return max(*ratios, _NEAR if len(wanted) > 2 and wanted in texts[0] else 0.0)

    likeness = {other: likeness_of(other) for other in dict.fromkeys(known)}
    nearest = max(likeness.values(), default=0.0)
    near = [other for other, ratio in likeness.items() if ratio >= max(_NEAR, nearest - _AS_NEAR)]
    return sorted(near, key=lambda other: -likeness[other])[:3]


def _plain(name: str) -> str:
    return name.casefold().replace("-", "_").replace(" ", "_")


class InputError(ForetraceError):
    """The input could not be read."""

    exit_code = 3
    kind = "input"


class FormatError(InputError):
    """The input is not in a format that any reader accepts."""

    kind = "format"


class MissingDataError(ForetraceError):
    """The recording does not hold what was asked for."""

    exit_code = 4
    kind = "not-recorded"


class FaultError(MissingDataError):
    """One table, rule or view failed by a fault of Foretrace's own: who can do without it says so in a line."""

    exit_code = 70
    kind = "internal"


def is_fault(error: BaseException) -> bool:
    """Whether an exception is a fault; a panic inside polars is no Exception, so that nobody catches it by accident."""
    known = isinstance(error, ForetraceError | BrokenPipeError)
    return not known and (isinstance(error, Exception) or type(error).__name__ == "PanicException")


def fault_text(error: BaseException) -> str:
    """A fault in one line."""
    what = " ".join(str(error).split())[:300]
    says = f"{type(error).__name__}: {what}" if what else type(error).__name__
    return f"internal error: {says} (please report; set FORETRACE_DEBUG=1 for the traceback)"


@contextmanager
def contained(what: str) -> Iterator[None]:
    """A fault inside becomes a FaultError about `what`; where FORETRACE_FAULTS is "raise", as in tests, it stays itself."""
    try:
        yield
    except BaseException as error:
        if not is_fault(error) or os.environ.get("FORETRACE_FAULTS") == "raise":
            raise
        if os.environ.get("FORETRACE_DEBUG"):
            import traceback

            traceback.print_exception(error, file=sys.stderr)
        raise FaultError(f"{what} could not be made: {fault_text(error)}") from error
