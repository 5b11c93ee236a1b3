"""What to change, in order of what each change would be worth."""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _input, _output, summary
from foretrace.commands.predict import _milliseconds
from foretrace.errors import MissingDataError, UsageError

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case
    from foretrace.diagnose.diagnosis import Diagnosis
    from foretrace.trace import Trace


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the measured step time and how to print."""
    parser.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        nargs="?",
        help="a recording, or a folder with one, or with those of the ranks of one job",
    )
    _input.add_no_cache(parser)
    parser.add_argument(
        "--step-ms",
        type=_milliseconds,
        metavar="MS",
        help="step time measured without a profiler; narrows the ranges",
    )
    parser.add_argument(
        "--rich",
        type=Path,
        metavar="FILE",
        help="a recording of the same program with stacks: lines are taken from it, times are not",
    )
    parser.add_argument("--explain", metavar="RULE", help="print the manual page of a rule instead")
    _output.add_format(parser, formats=("table", "json", "md"))


def run(args: argparse.Namespace) -> None:
    """Prints the diagnosis, or a rule's page."""
    if args.explain:
        print(_manual(args.explain))
        return
    if args.path is None:
        raise UsageError("diagnose needs a PATH, or --explain RULE")
    print_diagnosis(_input.open_path(args, of_ranks=True), args)


def print_diagnosis(
    trace: Trace, args: argparse.Namespace, *, parts: tuple[str, ...] = ("trust", "overview", "steps")
) -> None:
    """Prints what is wrong with a recorded program; where it cannot be replayed, the page of the recording."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.case import Case
    from foretrace.diagnose.diagnosis import diagnose
    from foretrace.present.text import findings, terminal

    rich = partial(_input.open_rich, args) if getattr(args, "rich", None) else None
    case = Case(
        trace,
        step_ns=args.step_ms * 1e6 if args.step_ms else None,
        open_rich=rich,
        open_ranks=partial(_input.open_ranks, trace.path, no_cache=args.no_cache),
    )
    try:
        case.require_replay()
    except MissingDataError as reason:
        if args.format != "table":
            raise
        summary.print_page(trace, args)
        terminal.show_note("findings", str(reason))
        return
    found = diagnose(case, RULES)
    if args.format == "json":
        print(json.dumps(_contract(case, found), indent=2))
    elif args.format == "md":
        _output.print_text(findings.to_markdown(found, case.step_ns, trace.path.name))
    else:
        at_hand = case.result if case.trace is trace else None
        results, missing = summary.analyse(trace, parts, run=at_hand)
        terminal.show_diagnosis(trace, results, missing, found, case.step_ns)


def _contract(case: Case, found: Diagnosis) -> dict[str, Any]:
    from foretrace import analyze
    from foretrace.analyze.trust import judge
    from foretrace.diagnose.bound import bound
    from foretrace.present.text import findings

    overview = analyze.run(case.whole, "overview")
    measured = case.measured_step_ns
    facts = {
        "steps": len(case.whole.steps),
        "step_ms": case.step_ns / 1e6,
        "unprofiled_step_ms": measured / 1e6 if measured else None,
        "bound": bound(case),
    }
    return findings.to_json(case.whole, judge(case.whole).to_dict(), overview, found, facts)


def _manual(name: str) -> str:
    from foretrace.diagnose import find

    rule = find(name)
    limits = [f"    {key:<24} {limit} ({limit.of}; {limit.source})" for key, limit in rule.limits.items()]
    return "\n".join([rule.name, "", rule.manual, *(["", "Limits", *limits] if limits else [])])
