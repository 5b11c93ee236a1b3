"""--step, --pid and --capture-trace, in every command that reads a recording."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import foretrace
from foretrace.commands import _input, main
from foretrace.diagnose.case import Case
from foretrace.ingest.reading import Reading
from foretrace.present.web.library import Library
from foretrace.present.web.recording_view import RecordingView
from foretrace.trace import Trace
from tests.builders import Recording
from tests.ingest.graph_files import STEP, Program
from tests.ingest.test_processes import two_ranks
from tests.ingest.test_step_marks import loop, server

CHANGE = ("--change", "scale kernel:gemm 0.5")


def recording_of(library: Library, run: str) -> Trace:
    view = library.view(library.run(run))
    assert isinstance(view, RecordingView)
    return view.trace


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """Five iterations that nothing marks as steps, each with two ranges."""

    def mark(recording: Recording, _: int, start: float) -> None:
        for half in ("first", "second"):
            begin = start + (50 if half == "first" else 500)
            recording.annotation(f"{half} half", begin, begin + 450)

    return loop(mark).write(tmp_path)


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (("summary", "--format", "json"), lambda told: told["results"]["steps"]["values"]["step_count"]),
        (("show", "steps", "--format", "json"), lambda told: told["values"]["step_count"]),
        (("diagnose", "--format", "json"), lambda told: told["overview"]["steps"]),
    ],
)
def test_commands_that_tell_the_steps(
    words: tuple[str, ...], steps: object, halves: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = words
    name = [rest.pop(0)] if command == "show" else []
    assert main([command, *name, str(halves), *rest, "--no-cache", "--step", "second half"]) == 0
    assert steps(json.loads(capsys.readouterr().out)) == 5  # type: ignore[operator]


@pytest.mark.slow
def test_predictions_are_of_the_named_steps(halves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    per_step = []
    for name in ("second half", "~half"):
        assert main(["predict", str(halves), *CHANGE, "--no-cache", "--format", "json", "--step", name]) == 0
        per_step.append(json.loads(capsys.readouterr().out)["step_ms"])
    assert per_step[0] > 1.5 * per_step[1]  # ten half iterations instead of five


@pytest.mark.slow
def test_commands_that_write_a_file(halves: Path, tmp_path: Path) -> None:
    report, perfetto = tmp_path / "out.html", tmp_path / "out.json"
    assert main(["report", str(halves), "-o", str(report), "--no-cache", "--step", "third half"]) == 4
    assert main(["report", str(halves), "-o", str(report), "--no-cache", "--step", "second half"]) == 0
    assert main(["perfetto", str(halves), "-o", str(perfetto), "--no-cache", "--step", "second half"]) == 0
    assert "Step 4" in {event.get("name") for event in json.loads(perfetto.read_bytes())["traceEvents"]}


@pytest.mark.slow
def test_sql(halves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "select count(*) as found from spans where step = 4"
    assert main(["sql", str(halves), query, "--no-cache", "--format", "csv", "--step", "second half"]) == 0
    assert int(capsys.readouterr().out.split()[1]) > 0


def test_a_name_that_is_not_there(halves: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["summary", str(halves), "--no-cache", "--step", "third half"]) == 4
    assert "ranges that repeat: first half (5), second half (5)" in capsys.readouterr().err


@pytest.mark.slow
def test_the_page_reads_what_was_asked_for(halves: Path, tmp_path: Path) -> None:
    merged = two_ranks().write(tmp_path, "merged.json")
    for path, reading, kernels in (
        (halves, Reading(step="second half"), {"gemm"}),
        (merged, Reading(pid="200"), {"of_second"}),
    ):
        library = Library([path], cache=False, settle_s=0, reading=reading)
        run = library.runs()["runs"][0]["id"]
        trace = recording_of(library, run)
        assert len(trace.steps) == (5 if reading.step else 6)
        assert set(trace.device_spans["name"].to_list()) == kernels
        assert library.resource(run, "overview", {}) is not None


def test_pid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = two_ranks().write(tmp_path)
    assert main(["show", "kernels", str(path), "--no-cache", "--format", "json", "--pid", "200"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["of_second"]
    assert main(["show", "kernels", str(path), "--no-cache", "--pid", "7"]) == 2
    assert "no process 7 in it; there are: 100, 200" in capsys.readouterr().err


def test_a_case_looks_at_steps_of_one_kind(tmp_path: Path) -> None:
    case = Case(server(decodes=20).open(tmp_path))
    assert case.looked_at == "decode steps 1 to 20, 20 of the 24 recorded"
    assert {step.kind for step in case.trace.steps} == {"decode"}
    assert case.step_count == 20
    assert case.step_ns <= 300_000  # a mean over all steps would be 443 us
    assert "looked at: decode steps 1 to 20" in case.calibration.basis


def test_the_terminal_names_the_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = server(decodes=20).write(tmp_path)
    assert main(["summary", str(path), "--no-cache"]) == 0
    out = capsys.readouterr().out
    assert "22 decode steps of 300 µs" in out
    assert "0 prefill" in out
    assert "1 decode" in out


@pytest.fixture
def captured(tmp_path: Path) -> tuple[Path, Path]:
    """A recording of replays of a CUDA graph, and a folder with the recording of its capture."""
    replays = Program()
    for _ in range(3):
        replays.replay(STEP, label="execute_context_0(0)_generation_8(8)")
    folder = tmp_path / "captures"
    folder.mkdir()
    Program().capture(STEP).recording.write(folder)
    return replays.recording.write(tmp_path, "replays.json"), folder


@pytest.mark.slow
def test_capture_traces_of_every_command(
    captured: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = captured
    given = ("--no-cache", "--capture-trace", str(folder))
    assert main(["show", "graphs", str(path), *given, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"]["captured_pct"] == 100
    assert main(["show", "modules", str(path), *given, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"][0]["path"] == "Model_0"
    assert main(["summary", str(path), *given, "--format", "json"]) == 0
    notes = {row["code"]: row for row in json.loads(capsys.readouterr().out)["results"]["trust"]["rows"]}
    assert notes["graph-operators"]["share_pct"] == 100
    assert main(["diagnose", str(path), *given, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["trust"]["notes"]
    assert next(note for note in told if note["code"] == "graph-operators")["values"]["share_pct"] == 100
    assert main(["predict", str(path), *given, "--change", "scale op:aten::mm 0.5"]) == 0
    report = tmp_path / "out.html"
    assert main(["report", str(path), *given, "-o", str(report)]) == 0
    assert report.stat().st_size > 0
    reading = Reading(capture_traces=(foretrace.open(folder / "trace.json", cache=False),))
    library = Library([path], cache=False, settle_s=0, reading=reading)
    run = library.runs()["runs"][0]["id"]
    assert recording_of(library, run).modules.height == 5


@pytest.mark.parametrize(("content", "says"), [(None, "No such file"), ("{}", "not a recording")])
def test_a_capture_trace_that_cannot_be_read(
    captured: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    says: str,
) -> None:
    other = tmp_path / "other.json"
    if content is not None:
        other.write_text(content, encoding="utf-8")
    assert main(["show", "graphs", str(captured[0]), "--no-cache", "--capture-trace", str(other)]) == 3
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "other.json" in line
    assert says in line


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at threads as Linux shows them")
def test_libraries_are_loaded_without_threads_that_nothing_needs() -> None:
    """On a processor of many cores each would spin for nothing. Programs that are started later inherit nothing of it."""
    program = (
        "import os; from pathlib import Path; from foretrace.commands import _input; before = dict(os.environ); "
        "_input._load_libraries(); names = [each.read_text() for each in Path('/proc/self/task').glob('*/comm')]; "
        "print(names.count(Path('/proc/self/comm').read_text()), dict(os.environ) == before)"
    )
    environment = {name: value for name, value in os.environ.items() if name not in _input._SETTINGS}
    told = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["1", "True"]


@pytest.mark.slow
def test_settings_of_the_user_stand() -> None:
    program = "import os; from foretrace.commands import _input; _input._load_libraries(); print(os.environ['OPENBLAS_NUM_THREADS'])"
    told = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "3"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.strip() == "3"
