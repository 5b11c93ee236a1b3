"""Launching: a command is started so that Foretrace records it, and outlives it to write down how it ended."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from foretrace.capture import line_files, line_sampler
from foretrace.capture.hidden_files import remove_leftovers
from foretrace.capture.options import LIGHT, MEMORY, RICH, VARIABLE, CaptureOptions
from foretrace.capture.run_folder import RunFolder
from foretrace.errors import UsageError

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
BOOTSTRAP = Path(__file__).parent / "bootstrap"


def start(
    command: Sequence[str], options: CaptureOptions, environment: Mapping[str, str] | None = None
) -> int:
    """Runs the command armed; returns its exit code, as a shell would give it."""
    variables = {**os.environ, **(environment or {}), VARIABLE: options.to_json()}
    paths = [str(BOOTSTRAP), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables["PYTHONPATH"] = os.pathsep.join(paths)
    variables.pop(line_sampler.VARIABLE, None)  # of a `foretrace run` around this one
    if options.lines and {LIGHT, RICH, MEMORY}.issuperset(options.passes):
        lines = line_files.folder_of(Path(options.output).absolute())
        lines.mkdir(parents=True, exist_ok=True)
        variables[line_sampler.VARIABLE] = str(lines)
    if options.launch_blocking:
        variables["CUDA_LAUNCH_BLOCKING"] = "1"
    try:
        program = subprocess.Popen(command, env=variables, preexec_fn=_ends_with_this_process())
        with _signals_to(program):
            code = program.wait()
    except OSError as error:
        raise UsageError(f"cannot start {command[0]}: {error.strerror or error}") from error
    finally:
        _publish_lines(RunFolder(options.output))
    return 128 - code if code < 0 else code


def _publish_lines(run: RunFolder) -> None:
    """The sampler's files, where there is room for them: the recordings matter more."""
    try:
        line_files.publish(run)
    except OSError as error:
        sys.stderr.write(f"foretrace: the sampled lines could not be written: {error}\n")


def _ends_with_this_process() -> Callable[[], None] | None:
    """What the program does before it starts, so that it is terminated should this process be killed; Linux only.

    Without that, `kill -9` of foretrace would leave a program running that nobody waits for.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        prctl = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):  # a C library without it
        return None
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it could be watched
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


@contextmanager
def _signals_to(program: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals are the program's: this process outlives it, to write down how it ended."""

    def forward(number: int, _: FrameType | None) -> None:
        # A terminal sends Ctrl-C to all of its foreground group, so the program has it already.
        if number != signal.SIGINT or not _in_foreground():
            with suppress(OSError):
                program.send_signal(number)

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, forward) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except (OSError, AttributeError):
        return False


def collect_notes(folder: RunFolder) -> list[str]:
    """What the program's processes left to say; their files are removed."""
    slips = folder.path / ".notes"
    notes = [slip.read_text(encoding="utf-8", errors="replace") for slip in sorted(slips.glob("*.txt"))]
    shutil.rmtree(slips, ignore_errors=True)
    for rank_folder in folder.path.glob("rank*/"):
        (rank_folder / ".claim").unlink(missing_ok=True)
        remove_leftovers(rank_folder)
    if any(folder.path.glob("rank*")):
        return [note for note in notes if "no step was found" not in note]
    return notes or [
        "no process of the program imported torch under Foretrace (python -I, -E or -S prevent it)"
    ]
