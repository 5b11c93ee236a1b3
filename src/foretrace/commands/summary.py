"""Print trust, overview, steps and top kernels of a recording (top operators if it holds no GPU work; counters, of an ncu file)."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import MissingDataError

if TYPE_CHECKING:
    from foretrace.analyze.result import Result
    from foretrace.trace import Trace

PARTS = ("trust", "overview", "steps")
COUNTED = ("profiled", "warp-stalls", "memory-access", "ncu-rules")  # of counters without a timeline


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH and how to print."""
    _input.add_path(parser)
    _output.add_format(parser, formats=("table", "json", "md"))


def run(args: argparse.Namespace) -> None:
    """Prints the page."""
    print_page(_input.open_path(args.path, no_cache=args.no_cache, reading=_input.reading(args)), args.format)


def print_page(trace: Trace, form: str) -> None:
    """Prints all parts that the recording can give; for the others, why not."""
    from foretrace.present.text import tables, terminal

    results, missing = analyse(trace)
    if form == "json":
        _output.print_document(tables.many_to_json(results, missing, trace))
    elif form == "md":
        parts = [tables.result_to_markdown(result) for result in results]
        parts += [f"**{name}**: not recorded: {why}\n" for name, why in missing.items()]
        _output.print_text("\n".join(parts))
    else:
        terminal.show_page(trace, results, missing)


def analyse(
    trace: Trace, parts: tuple[str, ...] | None = None, *, run: Callable[..., Result] | None = None
) -> tuple[list[Result], dict[str, str]]:
    """The results of the parts, all of them if none are named, and the reason for each that is missing.

    `run` makes one of them by its name, where some may be at hand.
    """
    from foretrace import analyze

    run = run or partial(analyze.run, trace)
    results, missing = [], {}
    top = "kernels" if trace.has_device else "operators"
    counted = trace.profile is not None and trace.spans.is_empty()
    for name in COUNTED if counted else parts or (*PARTS, top):
        options = {"python": "no"} if name == "operators" else {}
        try:
            results.append(run(name, **options))
        except MissingDataError as error:
            missing[name] = str(error)
    return results, missing
