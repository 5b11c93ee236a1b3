"""A launched program ends with the process that launched it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = "import os, sys, time; print(os.getpid(), flush=True); time.sleep(600)"


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux tells a child that its parent was killed"
)
def test_a_killed_foretrace_leaves_no_program_running(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "foretrace",
        "run",
        "-o",
        str(tmp_path / "run"),
        "--",
        sys.executable,
        "-c",
        PROGRAM,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as foretrace:
        assert foretrace.stdout is not None
        program = int(foretrace.stdout.readline())
        os.kill(program, 0)
        foretrace.send_signal(signal.SIGKILL)
        foretrace.wait()
        until = time.monotonic() + 60
        while running(program):
            assert time.monotonic() < until, "the program runs on"
            time.sleep(0.02)


def running(pid: int) -> bool:
    """Whether it is there, and has not ended; nobody may have asked how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
