"""One variant of a program, in a process of its own: started, watched, and ended with all that it started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretrace.capture.launch import BOOTSTRAP
from foretrace.capture.masking import keep_log
from foretrace.capture.trial_options import VARIABLE, TrialOptions
from foretrace.errors import UsageError

MEASURED, FAILED, NO_STEPS, TOO_LONG, TOO_LARGE = "measured", "failed", "no steps", "too long", "too large"
_POLL_S, _LOOK_S = 0.02, 0.5
_LAST_LINES = 40  # of the log, in which the error is looked for


@dataclass(frozen=True)
class Limits:
    """What a variant may take before it is ended."""

    time_s: float = 300.0
    memory_bytes: int | None = None  # of the host, by all of its processes together


def run(
    command: Sequence[str],
    options: TrialOptions,
    *,
    log: Path,
    folder: Path,
    environment: Mapping[str, str],
    limits: Limits,
) -> dict[str, Any]:
    """Runs the variant in `folder`; what its process wrote down, with a status and what went wrong."""
    output = Path(options.output)
    for leftover in (output, Path(f"{output}.claim")):
        leftover.unlink(missing_ok=True)
    paths = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    # Relative entries are of the folder in which the user stands.
    paths = [os.path.abspath(path) for path in os.pathsep.join(paths).split(os.pathsep)]
    variables = {
        **os.environ,
        **environment,
        VARIABLE: options.to_json(),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    variables.pop("FORETRACE_CAPTURE", None)
    began = time.monotonic()
    with tempfile.TemporaryFile() as file:
        try:
            program = subprocess.Popen(
                command, env=variables, cwd=folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )  # fmt: skip
        except OSError as error:
            raise UsageError(f"cannot start {command[0]}: {error.strerror or error}") from error
        try:
            stopped = _wait(program, output, limits)
        finally:
            _end(program)
            keep_log(file, log)
    Path(f"{output}.claim").unlink(missing_ok=True)
    return {**_outcome(program, output, log, stopped), "took_s": time.monotonic() - began}


def _wait(program: subprocess.Popen[bytes], output: Path, limits: Limits) -> str:
    """Until the program has ended or has written what was measured; why it was stopped otherwise."""
    began = looked = time.monotonic()
    while program.poll() is None and not output.exists():
        time.sleep(_POLL_S)
        now = time.monotonic()
        if now - began > limits.time_s:
            return TOO_LONG
        if limits.memory_bytes is not None and now - looked > _LOOK_S:
            looked = now
            if session_bytes(program.pid) > limits.memory_bytes:
                return TOO_LARGE
    return ""


def _end(program: subprocess.Popen[bytes]) -> None:
    """Ends the program and its children, such as workers and other ranks."""
    with suppress(subprocess.TimeoutExpired):
        program.wait(1.0 if program.poll() is None else 0.0)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, signal.SIGKILL)
    program.wait()


def session_bytes(session: int) -> int:
    """The memory that the processes of a session hold, as Linux tells it; 0 elsewhere."""
    total = 0
    page = os.sysconf("SC_PAGE_SIZE")
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                total += int(stat.with_name("statm").read_text().split()[1]) * page
    return total


def _outcome(program: subprocess.Popen[bytes], output: Path, log: Path, stopped: str) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    if facts and not facts["problem"]:
        return {**facts, "status": MEASURED, "error": ""}
    if stopped:
        return {**facts, "status": stopped, "error": last_line(log)}
    if program.returncode and not facts:
        return {"status": FAILED, "error": last_line(log)}
    if facts:
        error = facts["problem"] if program.returncode == 0 else last_line(log)
        return {**facts, "status": FAILED if program.returncode else NO_STEPS, "error": error}
    return {"status": NO_STEPS, "error": "the program ended, and no step was found"}


def last_line(log: Path) -> str:
    """The last line of a log that names an error; else the last one that says something."""
    text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    errors = [
        line for line in lines if "Error" in line.partition(":")[0] or "Exception" in line.partition(":")[0]
    ]
    return ([*lines, *errors] or ["nothing was said"])[-1][:300]
