"""Print the manual page: foretrace man | man -l -"""

from __future__ import annotations

import argparse

from foretrace._version import __version__

_SECTIONS = {
    "EXIT STATUS": (
        ("0", "done"),
        ("1", "a gate of `compare --fail-on` failed, or nothing could be timed"),
        ("2", "wrong usage, or the output cannot be written"),
        ("3", "the input could not be read"),
        ("4", "what was asked for was not recorded"),
        ("70", "a fault of Foretrace's own"),
        ("130", "interrupted"),
        ("141", "the reader of the output went away"),
    ),
    "ENVIRONMENT": (
        ("FORETRACE_CACHE", "the folder of the cache of recordings"),
        ("FORETRACE_CACHE_LIMIT", "how many bytes the cache may take"),
        ("FORETRACE_DEBUG", "print warnings, and the traceback of an internal error"),
        ("NO_COLOR", "print without colour"),
    ),
    "FILES": (
        ("foretrace-runs/", "what `foretrace run` and `foretrace try` record and measure"),
        (".foretrace/ledger.jsonl", "what was predicted of changes beside what was measured"),
        ("foretrace-baselines.json", "what `foretrace compare --save-baseline` keeps"),
    ),
}
_EXAMPLES = """\
to read it, and to keep it where man looks:
  foretrace man | man -l -
  foretrace man > ~/.local/share/man/man1/foretrace.1
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """No options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints the page, in roff."""
    from foretrace.commands import whole_parser
    from foretrace.present.text.manual_page import manual_page

    print(manual_page(whole_parser(), version=__version__, sections=_SECTIONS), end="")
