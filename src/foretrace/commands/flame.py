"""Write a flame graph of a recording: speedscope JSON or folded stacks."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _input
from foretrace.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from foretrace.analyze.stacks import Metric

_SPEEDSCOPE, _FOLDED = (".json",), (".folded", ".txt")


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the file to write and what to weigh."""
    _input.add_path(parser)
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, required=True,
        help="out.speedscope.json for https://www.speedscope.app, or out.folded for flamegraph.pl",
    )  # fmt: skip
    parser.add_argument(
        "--metric", choices=("host", "device"), help="whose time; default: device where it was recorded"
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")


def run(args: argparse.Namespace) -> None:
    """Writes the file."""
    from foretrace.present.export import flamegraph

    suffix = args.output.suffix.lower()
    if suffix not in (*_SPEEDSCOPE, *_FOLDED):
        raise UsageError(f"{args.output}: end the name in .speedscope.json or .folded")
    if args.output.exists() and not args.force:
        raise UsageError(f"will not overwrite without --force: {args.output}")
    trace = _input.open_path(args)
    metric: Metric = args.metric or ("device" if trace.has_device else "host")
    if metric == "device" and not trace.has_device:
        raise MissingDataError(f"{trace.path.name}: no device work recorded; try --metric host")
    render = flamegraph.to_speedscope if suffix in _SPEEDSCOPE else flamegraph.to_folded
    text = render(trace, metric)
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{args.output}: cannot be written: {error.strerror}") from error
    print(f"wrote {args.output}: {metric} time", file=sys.stderr)
