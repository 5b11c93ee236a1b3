"""Print one analysis of a recording as a table."""

from __future__ import annotations

import argparse
import inspect
import shlex
import types
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _input, _output
from foretrace.errors import MissingDataError, UsageError
from foretrace.units import suffix
from foretrace.urls import is_url, shown

if TYPE_CHECKING:
    from foretrace.analyze.result import Analysis

_TAKEN = ("path", "format", "sort", "limit", "columns", "no_cache", "step", "pid", "ncu")
_PREFIX = "option:"
_METAVARS = {int: "N", float: "X", str: "TEXT"}


def configure(parser: argparse.ArgumentParser) -> None:
    """One sub-command per analysis, with the analysis' own options as flags."""
    from foretrace import analyze

    parser.add_argument("--list", action="store_true", help="list all analyses")
    names = parser.add_subparsers(title="analyses", metavar="NAME", dest="name")
    given = getattr(parser, "arguments", ())
    # Before the name there are only flags, so the first word is the name.
    wanted = next((word for word in given if not word.startswith("-")), None)
    a_path = wanted is not None and (is_url(wanted) or Path(wanted).exists())
    if wanted and a_path and wanted not in {analysis.name for analysis in analyze.ANALYSES}:
        raise UsageError(
            f"name an analysis before the path: foretrace show NAME {shlex.quote(shown(wanted))}"
        )
    # Only the one that is asked for gets a parser, unless the list or the help of all is asked for.
    chosen = (analyze.find(wanted),) if wanted and not {"-h", "--help"} & set(given[:2]) else analyze.ANALYSES
    for analysis in chosen:
        each = names.add_parser(analysis.name, help=analysis.help, description=analysis.help)
        _input.add_path(each)
        _output.add_format(each)
        _output.add_rows(each)
        _output.add_columns(each)
        _add_options(each, analysis)


def run(args: argparse.Namespace) -> None:
    """Prints the table, or the names of all."""
    from foretrace import analyze
    from foretrace.ingest.recordings import find_recording
    from foretrace.present.text import terminal

    if args.list:
        listed: dict[str, list[tuple[str, str]]] = {}
        for analysis in analyze.ANALYSES:
            listed.setdefault(analysis.subject.value, []).append((analysis.name, analysis.help))
        terminal.show_grouped_names(listed)
        return
    if args.name is None:
        raise UsageError("name an analysis; foretrace show --list lists them")
    options = {
        name.removeprefix(_PREFIX): value for name, value in vars(args).items() if name.startswith(_PREFIX)
    }
    reading = _input.reading(args)
    recorded = find_recording(args.path, counters=reading.counters)
    trace = recorded.told(_input.read(recorded.path, reading, no_cache=args.no_cache))
    try:
        result = analyze.run(trace, args.name, **options)
    except MissingDataError:
        if recorded.rich is None:
            raise
        # The light pass of a Run has no stacks and no memory.
        trace = _input.read(recorded.rich, reading.of_others(), no_cache=args.no_cache)
        result = analyze.run(trace, args.name, **options)
    _output.print_result(result, trace, _output.Printing.chosen(args))


def _add_options(parser: argparse.ArgumentParser, analysis: Analysis) -> None:
    try:
        hints = typing.get_type_hints(analysis.function)
    except NameError:  # a type imported for checking only
        hints = {}
    for name, parameter in analysis.options.items():
        kind = _kind(hints.get(name), parameter)
        if name in _TAKEN or kind is None:
            continue
        flag: dict[str, Any] = {"dest": f"{_PREFIX}{name}", "default": argparse.SUPPRESS}
        if parameter.default not in (None, parameter.empty):
            flag["help"] = f"default: {parameter.default}".replace("%", "%%")
        if kind is bool:
            flag["action"] = argparse.BooleanOptionalAction
        elif isinstance(kind, tuple):
            flag |= {"choices": kind}
        else:
            flag |= {"type": kind, "metavar": suffix(name).strip("_").upper() or _METAVARS[kind]}
        parser.add_argument(f"--{name.replace('_', '-')}", **flag)


def _kind(hint: Any, parameter: inspect.Parameter) -> type | tuple[str, ...] | None:
    """The type of a flag, its choices, or None where the command line cannot express it."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(hint) if option is not type(None)]
        hint = inner[0] if len(inner) == 1 else None
    if typing.get_origin(hint) is typing.Literal:
        return tuple(str(choice) for choice in typing.get_args(hint))
    if hint is None and parameter.default is not None:
        hint = type(parameter.default)
    return hint if hint in (bool, int, float, str) else None
