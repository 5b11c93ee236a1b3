"""Record a program without changing it, and diagnose the recording."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from foretrace._version import __version__
from foretrace.capture import environment, external, launch
from foretrace.capture.options import (
    LIGHT,
    LIGHT_SWITCHES,
    RICH,
    RICH_SWITCHES,
    CaptureOptions,
    Switches,
)
from foretrace.capture.run_folder import Run, RunFolder
from foretrace.commands import _output
from foretrace.errors import ForetraceError, UsageError
from foretrace.units import visible

_SWITCHES = tuple(field.name for field in fields(Switches) if field.name not in ("cpu", "cuda"))
_EXAMPLES = """\
examples:
  foretrace run -- python train.py --epochs 1
  foretrace run --stop-after-capture -- torchrun --nproc-per-node 8 train.py
  foretrace run --wait 5 --warmup 2 --active 3 -- python -m package.train
  foretrace run --step-function train:train_one_batch -- python main.py

The program's output and exit code stay as they are. Step times are measured before any profiler runs, kernel and
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
    _add_steps(parser)
    _add_schedule(parser)
    _add_profiler(parser)
    _add_limits(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="where to write the recordings (default: foretrace-runs/NAME-DATE)",
    )
    group.add_argument("-q", "--quiet", action="store_true", help="print no progress, cost or diagnosis")
    group.add_argument("--ranks", type=_ranks, metavar="0,7", help="record only these ranks (default: all)")
    group.add_argument(
        "--stop-after-capture", action="store_true", help="stop the program once everything is recorded"
    )
    group.add_argument(
        "--with",
        dest="tool",
        choices=external.TOOLS,
        help="run the program once more under this NVIDIA profiler, over the same steps",
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("step detection (automatic by default)")
    group.add_argument(
        "--step-function",
        metavar="MODULE:NAME",
        type=_function,
        help="a step ends when this function returns",
    )
    group.add_argument(
        "--on-demand", action="store_true", help="start recording when the program receives SIGUSR2"
    )
    group.add_argument(
        "--trigger", metavar="FILE", help="start recording when this file appears or is touched"
    )


def _add_schedule(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("schedule, in steps (time-based by default)")
    group.add_argument(
        "--wait", type=_count, metavar="N", help="steps before each pass, timed without a profiler"
    )
    group.add_argument(
        "--warmup", type=_count, metavar="N", help="steps under the profiler that are discarded"
    )
    group.add_argument("--active", type=_positive, metavar="N", help="steps to record in each pass")
    group.add_argument(
        "--repeat", type=_positive, default=1, metavar="N", help="times to repeat each pass (default: 1)"
    )
    group.add_argument(
        "--passes",
        type=_passes,
        default=(LIGHT, RICH),
        metavar="light,rich",
        help="light: few events, used for timing; rich: shapes, stacks and memory (default: both)",
    )


def _add_profiler(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "torch.profiler options, for the rich pass (for the light pass if there is no rich one)"
    )
    for name in _SWITCHES:
        group.add_argument(
            f"--{name.replace('_', '-')}",
            action=argparse.BooleanOptionalAction,
            help=f"torch.profiler's {name}",
        )
    group.add_argument("--cpu", action=argparse.BooleanOptionalAction, help="record CPU activity")
    group.add_argument("--cuda", action=argparse.BooleanOptionalAction, help="record GPU activity")
    group.add_argument(
        "--memory-history",
        action="store_true",
        help="record a snapshot of CUDA's allocator in a separate pass",
    )
    group.add_argument(
        "--labels",
        action="store_true",
        help="label every nn.Module in the recording (with NVTX ranges too, for nsys)",
    )
    group.add_argument(
        "--launch-blocking",
        action="store_true",
        help="set CUDA_LAUNCH_BLOCKING=1: each kernel runs inside its launch call; times are then not representative",
    )


def _add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    defaults = CaptureOptions(output="")
    for name, says in (
        ("settle", "leave out the first steps, for at least this long"),
        ("time", "time unprofiled steps for at most this long"),
        ("warm", "warm up the profiler for this long"),
        ("total", "start no pass later than this after the first step"),
    ):
        value = getattr(defaults, f"{name}_s")
        group.add_argument(
            f"--{name}-s", type=_seconds, default=value, metavar="S", help=f"{says} (default: {value:g} s)"
        )
    group.add_argument(
        "--file-mib",
        type=_positive,
        default=defaults.file_bytes >> 20,
        metavar="MIB",
        help=f"above this file size, record one step and less of it in the rich pass (default: {defaults.file_bytes >> 20})",
    )


def run(args: argparse.Namespace) -> int:
    """Starts the program, waits for it, says what was recorded; returns the program's exit code."""
    command = _command(args.command)
    folder = (RunFolder(args.output) if args.output else RunFolder.default(command)).create()
    options = _options(args, folder)
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
    return code


# --- the program ---------------------------------------------------------------------------------------------


def _command(words: Sequence[str]) -> list[str]:
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
        again = replace(options, output=str(scratch.path), passes=(tool,), stop_after_capture=True)
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
        note = (recorded.facts.get("notes") or [""])[-1]
        say(
            f"no step was found, so nothing was recorded ({note}): call foretrace.step() at the end of each step, "
            "or name the function that makes a step: --step-function MODULE:NAME"
        )
        return
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
        say(f"no unprofiled step time (a step ends at {source})")
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


# --- options -------------------------------------------------------------------------------------------------


def _options(args: argparse.Namespace, folder: RunFolder) -> CaptureOptions:
    given = {name: getattr(args, name) for name in _SWITCHES if getattr(args, name) is not None}
    both = {name: getattr(args, name) for name in ("cpu", "cuda") if getattr(args, name) is not None}
    light: dict[str, Any] = {**both, **(given if RICH not in args.passes else {})}
    return CaptureOptions(
        output=str(folder.path),
        passes=args.passes,
        light=replace(LIGHT_SWITCHES, **light),
        rich=replace(RICH_SWITCHES, **both, **given),
        wait=args.wait,
        warmup=args.warmup,
        active=args.active,
        repeat=args.repeat,
        ranks=args.ranks,
        step_function=args.step_function,
        labels=args.labels,
        launch_blocking=args.launch_blocking,
        memory_history=args.memory_history,
        stop_after_capture=args.stop_after_capture,
        on_demand=args.on_demand,
        trigger=str(Path(args.trigger).absolute()) if args.trigger else None,
        settle_s=args.settle_s,
        time_s=args.time_s,
        warm_s=args.warm_s,
        total_s=args.total_s,
        file_bytes=args.file_mib << 20,
    )


def _ranks(text: str) -> tuple[int, ...]:
    try:
        ranks = tuple(sorted({int(each) for each in text.split(",")}))
    except ValueError:
        ranks = ()
    if not ranks or ranks[0] < 0:
        raise argparse.ArgumentTypeError(f"ranks are numbers with commas between them, not {text!r}")
    return ranks


def _passes(text: str) -> tuple[str, ...]:
    chosen = tuple(each.strip() for each in text.split(","))
    if not set(chosen) <= {LIGHT, RICH} or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(f"passes are light, rich or light,rich, not {text!r}")
    return tuple(each for each in (LIGHT, RICH) if each in chosen)


def _function(text: str) -> str:
    if not re.fullmatch(r"[\w.]+:[\w.]+", text):
        raise argparse.ArgumentTypeError(f"a function is named MODULE:NAME, as in train:step, not {text!r}")
    return text


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"a number of steps, not {text!r}")
    return int(text)


def _positive(text: str) -> int:
    number = _count(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"seconds, not {text!r}")
    return value
