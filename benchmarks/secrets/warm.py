"""Recording in forks of a process that has torch and Foretrace imported: an import takes longer than a run.

What `foretrace run` starts is then a fork of `foretrace run`, armed by hand in place of `sitecustomize`. All else is as ever.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn


def load() -> None:
    """Imports what runs need, and starts no thread."""
    import polars  # noqa: F401
    import torch  # noqa: F401

    import foretrace.commands
    import foretrace.diagnose
    import foretrace.present.web.recording_view  # noqa: F401


class Forked:
    """As much of a Popen as is needed."""

    def __init__(
        self,
        work: Callable[[], object],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdout: int | None = None,
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            if cwd is not None:
                os.setsid()
                os.chdir(cwd)
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(nothing, 2)
            if stdout is not None:
                os.dup2(stdout, 1)
            # What this process printed to may be a file, and a pipe takes its place.
            sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
            os.environ.clear()
            os.environ.update(env)
            _end(_code_of(work))

    def wait(self, _: float | None = None) -> int:
        """The exit code, or a signal as a negative number."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """To the fork."""
        os.kill(self.pid, number)


def launcher(words: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: int) -> Forked:
    """`foretrace WORDS`, which starts its program as a fork."""

    def launch() -> object:
        from foretrace.capture import launch as launching
        from foretrace.commands import main

        starts = SimpleNamespace(
            Popen=lambda command, env, preexec_fn=None: Forked(lambda: _program(command), env=env)
        )
        launching.subprocess = starts  # type: ignore[assignment,attr-defined]
        return main(list(words))

    return Forked(launch, env=env, cwd=cwd, stdout=stdout)


def script(path: Path, arguments: Sequence[str], *, env: Mapping[str, str], cwd: Path, stdout: int) -> Forked:
    """A Python file, run in a fork."""
    return Forked(lambda: _run(path, arguments), env=env, cwd=cwd, stdout=stdout)


def _program(command: Sequence[str]) -> None:
    from foretrace.capture import session

    if (known := sys.modules.get("foretrace.capture.known_secrets")) is not None:  # an older version has none
        known.forget()
    sys.orig_argv = list(command)
    sys.argv = list(command[1:])
    session.arm()
    _run(Path(command[1]), command[2:])


def _run(path: Path, arguments: Sequence[str]) -> None:
    sys.argv = [str(path), *arguments]
    runpy.run_path(str(path), run_name="__main__")


def _code_of(work: Callable[[], object]) -> int:
    try:
        code = work()
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        sys.last_value = error
        traceback.print_exc()
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return code if isinstance(code, int) else 0


def _end(code: int) -> NoReturn:
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
