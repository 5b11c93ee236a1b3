"""Compare what a finding predicted with what a recording of the changed program measured."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime

from foretrace.commands import _input, _output
from foretrace.units import visible
from foretrace.urls import here, named


def configure(parser: argparse.ArgumentParser) -> None:
    """Two recordings, the finding, and the ledger."""
    parser.add_argument(
        "before", metavar="BEFORE", type=named, help="a recording or Run of the program as it was"
    )
    parser.add_argument(
        "after", metavar="AFTER", type=named, help="one of the same program with the fix made"
    )
    says = "the rule whose fix was made; RULE:LABEL for one of its alternatives"
    parser.add_argument("--finding", metavar="RULE", required=True, help=says)
    says = "where it is kept (default: .foretrace/ledger.jsonl of this folder)"
    parser.add_argument("--ledger", type=here, metavar="FILE", help=says)
    parser.add_argument("--no-ledger", action="store_true", help="keep no record")
    _input.add_no_cache(parser)
    _output.add_format(parser, formats=("table", "json", "md"))


def run(args: argparse.Namespace) -> None:
    """Verifies, prints, and writes the record."""
    from foretrace.present.text import tables, terminal, verifications
    from foretrace.trial import ledger
    from foretrace.trial.verification import verify

    before, after = (_input.open_case(path, no_cache=args.no_cache) for path in (args.before, args.after))
    for case in (before, after):
        case.require_replay()
    told = verify(before, after, args.finding)
    if args.format == "json":
        _output.print_document(tables.document_to_json(told.to_dict()))
    elif args.format == "md":
        _output.print_text(verifications.to_markdown(told))
    else:
        terminal.show_lines(lambda width: verifications.lines(told, width))
    if told.inside is None or args.no_ledger:
        return
    file = args.ledger or ledger.DEFAULT
    with _output.told(_say):
        ledger.add(file, [told.record(datetime.now(UTC).isoformat(timespec="seconds"))])
        _say(f"kept in {file}")


def _say(text: str) -> None:
    print(f"foretrace: {visible(' '.join(text.split()))}", file=sys.stderr, flush=True)
