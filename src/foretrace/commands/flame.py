"""Write a flame graph of a recording: speedscope JSON or folded stacks."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import MissingDataError
from foretrace.units import visible

if TYPE_CHECKING:
    from foretrace.analyze.stacks import Metric

_SPEEDSCOPE, _FOLDED = (".json",), (".folded", ".txt")


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the file to write and what to weigh."""
    _input.add_path(parser)
    _output.add_file(
        parser, says="out.speedscope.json for https://www.speedscope.app, or out.folded for flamegraph.pl"
    )
    parser.add_argument(
        "--metric",
        choices=("host", "device"),
        help="whose time to show (default: device if recorded, else host)",
    )


def run(args: argparse.Namespace) -> None:
    """Writes the file."""
    from foretrace.present.export import flamegraph

    _output.check_file(
        args.output, force=args.force, endings=(*_SPEEDSCOPE, *_FOLDED), such_as=".speedscope.json or .folded"
    )
    trace = _input.open_path(args.path, no_cache=args.no_cache, reading=_input.reading(args))
    metric: Metric = args.metric or ("device" if trace.has_device else "host")
    if metric == "device" and not trace.has_device:
        raise MissingDataError(f"{trace.path.name}: no device work recorded; try --metric host")
    is_speedscope = args.output.name.lower().endswith(_SPEEDSCOPE)
    text = (flamegraph.to_speedscope if is_speedscope else flamegraph.to_folded)(trace, metric)
    with _output.writing(args.output) as file:
        file.write_text(text, encoding="utf-8")
    print(f"wrote {visible(str(args.output))}: {metric} time", file=sys.stderr)
