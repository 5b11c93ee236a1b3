"""Inputs that are no files, outputs that cannot be written, and names that no system takes."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from foretrace.commands import main
from foretrace.ingest import open_trace, pipes
from tests.builders import Recording
from tests.ingest.comparison import READERS

LONG = "a" * 300


def recording(count: int = 3) -> Recording:
    made = Recording(deviceProperties=[{"id": 0, "name": "NVIDIA H200", "numSms": 132}])
    made.python("train.py(1): main", 0, 100.0 * count)
    for number in range(count):
        at = 100.0 * number
        made.step(number, at, at + 90)
        made.op("aten::add", at + 10, at + 30)
        made.launch(at + 15, "add", at + 40, at + 70)
    return made


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return recording().write(tmp_path)


def foretrace(*words: object, **more: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "foretrace", *map(str, words)]
    return subprocess.run(command, text=True, timeout=60, check=False, stderr=subprocess.PIPE, **more)  # type: ignore[call-overload]


def fed(fifo: Path, data: bytes) -> threading.Thread:
    """A FIFO, and who writes these bytes into it."""
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(data,), daemon=True)
    writer.start()
    return writer


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_read_to_its_end(tmp_path: Path, reader: str) -> None:
    writer = fed(tmp_path / "fifo", recording(2_000).to_bytes())
    trace = open_trace(tmp_path / "fifo", reader=reader)
    writer.join(60)
    assert len(trace.steps) == 2_000
    assert trace.path.name == "fifo"


@pytest.mark.slow
def test_a_command_reads_a_pipe_as_often_as_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fed(tmp_path / "fifo", recording().to_bytes())
    out = tmp_path / "out.json"
    assert main(["perfetto", str(tmp_path / "fifo"), "-o", str(out)]) == 0
    assert "aten::add" in out.read_text()


@pytest.mark.slow
def test_a_pipe_that_nobody_writes_to_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipes, "PATIENCE_S", 0.1)
    os.mkfifo(tmp_path / "fifo")
    assert main(["diagnose", str(tmp_path / "fifo")]) == 3
    assert "nothing came through this pipe for 0.1 s" in capsys.readouterr().err


def test_a_device_is_no_recording(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", "/dev/zero"]) == 3
    assert "/dev/zero: neither a file nor a pipe" in capsys.readouterr().err


@pytest.mark.slow
def test_standard_input_is_read(path: Path) -> None:
    done = foretrace("summary", "/dev/stdin", input=path.read_text(), stdout=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    assert "3 steps" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("form", ["table", "json"])
def test_a_full_disk_behind_standard_output_is_told(path: Path, form: str) -> None:
    with open("/dev/full", "w") as full:
        done = foretrace("diagnose", path, "--format", form, stdout=full)
    assert (done.returncode, done.stderr) == (
        2, "foretrace: standard output: cannot be written: No space left on device\n",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("command", [("diagnose",), ("summary", "--format", "json")])
def test_a_reader_that_goes_away_is_141(path: Path, command: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as broken:
        done = foretrace(command[0], path, *command[1:], stdout=broken)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["diagnose", f"{LONG}.json"], 3),
        (["diagnose", LONG], 3),
        (["diagnose", "PATH", "--rich", f"{LONG}.json"], 3),
        (["report", "PATH", "-o", f"{LONG}.html"], 2),
        (["perfetto", "PATH", "-o", f"{LONG}.json"], 2),
        (["flame", "PATH", "-o", f"{LONG}.folded"], 2),
    ],
)
def test_names_that_no_system_takes_are_told(
    path: Path, words: list[str], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(path) if word == "PATH" else word for word in words]
    assert main(given) == code
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "internal error" not in said


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("at", [0.2, 0.5, 0.8])
def test_a_damaged_lzma_zip_is_read_as_far_as_it_goes_or_told(
    tmp_path: Path, reader: str, at: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    file = tmp_path / "trace.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("trace.json", recording(400).to_bytes())
    data = bytearray(file.read_bytes())
    place = int(at * (len(data) - 200)) + 60
    data[place : place + 40] = b"\xff" * 40
    file.write_bytes(data)
    if reader == "python":
        monkeypatch.setenv("FORETRACE_PURE_PYTHON", "1")
    assert main(["summary", str(file), "--no-cache"]) in (0, 3)
    assert "internal error" not in capsys.readouterr().err


# --- files appear whole or not at all ------------------------------------------------------------------------

OUTPUTS = [
    ("report", "out.html"),
    ("perfetto", "out.json"),
    ("perfetto", "out.json.gz"),
    ("flame", "out.folded"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_a_disk_that_fills_up_leaves_no_file(
    path: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file may grow beyond 20 bytes, as on a disk that is full."""
    before = sorted(path.parent.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        code = main([command, str(path), "--no-cache", "-o", str(path.parent / name)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert code == 2
    says = capsys.readouterr().err
    assert "out" in says
    assert "cannot be written: File too large" in says
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.slow
@pytest.mark.parametrize(("command", "name"), OUTPUTS)
def test_what_was_there_stays_where_the_new_cannot_be_written(
    path: Path, command: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = path.parent / name
    out.write_text("before")

    def fails(self: Path, _: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fails)
    assert main([command, str(path), "--no-cache", "-o", str(out), "--force"]) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert out.read_text() == "before"
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([name, "trace.json"])


def test_a_written_file_has_the_usual_mode_and_a_link_stays_one(path: Path) -> None:
    out, link = path.parent / "out.folded", path.parent / "link.folded"
    link.symlink_to(out)
    mask = os.umask(0o027)
    try:
        assert main(["flame", str(path), "--no-cache", "-o", str(link), "--force"]) == 0
    finally:
        os.umask(mask)
    assert link.is_symlink()
    assert out.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("command", "name"), [("flame", "out.folded"), ("report", "out.html"), ("perfetto", "out.json")]
)
def test_a_link_that_leads_nowhere_is_not_followed_without_force(
    path: Path, capsys: pytest.CaptureFixture[str], command: str, name: str
) -> None:
    link, elsewhere = path.parent / name, path.parent / f"elsewhere-{name}"
    link.symlink_to(elsewhere)
    assert main([command, str(path), "--no-cache", "-o", str(link)]) == 2
    assert "will not overwrite without --force" in capsys.readouterr().err
    assert not elsewhere.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_device_says_so(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(path), "--no-cache", "-o", "/dev/full"]) == 2
    said = capsys.readouterr().err
    assert "/dev/full: cannot be written: No space left on device" in said
    assert said.count("\n") == 1
