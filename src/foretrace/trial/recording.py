"""A program that is to be tried is recorded once as it is, as `foretrace run` would."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from foretrace.capture.masking import keep_log
from foretrace.errors import MissingDataError
from foretrace.trial import process, scratch


def record(
    command: Sequence[str], target: Path, *, step_function: str | None, in_place: bool, timeout_s: float
) -> Path:
    """The Run, made now or there from before."""
    if any(target.glob("rank*/light.json*")):
        return target
    if target.exists():
        raise MissingDataError(f"{target}: holds no recording of the program; name another folder with -o")
    place = Path.cwd()
    if not in_place:
        place = scratch.linked(place, target.parent / "scratch" / "here", leave_out=target.parent)
    log = target.parent / "run.log"
    options = ["--step-function", step_function] if step_function else []
    recording = [
        sys.executable,
        "-m",
        "foretrace",
        "run",
        "-q",
        "--stop-after-capture",
        *options,
        "-o",
        str(target),
    ]
    package = Path(__file__).parents[2]
    paths = [str(package), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    variables = {
        **os.environ,
        **scratch.environment(target.parent / "scratch", {}),
        "PYTHONPATH": os.pathsep.join(os.path.abspath(path) for path in paths),
    }
    with tempfile.TemporaryFile() as file:
        try:
            done = subprocess.run(
                [*recording, "--", *command], env=variables, cwd=place, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                timeout=timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise MissingDataError(
                f"the recording took longer than {timeout_s:g} s (--timeout): {log}"
            ) from error
        finally:
            keep_log(file, log)
    if not any(target.glob("rank*/light.json*")):
        raise MissingDataError(
            f"{process.last_line(log).removeprefix('foretrace: ')} (exit code {done.returncode})"
        )
    return target
