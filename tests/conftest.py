"""Settings of every test run: a cache of its own, repeatable examples, and which reader is under test."""

from __future__ import annotations

import os
import signal
import tempfile
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# Set before any test imports foretrace, and inherited by the processes that tests start.
_CACHE = tempfile.TemporaryDirectory(prefix="foretrace-tests-")
os.environ["FORETRACE_CACHE"] = _CACHE.name
# Output is compared as text: no colour, no width that depends on the terminal it runs in.
for _name in ("COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR"):
    os.environ.pop(_name, None)

# A shell starts what runs in the background without Ctrl-C, and the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_report_header() -> str:
    """Names the reader that recordings go through."""
    return f"reader: {'native' if find_spec('foretrace._scan') else 'python'}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the cache of this run."""
    _CACHE.cleanup()
