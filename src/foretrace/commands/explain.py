"""Say in plain words what a kernel, operator or other name of a recording means."""

from __future__ import annotations

import argparse

from foretrace.commands import _output
from foretrace.errors import UsageError


def configure(parser: argparse.ArgumentParser) -> None:
    """The name, and how to print."""
    parser.add_argument("name", metavar="NAME", help="as a recording or a table shows it; quote it")
    _output.add_format(parser, formats=("table", "json"))


def run(args: argparse.Namespace) -> None:
    """Prints what the name means."""
    from foretrace.analyze.concepts.names.explanations import explain

    if not args.name.strip():
        raise UsageError("which name? foretrace explain 'aten::mm'")
    told = explain(args.name)
    if args.format == "json":
        import json

        document = {"name": told.name, "kind": told.kind, "known": told.known, "says": told.says}
        print(json.dumps({**document, "watch": told.watch, "facts": dict(told.facts)}, indent=2))
        return
    lines = [told.name, f"  {told.kind}: {told.says}"]
    width = max((len(name) for name in told.facts), default=0)
    lines += [f"  {name.replace('_', ' '):<{width}}  {value}" for name, value in told.facts.items()]
    lines += [f"  watch: {told.watch}"] if told.watch else []
    _output.print_text("\n".join(lines) + "\n")
