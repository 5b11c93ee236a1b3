"""Explain the name of a kernel, an operator or another event in plain words."""

from __future__ import annotations

import argparse
from typing import Any

from foretrace._version import __version__
from foretrace.commands import _output
from foretrace.errors import UsageError, near_names

SCHEMA = "foretrace.explain/1"


def configure(parser: argparse.ArgumentParser) -> None:
    """The name, and how to print."""
    parser.add_argument(
        "name", metavar="NAME", help="as it appears in a recording or a table; put it in quotes"
    )
    _output.add_format(parser, formats=("table", "json"))


def run(args: argparse.Namespace) -> None:
    """Prints what the name means."""
    from foretrace.analyze.concepts.names.explanations import explain

    if not args.name.strip():
        raise UsageError("give a name: foretrace explain 'aten::mm'")
    if args.format == "json":
        from foretrace.present.text import tables

        _output.print_document(tables.document_to_json(document(args.name)))
        return
    explanation = explain(args.name)
    lines = [explanation.name, f"  {explanation.kind}: {explanation.says}"]
    width = max((len(name) for name in explanation.facts), default=0)
    lines += [f"  {name.replace('_', ' '):<{width}}  {value}" for name, value in explanation.facts.items()]
    lines += [f"  watch: {explanation.watch}"] if explanation.watch else []
    if not explanation.known and (rules := _rules(args.name)):
        lines += [f"  did you mean a rule? {' or '.join(rules)}"]
    _output.print_text("\n".join(lines) + "\n")


def document(name: str) -> dict[str, Any]:
    """What the name means, as `--format json` prints it."""
    from foretrace.analyze.concepts.names.explanations import explain

    explanation = explain(name)
    told = {name: getattr(explanation, name) for name in ("name", "kind", "known", "says", "watch")}
    return {"schema": SCHEMA, "foretrace": __version__, **told, "facts": dict(explanation.facts)}


def _rules(name: str) -> list[str]:
    """Commands that explain the rules that may be meant; only names with a hyphen are like a rule's."""
    from foretrace.diagnose import RULES

    if "-" not in name.strip("-"):
        return []
    near = near_names(name, (rule.name for rule in RULES))
    return [f"foretrace diagnose --explain {rule}" for rule in near]
