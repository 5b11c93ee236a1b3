"""The options of a capture as arguments: the same for `foretrace run` and for the notebook's `%%foretrace`."""

from __future__ import annotations

import argparse
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from foretrace.capture.options import (
    LIGHT,
    LIGHT_SWITCHES,
    MEMORY,
    RICH,
    RICH_SWITCHES,
    CaptureOptions,
    Switches,
)

_SWITCHES = tuple(field.name for field in fields(Switches) if field.name not in ("cpu", "cuda"))


def add(parser: argparse.ArgumentParser) -> None:
    """The options of a capture, in groups."""
    _add_steps(parser)
    _add_schedule(parser)
    _add_profiler(parser)
    _add_limits(parser)


def options(args: argparse.Namespace, *, output: str) -> CaptureOptions:
    """What the parsed arguments ask for."""
    given = {name: getattr(args, name) for name in _SWITCHES if getattr(args, name) is not None}
    both = {name: getattr(args, name) for name in ("cpu", "cuda") if getattr(args, name) is not None}
    light: dict[str, Any] = {**both, **(given if RICH not in args.passes else {})}
    return CaptureOptions(
        output=output,
        passes=tuple(kind for kind in args.passes if kind != MEMORY),
        light=replace(LIGHT_SWITCHES, **light),
        rich=replace(RICH_SWITCHES, **both, **given),
        wait=args.wait,
        warmup=args.warmup,
        active=args.active,
        repeat=args.repeat,
        ranks=args.ranks,
        rich_ranks=args.rich_ranks,
        step_function=args.step_function,
        labels=args.labels,
        memory=args.memory or MEMORY in args.passes,
        lines=args.lines,
        on_demand=args.on_demand,
        trigger=str(Path(args.trigger).absolute()) if args.trigger else None,
        settle_s=args.settle_s,
        time_s=args.time_s,
        warm_s=args.warm_s,
        total_s=args.total_s,
        file_bytes=args.file_mib << 20,
    )


def _add_steps(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("step detection (automatic by default)")
    group.add_argument("--ranks", type=_ranks, metavar="0,7", help="record only these ranks (default: all)")
    says = "record only these ranks richly, and the others lightly (default: all)"
    group.add_argument("--rich-ranks", type=_ranks, metavar="0,8", help=says)
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
        help="light: few events, used for timing; rich: shapes, stacks and memory (default: both); memory: as --memory",
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
        "--memory",
        action="store_true",
        help="record the history of CUDA's allocator over whole steps in a separate pass, and a snapshot if memory runs out",
    )
    group.add_argument(
        "--lines",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="sample the source lines of all Python threads, at most 0.5 %% of the time (default: yes, on Linux)",
    )
    group.add_argument(
        "--labels",
        action="store_true",
        help="label every nn.Module in the recording (with NVTX ranges too, for nsys)",
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
    if not set(chosen) <= {LIGHT, RICH, MEMORY} or len(set(chosen)) != len(chosen):
        raise argparse.ArgumentTypeError(
            f"passes are light, rich and memory, with commas between them, not {text!r}"
        )
    return tuple(each for each in (LIGHT, RICH, MEMORY) if each in chosen)


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
