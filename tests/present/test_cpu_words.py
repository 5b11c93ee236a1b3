"""Every text that a CPU recording gives, in the terminal, as JSON, for agents and on the page: none speaks of a GPU at work."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any

import pytest

from foretrace import analyze
from foretrace.commands import main
from foretrace.diagnose.opening import open_case
from foretrace.errors import ForetraceError
from foretrace.present.web import payload
from foretrace.present.web.recording_view import RecordingView
from tests.builders import Recording
from tests.corpus import ACCURACY, needs_accuracy
from tests.diagnose.cpu_loops import FLOAT, cpu_loop

# What a machine without a GPU has not: a GPU or device that does something, and what is for copies to one.
FORBIDDEN = re.compile(
    r"pin_memory|pinned|non_blocking|ProfilerActivity\.CUDA|"
    r"GPUs? (?:works|waits?|waited|worked|idles|is|was|are|were|computes?|has|needs|can)\b|while the (?:GPU|device)\b"
)
Body = Callable[[Recording, float], None]


def _training(recording: Recording, at: float) -> None:
    recording.python("train.py(1): <module>", at, at + 9_990)
    recording.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 10, at + 4_000)
    recording.op("aten::mm", at + 4_100, at + 8_000, **FLOAT)
    recording.op("aten::relu", at + 8_000, at + 8_100)


def _small(recording: Recording, at: float) -> None:
    for turn in range(60):
        recording.op("aten::add", at + turn * 100, at + turn * 100 + 20, **FLOAT)


def _stretch(recording: Recording, at: float) -> None:
    recording.python("train.py(9): tokenise", at + 10, at + 6_000)
    recording.op("aten::mm", at + 6_100, at + 9_000, **FLOAT)


def _copies(recording: Recording, at: float) -> None:
    for turn in range(4):
        recording.op("aten::contiguous", at + turn * 2_000, at + turn * 2_000 + 1_500, **FLOAT)
        recording.op("aten::mm", at + turn * 2_000 + 1_500, at + turn * 2_000 + 1_900, **FLOAT)


def _optimizer(recording: Recording, at: float) -> None:
    recording.op("aten::mm", at, at + 2_000, **FLOAT)
    recording.annotation("Optimizer.step#Adam.step", at + 2_000, at + 9_000)
    for turn in range(200):
        recording.op("aten::addcmul_", at + 2_000 + turn * 30, at + 2_020 + turn * 30, **FLOAT)


def _uneven(recording: Recording, at: float) -> None:
    """One step of many takes fifty times as long, as where it compiles."""
    recording.op("aten::mm", at, at + (9_900 if int(at) % 50_000 == 20_000 else 200), **FLOAT)


def _printed(*command: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said), suppress(SystemExit):
        main(list(command))
    return said.getvalue()


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """Every text with where it is from."""
    for form in ("table", "json", "md", "agent", "sarif"):
        yield f"diagnose --format {form}", _printed("diagnose", str(path), "--no-cache", "--format", form)
    for command in ("trust", "steps", "overview", "input", "idle"):
        yield f"show {command}", _printed("show", command, str(path), "--no-cache")
    view = RecordingView(open_case(path))
    names = [name for name in payload.RESOURCES if not name.endswith("/") and name not in payload.LIVE]
    names += [f"table/{analysis.name}" for analysis in analyze.ANALYSES]
    names += [f"finding/{number}" for number in range(1, len(view.diagnosis.findings) + 1)]
    for name in names:
        with suppress(ForetraceError):  # what was not recorded has no such part
            answer = payload.resource(view, name)
            if not isinstance(answer, bytes):
                yield f"page {name}", "\n".join(_strings(answer))


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def _check(path: Path) -> None:
    wrong: dict[str, list[str]] = {}
    sources = 0
    for source, text in _texts(path):
        sources += bool(text)
        for match in FORBIDDEN.finditer(text):
            around = " ".join(text[max(match.start() - 60, 0) : match.end() + 60].split())
            wrong.setdefault(around, []).append(source)
    assert sources > 10
    assert not wrong, json.dumps(wrong, indent=1)


@pytest.mark.slow
@pytest.mark.parametrize("body", [_training, _small, _stretch, _copies, _optimizer, _uneven])
def test_no_text_speaks_of_a_gpu(tmp_path: Path, body: Body) -> None:
    _check(cpu_loop(tmp_path, 10_000, body).path)


@needs_accuracy
@pytest.mark.parametrize("program", ["nanogpt_loop", "starved_cnn", "encoder_serving"])
def test_no_text_of_a_recorded_program_speaks_of_a_gpu(program: str) -> None:
    _check(ACCURACY / "cpu" / "recordings" / program)
