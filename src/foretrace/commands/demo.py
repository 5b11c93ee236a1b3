"""Diagnose the sample recording that comes with Foretrace: a first look."""

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

    case = _input.open_case(SAMPLE, no_cache=args.no_cache, step_ms=STEP_MS)
    diagnose.print_diagnosis(case, args.format, parts=("trust", "overview", "steps", "kernels"))
    if args.format == "table":
        terminal.show_next(
            [
                ("foretrace run -- python train.py", "record a program of your own and diagnose it"),
                ("foretrace PATH", "diagnose a recording that you have"),
                ("foretrace serve PATH --open", "look at it in the browser"),
                ("foretrace predict PATH --change ...", "what a change of your own would be worth"),
                ("foretrace show --list", "every analysis; each takes --format json, csv, md"),
                ("foretrace doctor", "what this machine can record and read"),
            ],
            sample=SAMPLE,
        )
