"""The notebook's cell magic: `%load_ext foretrace`, then `%%foretrace` as the first line of a cell.

The cell runs once, recorded as by `foretrace.profile`, with the options of `foretrace run`. With `--loop` it is one step,
and runs again and again until everything is recorded.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import subprocess
import sys
import time
from dataclasses import fields
from typing import Any, NoReturn

from foretrace.capture import arguments
from foretrace.capture.api import profile
from foretrace.errors import UsageError


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%foretrace: {message}; there are: {self.format_usage().split(':', 1)[1].strip()}")


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext foretrace` calls."""

    def magic(line: str, cell: str) -> None:
        try:
            run_cell(shell, line, cell)
        except UsageError as error:
            # IPython's own: shown as one line, and later cells of the notebook do not run.
            raise importlib.import_module("IPython.core.error").UsageError(str(error)) from None

    magic.__doc__ = _parser().format_help()
    shell.register_magic_function(magic, magic_kind="cell", magic_name="foretrace")


def run_cell(shell: Any, line: str, cell: str) -> profile:
    """Runs a cell, recorded; then shows the diagnosis, unless told not to."""
    parsed = _parser().parse_args(shlex.split(line))
    asked = arguments.options(parsed, output="")
    chosen = {field.name: getattr(asked, field.name) for field in fields(asked) if field.name != "output"}
    with profile(parsed.output, **chosen) as recording:
        if parsed.loop:
            _loop(shell, cell, recording, parsed.limit_s)
        else:
            # Shows the cell's value and its errors as if there were no magic.
            done = shell.run_cell(cell)
            failed = done.error_before_exec or done.error_in_exec
            if failed is not None:
                recording.close(f"the program raised {type(failed).__name__}")
                raise UsageError(f"%%foretrace: the cell raised {type(failed).__name__}; see above")
    if recording.path is not None and not parsed.quiet:
        sys.stdout.write(_diagnosis(str(recording.path)))
    return recording


def _loop(shell: Any, cell: str, recording: profile, limit_s: float) -> None:
    code = compile(shell.transform_cell(cell), "<cell recorded by foretrace>", "exec")
    ends_at = time.monotonic() + limit_s
    while not recording.finished and time.monotonic() < ends_at:
        exec(code, shell.user_ns)
        recording.step()


def _diagnosis(path: str) -> str:
    """What `foretrace PATH` prints, from a process of its own: the notebook's stays as it was."""
    environment = {name: value for name, value in os.environ.items() if name != "FORETRACE_CAPTURE"}
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (package, environment.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-P", "-m", "foretrace", path],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    return done.stdout or f"{done.stderr.strip()}\n"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%foretrace", description="Record the steps of this cell.", add_help=False)
    parser.add_argument(
        "-o", "--output", metavar="FOLDER", help="the Run folder; by default foretrace-runs/..."
    )
    parser.add_argument("--loop", action="store_true", help="the cell is one step: repeat it until recorded")
    parser.add_argument("--limit-s", type=float, default=60.0, help="end the loop after so many seconds")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show the diagnosis")
    arguments.add(parser)
    return parser
