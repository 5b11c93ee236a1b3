"""List the files that Foretrace reads, how well, and what each cannot tell."""

from __future__ import annotations

import argparse

from foretrace.commands import _output


def configure(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    _output.add_format(parser)


def run(args: argparse.Namespace) -> None:
    """Prints every format; a table of a terminal is a paragraph for each, since what a format lacks is a sentence."""
    from foretrace import ingest

    listed = ingest.formats()
    if args.format == "table":
        from foretrace.present.text import terminal

        terminal.show_formats(listed)
        return
    from dataclasses import asdict

    import polars as pl

    rows = pl.DataFrame([asdict(each) for each in listed])
    _output.print_frame(rows, _output.Printing(args.format, limit=0))
