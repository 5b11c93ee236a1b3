"""A bounded run of the fuzzers; `python tests/fuzz/run.py` runs more."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.fuzz import mutations, other_formats, own_files, run
from tests.ingest import fuzz as scanners
from tests.ingest.comparison import needs_native

pytestmark = pytest.mark.exhaustive
READ, DIAGNOSED, REPORTED, COMPARED, COUNTED, NSYS, PAGES = (
    int(os.environ.get(f"FORETRACE_FUZZ_{name}", default))
    for name, default in (
        ("READER", "400"),
        ("DIAGNOSE", "20"),
        ("REPORT", "2"),
        ("COMPARE", "10"),
        ("NCU", "30"),
        ("NSYS", "60"),
        ("SQLITE", "1000"),
    )
)
OTHER = int(os.environ.get("FORETRACE_FUZZ_OTHER", "12"))  # of each format that is not Kineto's


@pytest.fixture(autouse=True)
def loud(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRACE_FAULTS", "raise")
    monkeypatch.setenv("FORETRACE_DEBUG", "1")


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("reader", READ),
        ("diagnose", DIAGNOSED),
        ("report", REPORTED),
        ("compare", COMPARED),
        *((kind, OTHER) for kind in (*other_formats.FORMATS, *own_files.KINDS)),
        ("ncu", COUNTED),
        ("nsys", NSYS),
        pytest.param("sqlite", PAGES, marks=needs_native),
    ],
)
def test_nothing_fails_or_hangs_on_damaged_recordings(tmp_path: Path, kind: str, count: int) -> None:
    problems = {case: run.attempt(kind, case, 7, tmp_path) for case in range(count)}
    assert {case: problem for case, problem in problems.items() if problem} == {}


def test_a_case_is_always_the_same_input() -> None:
    for kind in ("reader", "diagnose"):
        assert run.made(kind, 3, 1)[0] == run.made(kind, 3, 1)[0]
        assert run.made(kind, 3, 1)[0] != run.made(kind, 4, 1)[0]


def test_mutations_change_something_and_leave_the_recording_as_it_was() -> None:
    """Of a hundred damaged copies nearly all differ from the recording, and it stays whole."""
    document, text = run.seeds()[4]
    before = repr(document)
    damaged = {mutations.mutate(document, text, random.Random(seed)) for seed in range(100)}
    assert len(damaged - {text}) > 90
    assert repr(document) == before


def test_a_fault_a_hang_and_a_difference_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("broken on purpose")

    def endless(*_: object, **__: object) -> None:
        while True:
            pass

    with monkeypatch.context() as patched:
        patched.setattr("foretrace.diagnose.opening.open_case", broken)
        assert "broken on purpose" in str(run.attempt("diagnose", 0, 7, tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(run, "HANG_S", 0.2)
        patched.setattr(run, "read", endless)
        assert "HangError" in str(run.attempt("reader", 0, 7, tmp_path))
    with monkeypatch.context() as patched:
        patched.setattr(scanners, "differences", lambda *_: ["spans.name: a != b"])
        patched.setattr("foretrace.ingest.kineto_native.missing", None)
        assert "readers differ" in str(run.attempt("reader", 0, 7, tmp_path))


@needs_native
@pytest.mark.parametrize(
    "phase", ["\\ud800", "\\u202e", "\\u0000", "\\u0058", "\\u004D", "\\u00e9", "é", "ж", "\\n", ".", "7", "(", " ", "XX", ""]
)  # fmt: skip
def test_readers_agree_on_what_a_phase_is(phase: str) -> None:
    text = f'{{"traceEvents": [{{"ph": "{phase}", "name": "a", "pid": 1, "tid": 2, "ts": 3, "dur": 4}}, {{"ph": "X", "ts": 1}}]}}'
    assert scanners.differences(text.encode(), random.Random(0)) == []
