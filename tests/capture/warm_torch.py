"""A process that has imported torch, and runs every program it is told of in a fork of itself: importing takes two seconds,
and the frameworks around torch take three more.

Each line of its input is a request, each line of its output the exit code of a program that has ended.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import subprocess
import sys
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

LONGEST_S = 300
FORKS = sys.platform == "linux"


class WarmTorch:
    """The process, as the tests see it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        atexit.register(self._end)

    def run(
        self, script: Path, *arguments: str, environment: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        """What a program printed and how it ended, as `python -W error SCRIPT` in the folder of the script would."""
        printed = [script.with_suffix(ending) for ending in (".out", ".err")]
        command = [str(script), *arguments]
        request = {"command": command, "environment": dict(environment), "printed": printed}
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(request, default=str).encode() + b"\n")
        self._process.stdin.flush()
        ended, _, _ = select.select([self._process.stdout], [], [], LONGEST_S)
        if not ended:
            os.killpg(self._process.pid, 9)
            warm_torch.cache_clear()
            raise subprocess.TimeoutExpired(str(script), LONGEST_S)
        code = int(self._process.stdout.readline())
        out, err = (path.read_text(encoding="utf-8") for path in printed)
        for path in printed:
            path.unlink()
        return subprocess.CompletedProcess(command, code, out, err)

    def _end(self) -> None:
        self._process.communicate()


@cache
def warm_torch(*modules: str) -> WarmTorch:
    """The process of this test run that has these modules beside torch; it ends with it."""
    return WarmTorch(("torch", *modules))


def next_program() -> dict[str, Any] | None:
    """In a fork, the program to run; in the process itself None, once there are no more requests."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of os.fork() beside threads of a library
            child = os.fork()
        if child == 0:
            return request
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


def become(request: dict[str, Any]) -> types.CodeType:
    """Makes this process look like one that was started with the program; its code."""
    script = Path(request["command"][0])
    os.chdir(script.parent)
    os.environ.clear()
    os.environ.update(request["environment"])
    for number, path in enumerate([os.devnull, *request["printed"]]):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = list(request["command"])
    sys.orig_argv = [sys.executable, "-W", "error", *sys.argv]
    sys.path[0] = str(script.parent)
    return compile(script.read_bytes(), str(script), "exec")


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    if program := next_program():
        code = become(program)
        main = types.ModuleType("__main__")
        main.__file__ = program["command"][0]
        sys.modules["__main__"] = main
        exec(code, main.__dict__)
