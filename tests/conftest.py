"""Settings of every test run: a cache of its own, repeatable examples, which reader is under test, which tests are fast."""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.corpus import CORPUS, needs_accuracy, needs_corpus

# Imported modules and collected tests stay until the end: looking through them for garbage costs each worker seconds.
gc.disable()

# Set before any test imports foretrace, and inherited by the processes that tests start. Workers of pytest-xdist use the
# cache of the process that started them: what one of them has read, the others find there.
_CACHE = (
    None if "PYTEST_XDIST_WORKER" in os.environ else tempfile.TemporaryDirectory(prefix="foretrace-tests-")
)
if _CACHE:
    os.environ["FORETRACE_CACHE"] = _CACHE.name
# A fault in one table costs users that table alone; a test that meets one fails.
os.environ["FORETRACE_FAULTS"] = "raise"
# Output is compared as text: no colour, no width that depends on the terminal it runs in.
for _name in ("COLUMNS", "FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR"):
    os.environ.pop(_name, None)

# Programs of torch run beside one another here: threads of one would wait for the cores that another one's use.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell starts what runs in the background without Ctrl-C, and the programs that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True)
settings.register_profile("dev", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "dev")


# Tests of programs that import torch. With `-m fast` they are not even imported, which would take seconds.
SLOW_PLACES = [Path(__file__).parent / name for name in ("capture", "examples")]


TRACES = Path(__file__).parent / "traces"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Runs the fast tests on all cores, where pytest-xdist is there and nothing else is asked for."""
    asked = getattr(config.option, "numprocesses", 0) is not None or config.option.usepdb
    if config.option.markexpr == "fast" and not asked and "PYTEST_XDIST_WORKER" not in os.environ:
        config.option.numprocesses = os.cpu_count()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leaves slow places out of a fast run."""
    return True if config.option.markexpr == "fast" and collection_path in SLOW_PLACES else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each test that has no marker of its own its group: exhaustive, slow or fast."""
    for item in items:
        if reads_shared_files(item) and not item.get_closest_marker("exhaustive"):
            item.add_marker("exhaustive")
        if not any(item.get_closest_marker(name) for name in ("slow", "exhaustive")):
            in_slow_place = any(place in (item.path, *item.path.parents) for place in SLOW_PLACES)
            slow = in_slow_place or reads_recordings(item, TRACES) or tries_many_inputs(item)
            item.add_marker("slow" if slow else "fast")


def pytest_collection_finish() -> None:
    """Garbage is collected from here on, but not among what was there already."""
    gc.freeze()
    gc.enable()


def tries_many_inputs(item: pytest.Item) -> bool:
    """Whether Hypothesis makes up the inputs of a test."""
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def reads_shared_files(item: pytest.Item) -> bool:
    """Whether a test needs files that lie beside the repository."""
    skips = list(item.iter_markers("skipif"))
    return needs_corpus.mark in skips or needs_accuracy.mark in skips or reads_recordings(item, CORPUS)


def reads_recordings(item: pytest.Item, folder: Path) -> bool:
    """Whether a parameter of a test is a path in the folder."""
    parameters: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
    return any(isinstance(value, Path) and value.is_relative_to(folder) for value in parameters.values())


@pytest.fixture(scope="session", autouse=True)
def _json_is_as_its_schema_says() -> Iterator[None]:
    """Every JSON document that a command prints inside a test is checked by its schema, where jsonschema is there."""
    from tests import schemas

    with pytest.MonkeyPatch.context() as patched:
        if schemas.HAS_VALIDATOR:
            schemas.watch(patched)
        yield


def pytest_report_header() -> str:
    """Names the reader that recordings go through."""
    return f"reader: {'native' if find_spec('foretrace._scan') else 'python'}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Removes the cache of this run, where it is this process's."""
    if _CACHE:
        _CACHE.cleanup()
