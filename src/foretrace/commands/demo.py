"""A first look: the diagnosis of the recording that is shipped with Foretrace, and where to go next."""

from __future__ import annotations

import argparse
from pathlib import Path

from foretrace.commands import _input, _output, diagnose

SAMPLE = Path(__file__).parents[1] / "samples" / "naive_attention.json.gz"
STEP_MS = 50.5  # measured on that machine without a profiler: samples/README.md


def configure(parser: argparse.ArgumentParser) -> None:
    """How to print."""
    _input.add_no_cache(parser)
    _output.add_format(parser, formats=("table", "json", "md"))


def run(args: argparse.Namespace) -> None:
    """Prints the diagnosis of the sample, then what to try next."""
    from foretrace.present.text import terminal

    args.path, args.step_ms = SAMPLE, STEP_MS
    diagnose.print_diagnosis(_input.open_path(args), args, parts=("trust", "overview", "steps", "kernels"))
    if args.format == "table":
        terminal.show_next(
            [
                ("foretrace PATH", "the diagnosis of a recording of yours"),
                ("foretrace predict PATH --change ...", "what a change of your own would be worth"),
                ("foretrace show --list", "every analysis; each takes --format json, csv, md"),
                ('foretrace sql PATH "select ..."', "ask the tables yourself"),
                ("foretrace doctor", "what this machine can record and read"),
            ],
            sample=SAMPLE,
        )
