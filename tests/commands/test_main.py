from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import foretrace
from foretrace import analyze, ingest
from foretrace.commands import COMMANDS, main, show
from foretrace.errors import ForetraceError, InputError, MissingDataError, UsageError
from tests.builders import Recording


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    made = Recording().step(1, 0, 100).op("aten::add", 5, 20).launch(10, "add_kernel", 30, 60)
    return made.write(tmp_path)


def test_help_is_light() -> None:
    code = (
        "import sys; from foretrace.commands import main; code = main(['--help']); "
        "print(code, [name for name in ('polars', 'numpy', 'rich', 'torch', 'foretrace.commands.run') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


def test_help_names_every_command_with_its_first_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for command in COMMANDS:
        assert f"{command.name} {(command.module.__doc__ or '').splitlines()[0]}" in shown


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "usage: foretrace" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"foretrace {foretrace.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["sho"], 2, "no command or file named 'sho'; did you mean show?"),
        (["xyzzy"], 2, "no command or file named 'xyzzy'; commands: demo, "),
        (["--nonsense"], 2, "unrecognized arguments: --nonsense"),
        (["absent.json"], 3, "absent.json: No such file or directory"),
        (["show"], 2, "name an analysis; foretrace show --list lists them"),
        (["show", "nothing", "x"], 2, "no analysis named 'nothing'; there are: trust, "),
        (["show", "kernal", "x"], 2, "no analysis named 'kernal'; did you mean kernels?"),
        (["show", "."], 2, "name an analysis before the path: foretrace show NAME ."),
        (["diagnose", "--explain", "host_snyc"], 2, "no rule named 'host_snyc'; did you mean host-sync?"),
        (["diagnose", "--explain", "xyzzy"], 2, "no rule named 'xyzzy'; there are: unfused-attention, "),
        (["show", "steps"], 2, "the following arguments are required: PATH"),
        (["show", "steps", "x", "--limit", "-1"], 2, "'-1' is not a number of rows"),
        (["show", "steps", "x", "--limit", "many"], 2, "'many' is not a number of rows"),
        (["show", "steps", "x", "--format", "xml"], 2, "invalid choice: 'xml'"),
        (
            ["show", "steps", "x", "--format", "jsn"],
            2,
            "; did you mean json? (see foretrace show steps --help)",
        ),
        (["show", "steps", "x", "--limt", "3"], 2, "unrecognized arguments: --limt 3; did you mean --limit?"),
        (["diagnose", "x", "--step_ms=3"], 2, "did you mean --step-ms?"),
        (
            ["run", "--quit", "--", "python"],
            2,
            "did you mean --quiet?",
        ),
        (["compare", "a", "b", "--by", "kernal"], 2, "did you mean kernels?"),
        (
            ["compare", "a", "b", "--fail-on", "steps_ms > +3%"],
            2,
            "no value named 'steps_ms'; did you mean step_ms?",
        ),
        (["bench", "matmull"], 2, "nothing to time named 'matmull'; did you mean matmul?"),
        (["try", "--only", "fused-optimiser", "--", "python"], 2, "did you mean fused-optimizer?"),
        (["ranks", ".", "--on", "rya"], 2, "no engine 'rya'; did you mean ray?"),
        (["schema", "diagnosis"], 2, "no schema named 'diagnosis'; did you mean diagnose?"),
        (["completion", "bsh"], 2, "did you mean bash?"),
        (["summary", "\x1b[31m.json"], 3, "\\x1b[31m.json: No such file"),
    ],
)
def test_errors_are_one_line_with_their_code(
    arguments: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("foretrace: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (UsageError("bad\nflag"), 2, "foretrace: bad flag\n"),
        (InputError("broken"), 3, "foretrace: broken\n"),
        (MissingDataError("not there"), 4, "foretrace: not there\n"),
        (ForetraceError("gate"), 1, "foretrace: gate\n"),
        (KeyboardInterrupt(), 130, "foretrace: interrupted\n"),
        (
            ValueError("of\nours"),
            70,
            "foretrace: internal error: ValueError: of ours "
            "(please report; set FORETRACE_DEBUG=1 for the traceback)\n",
        ),
        (
            pl.exceptions.PanicException("inside"),
            70,
            "foretrace: internal error: PanicException: inside "
            "(please report; set FORETRACE_DEBUG=1 for the traceback)\n",
        ),
        (
            RecursionError(),
            70,
            "foretrace: internal error: RecursionError (please report; set FORETRACE_DEBUG=1 for the traceback)\n",
        ),
    ],
)
def test_every_exception_has_its_code(
    error: BaseException,
    code: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(_: object) -> None:
        raise error

    monkeypatch.setattr("foretrace.commands.doctor.run", fail)
    monkeypatch.delenv("FORETRACE_DEBUG", raising=False)
    assert main(["doctor"]) == code
    assert capsys.readouterr().err == says


def test_a_current_folder_that_was_removed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(["try", "--only", "tf32", "--", "python", "train.py"]) == 3
    assert (
        capsys.readouterr().err
        == "foretrace: the current folder was removed: change into one that is there\n"
    )


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("foretrace.commands.doctor.run", lambda _: 1 // 0)
    monkeypatch.setenv("FORETRACE_DEBUG", "1")
    assert main(["doctor"]) == 70
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_any_output_encoding_works(
    encoding: str, recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = io.BytesIO()
    stream = io.TextIOWrapper(printed, encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stream)
    assert main(["summary", str(recording)]) == 0
    stream.flush()
    assert capsys.readouterr().err == ""
    shown = printed.getvalue().decode(encoding)
    assert "add_kernel" in shown
    assert ("30.0 us" if encoding == "ascii" else "30.0 µs") in shown
    assert "?" not in shown


@pytest.mark.slow
def test_bare_path_is_the_diagnosis(recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(recording)]) == 0
    bare = capsys.readouterr().out
    assert main(["diagnose", str(recording)]) == 0
    assert bare == capsys.readouterr().out
    assert "findings" in bare


def test_a_recording_that_cannot_be_replayed_still_gets_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "host.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps({"traceEvents": [event]}))
    assert main([str(path)]) == 0
    page = capsys.readouterr().out
    assert "aten::add" in page
    assert "nothing to replay" in page
    assert main([str(path), "--format", "json"]) == 4


@pytest.mark.slow
def test_every_analysis_has_its_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    for each in analyze.ANALYSES:
        assert main(["show", each.name, "--help"]) == 0
        shown = capsys.readouterr().out
        for option in each.options:
            if option not in show._TAKEN:
                assert f"--{option.replace('_', '-')}" in shown


@pytest.mark.parametrize("content", [b"", b"{", b"\x1f\x8b\x08\x00garbage", b"\x00" * 100, b"hello"])
def test_what_is_no_recording_is_exit_3(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    for arguments in ([str(path)], ["show", "overview", str(path)], ["sql", str(path), "select 1"]):
        assert main(arguments) == 3
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [["summary", "PATH"], ["PATH"], ["show", "trust", "PATH"], ["sql", "PATH", "select 1"], ["demo"]],
    ids=" ".join,
)
def test_no_cache_reaches_the_reader(
    arguments: list[str], recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []
    real = ingest.open_trace

    def spy(path: Path, *, cache: bool, **options: Any) -> foretrace.Trace:
        asked.append(cache)
        return real(path, cache=False, **options)

    monkeypatch.setattr(ingest, "open_trace", spy)
    given = [str(recording) if each == "PATH" else each for each in arguments]
    assert main(given) == 0
    assert main([*given, "--no-cache"]) == 0
    assert asked == [True, False]
