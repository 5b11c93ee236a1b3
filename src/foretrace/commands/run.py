"""Record a program without changing it, and diagnose the recording."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretrace._version import __version__
from foretrace.capture import arguments, external, launch
from foretrace.capture.options import (
    LIGHT,
    RICH,
    CaptureOptions,
)
from foretrace.capture.run_folder import RankRecord, Run, RunFolder
from foretrace.commands import _output
from foretrace.errors import ForetraceError, MissingDataError, UsageError
from foretrace.units import visible
from foretrace.urls import here

NOTHING_RECORDED = MissingDataError.exit_code  # of a program that itself ended well
_EXAMPLES = """\
examples:
  foretrace run -- python train.py --epochs 1
  foretrace run --stop-after-capture -- torchrun --nproc-per-node 8 train.py
  foretrace run --wait 5 --warmup 2 --active 3 -- python -m package.train
  foretrace run --step-function train:train_one_batch -- python main.py

The program's output and exit code stay as they are; where the program ended well and nothing was recorded, the exit code
is 4. Step times are measured before any profiler runs, kernel and
operator times come from the light pass, source lines and memory from the rich pass.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options, in groups, and the command after them."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.usage = "foretrace run [options] -- COMMAND [ARGUMENT ...]"
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the program to record"
    )
    _add_output(parser)
    arguments.add(parser)
    parser.add_argument(
        "--launch-blocking",
        action="store_true",
        help="set CUDA_LAUNCH_BLOCKING=1: each kernel runs inside its launch call; times are then not representative",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=here,
        metavar="FOLDER",
        help="where to write the recordings (default: foretrace-runs/NAME-DATE)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress, cost or diagnosis")
    group.add_argument(
        "--stop-after-capture", action="store_true", help="stop the program once everything is recorded"
    )
    group.add_argument(
        "--with",
        dest="tool",
        choices=external.TOOLS,
        help="run the program once more under this NVIDIA profiler, over the same steps",
    )


def run(args: argparse.Namespace) -> int:
    """Starts the program, waits for it, says what was recorded; returns the program's exit code.

    A program that ended well, and of which nothing was recorded, is no success: then the code says so.
    """
    from foretrace.capture import environment  # what it needs is slow to load, and `--help` needs none of it

    command = program_of(args.command)
    folder = (RunFolder(args.output) if args.output else RunFolder.default(command)).create()
    options = replace(
        arguments.options(args, output=str(folder.path)),
        launch_blocking=args.launch_blocking,
        stop_after_capture=args.stop_after_capture,
    )
    facts = {
        "foretrace": __version__,
        **environment.describe(command),
        "started_at": _now(),
        "ended_at": None,
        "exit_code": None,
        "options": options.to_dict(),
        "launch_blocking": options.launch_blocking,
        "notes": [],
    }
    folder.write_run(facts)
    say = _quiet if args.quiet else _say
    say(f"recording into {_shown(folder.path)}")
    if options.launch_blocking:
        say("CUDA_LAUNCH_BLOCKING=1: kernels run one at a time, so times and overlap are not representative")
    began = time.monotonic()
    code = launch.start(command, options)
    recorded = None
    with _output.told(_say):
        facts.update(ended_at=_now(), exit_code=code, notes=launch.collect_notes(folder))
        with _output.told(_say):
            folder.write_run(facts)
        recorded = RunFolder.read(folder.path)
        _say_what_was_recorded(recorded, time.monotonic() - began, say)
        if args.tool and code == 0:
            _run_tool(args.tool, command, options, recorded, say)
        if not args.quiet:
            sys.stderr.flush()
            _print_diagnosis(folder.path, recorded)
            sys.stdout.flush()
    if (
        recorded is None
        or _recordings(recorded)
        or any(rank.snapshots_at_failure() for rank in recorded.ranks)
    ):
        return code
    # Where the exit code is Foretrace's, it needs a reason even if nothing else is to be said.
    (say if code else _say)(_what_to_do(recorded))
    return code or NOTHING_RECORDED


# --- the program ---------------------------------------------------------------------------------------------


def program_of(words: Sequence[str]) -> list[str]:
    """The program that follows the options."""
    command = list(words[1:] if words and words[0] == "--" else words)
    if not command:
        raise UsageError("run needs a program to start: foretrace run -- python train.py")
    if command[0].startswith("-"):
        raise UsageError(f"unknown option {command[0]}: options come first, then --, then the program")
    if command[0].endswith(".py") and not shutil.which(command[0]):
        command.insert(0, sys.executable)
    return command


def _run_tool(
    tool: str, command: Sequence[str], options: CaptureOptions, recorded: Run, say: Callable[[str], None]
) -> None:
    """The program once more, or a few times, under nsys or ncu."""
    light = recorded.ranks[0].recording(LIGHT) if recorded.ranks else None
    try:
        runs = external.plan(tool, command, recorded.path, light=light)
    except ForetraceError as error:
        say(str(error))
        return
    for number, each in enumerate(runs, 1):
        scratch = RunFolder(recorded.path / f".{tool}{number}").create(join=True)
        again = replace(
            options, output=str(scratch.path), passes=(tool,), memory=False, stop_after_capture=True
        )
        say(each.says)
        code = launch.start(each.command, again, each.environment)
        shutil.rmtree(scratch.path, ignore_errors=True)
        for after in each.afterwards:
            subprocess.run(after, check=False, stdout=subprocess.DEVNULL)
        done = each.report.exists()
        say(f"{tool}: {_shown(each.report)}" if done else f"{tool} left no report (exit code {code})")


# --- what is said --------------------------------------------------------------------------------------------


def _say_what_was_recorded(recorded: Run, elapsed_s: float, say: Callable[[str], None]) -> None:
    if not recorded.ranks:
        return  # what to do then stands at the end
    first = recorded.ranks[0].facts
    times = first.get("unprofiled")
    source = first.get("step_source")
    if times:
        say(
            f"step {times['median_ns'] / 1e6:.4g} ms without a profiler "
            f"({times['low_ns'] / 1e6:.4g} to {times['high_ns'] / 1e6:.4g}, {times['steps']} steps; "
            f"a step ends at {source})"
        )
        said = (first.get("settling") or {}).get("says")
        if said:
            say(said)
        device = first.get("device_time")
        if device:
            share = device["busy_ns"] / device["step_ns"]
            say(
                f"the GPU is busy {device['busy_ns'] / 1e6:.4g} ms per step, {share:.0%} of the time "
                "(from a pass that records only the GPU and hardly slows the CPU down)"
            )
    else:
        say(f"no unprofiled step time ({f'a step ends at {source}' if source else 'no step was found'})")
    passes = [each for rank in recorded.ranks for each in rank.facts.get("passes") or ()]
    size = sum(each.get("file_bytes") or 0 for each in passes)
    cost = max((rank.facts.get("cost_s") or 0) for rank in recorded.ranks)
    memory = max((rank.facts.get("peak_host_bytes") or 0) for rank in recorded.ranks)
    ranks = f", {len(recorded.ranks)} ranks" if len(recorded.ranks) > 1 else ""
    say(
        f"recorded {', '.join(dict.fromkeys(each['kind'] for each in passes)) or 'nothing'}{ranks}: "
        f"cost {cost:.1f} s of {elapsed_s:.1f} s, {size / 2**20:.1f} MiB on disk, "
        f"host memory at most {memory / 2**20:.0f} MiB"
    )
    for problem in recorded.problems:
        say(problem)
    for rank in recorded.ranks:
        if failed := rank.facts.get("out_of_memory"):
            say(_out_of_memory(rank, failed))


def _out_of_memory(rank: RankRecord, failed: dict[str, Any]) -> str:
    """What an allocation that failed asked for, and where the snapshot of that moment lies."""
    asked, free = (f"{failed[name] / 2**20:,.1f} MiB" for name in ("asked_bytes", "driver_free_bytes"))
    says = f"rank {rank.rank}: device {failed['device']} ran out of memory: {asked} asked for, {free} free beside what torch holds"
    written = rank.snapshots_at_failure()
    if written:
        return f"{says}; snapshot: {_shown(written[0])}"
    return f"{says}; no snapshot was written: {failed.get('why_no_file') or 'the file is gone'}"


def _recordings(recorded: Run) -> list[dict[str, Any]]:
    """The passes of all ranks that left something."""
    return [each for rank in recorded.ranks for each in rank.facts.get("passes") or ()]


def _what_to_do(recorded: Run) -> str:
    """Why nothing was recorded, and what would be."""
    if not recorded.ranks:
        note = (recorded.facts.get("notes") or ["it took no step that Foretrace saw"])[-1]
        return (
            f"no step was found, so nothing was recorded ({note}): call foretrace.step() at the end of each step, "
            "or name the function that makes a step: --step-function MODULE:NAME"
        )
    facts = recorded.ranks[0].facts
    seen, reason = facts.get("steps_seen") or 0, facts.get("reason") or "the program ended"
    if not (recorded.facts.get("options") or {}).get("passes"):  # memory alone, which more steps do not bring
        return f"nothing was recorded: {reason}"
    return (
        f"nothing was recorded: {reason}. {seen} steps were seen; let the program take more, or name a schedule that fits "
        "them: --wait 1 --warmup 1 --active 1"
    )


def _print_diagnosis(folder: Path, recorded: Run) -> None:
    passes = [each for rank in recorded.ranks for each in rank.facts.get("passes") or ()]
    if not any(each.get("kind") in (LIGHT, RICH) for each in passes):
        return
    missing = [each for each in ("polars", "numpy", "rich") if find_spec(each) is None]
    if missing:
        _say(
            f"the diagnosis needs {', '.join(missing)}: pip install foretrace, or copy the folder to where it is "
            f"installed, then: foretrace {_shown(folder)}"
        )
        return
    from foretrace.commands import _input, diagnose

    diagnose.print_diagnosis(_input.open_case(folder, no_cache=False), "table")


def _shown(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _say(text: str) -> None:
    print(f"foretrace: {visible(' '.join(text.split()))}", file=sys.stderr, flush=True)


def _quiet(_: str) -> None:
    pass


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
