"""Every error a user can see. The command line maps each to its exit code, in one place.

ForetraceError
├── UsageError        2  the call itself is wrong: an unknown name, a bad flag value
├── InputError        3  the input could not be read
│   └── FormatError   3  the input is readable, but no reader knows its format
└── MissingDataError  4  what was asked for was not recorded
"""

from __future__ import annotations


class ForetraceError(Exception):
    """The root: its text is one line that says what, where and what next."""

    exit_code = 1


class UsageError(ForetraceError):
    """The call is wrong, whatever the input holds."""

    exit_code = 2


class InputError(ForetraceError):
    """The input could not be read."""

    exit_code = 3


class FormatError(InputError):
    """The input is not in a format that any reader accepts."""


class MissingDataError(ForetraceError):
    """The recording does not hold what was asked for."""

    exit_code = 4
