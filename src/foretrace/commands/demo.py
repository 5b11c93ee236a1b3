"""A first look: the recording that is shipped with Foretrace, and where to go next."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretrace.commands import _input, _output, summary

SAMPLE = Path(__file__).parents[1] / "samples" / "naive_attention.json.gz"


def configure(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    _input.add_no_cache(parser)
    _output.add_format(parser, formats=("table", "json", "md"))


def run(args: argparse.Namespace) -> None:
    """Prints the page of the sample, then what to try next."""
    from foretrace.present import terminal

    args.path = SAMPLE
    summary.print_page(_input.open_path(args), args)
    if args.format == "table":
        terminal.show_next(
            [
                ("foretrace PATH", "the same page for a recording of yours"),
                ("foretrace show --list", "every analysis; each takes --format json, csv, md"),
                ('foretrace sql PATH "select ..."', "ask the tables yourself"),
                ("foretrace doctor", "what this machine can record and read"),
            ],
            sample=SAMPLE,
        )
