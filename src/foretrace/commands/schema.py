"""Print the JSON Schema of an output, to check documents by; without a name, list them."""

from __future__ import annotations

import argparse

from foretrace.commands import _output

_EXAMPLES = """\
examples:
  foretrace schema diagnose > diagnose.v1.json
  foretrace diagnose PATH --format json | check-jsonschema --schemafile diagnose.v1.json -

Which command prints which, and what may change without a new version: docs/guide/json.md
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The name, and how to print the list."""
    parser.add_argument(
        "name", metavar="NAME", nargs="?", help="as the list has it, such as diagnose or error"
    )
    _output.add_format(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints the schema, which is JSON in any format, or the list."""
    from foretrace.present import schema

    if args.name is not None:
        _output.print_document(schema.text(args.name))
        return
    listed = [(name, file, schema.load(name)["title"]) for name, file in schema.names().items()]
    if args.format == "table":
        from foretrace.present.text import terminal

        terminal.show_names([(name, title) for name, _, title in listed])
        return
    import polars as pl

    columns = {"name": pl.String, "file": pl.String, "says": pl.String}
    _output.print_frame(
        pl.DataFrame(listed, schema=columns, orient="row"), _output.Printing(args.format, limit=0)
    )
