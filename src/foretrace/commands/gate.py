"""Decide a CI job by limits on what changed: 0 passed, 1 failed, 4 inconclusive."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _gates, _input, _output
from foretrace.errors import InputError, MissingDataError, UsageError
from foretrace.units import visible
from foretrace.urls import named

if TYPE_CHECKING:
    from foretrace.compare.decision import Decision
    from foretrace.compare.gates import Gate
    from foretrace.compare.sides import Side
    from foretrace.compare.subjects import Recording
    from foretrace.diagnose.case import Case
    from foretrace.trace import Trace

_EXAMPLES = """\
examples:
  foretrace run -o after -- python train.py
  foretrace gate main.json after --fail-on 'step_ms > +3%' --markdown comment.md
  foretrace compare after --save-baseline main --baselines main.json

Exit code 0: every limit is kept. 1: one is broken. 4: inconclusive, since there is no baseline, since it was recorded on another
device, or since the times scatter too much. 2 and 3 as everywhere: a wrong call, a file that cannot be read.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The two sides, the limits, and what to write."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    says = "a recording, a Run, or a file of baselines; where there is none, the exit code is 4"
    parser.add_argument("before", metavar="BEFORE", type=named, help=says)
    parser.add_argument("after", metavar="AFTER", type=named, help="a recording or a Run")
    _input.add_no_cache(parser)
    _input.add_reading(parser)
    _output.add_format(parser, formats=("table", "json", "md"))
    says = "of a file with several baselines, the one to compare with (default: the only one)"
    parser.add_argument("--baseline", metavar="NAME", help=says)
    parser.add_argument("--force", action="store_true", help="overwrite existing files")
    group = parser.add_argument_group("as a gate")
    _gates.add_limits(group)
    _gates.add_reports(group)
    says = "tells this gate's comment from those of others (default: gate)"
    group.add_argument("--key", metavar="NAME", default="gate", help=says)


def run(args: argparse.Namespace) -> int:
    """Prints and writes the decision; 0, 1 or 4."""
    gates = _gates.parsed(args)
    if not gates:
        raise UsageError("gate needs a limit, such as --fail-on 'step_ms > +3%'")
    try:
        decision = _decision(gates, args)
    except (InputError, MissingDataError) as error:
        from foretrace.compare.decision import inconclusive

        # The reports say why there is no decision; the exit code stays that of the error.
        _report(inconclusive(str(error)), args)
        raise
    _print(decision, args)
    _report(decision, args)
    return decision.exit_code


def _decision(gates: list[Gate], args: argparse.Namespace) -> Decision:
    from foretrace.compare.decision import decide, inconclusive
    from foretrace.compare.sides import side_of
    from foretrace.compare.steps import compare_sides
    from foretrace.compare.subjects import short_names

    names = short_names([args.before, args.after])
    after = _recording(args.after, names[1], args)
    if not args.before.exists():
        return inconclusive(f"there is no baseline yet: {args.before.name} does not exist")
    before, trace = _before(names[0], args)
    return decide(gates, compare_sides(before, side_of(after.case, after.name)), trace, after.case.whole)


def _before(name: str, args: argparse.Namespace) -> tuple[Side, Trace | None]:
    from foretrace.compare import baselines
    from foretrace.compare.sides import side_of

    if baselines.is_baselines(args.before):
        return baselines.load(args.before, args.baseline), None
    if args.baseline is not None:
        raise UsageError(f"--baseline {args.baseline}: {args.before} is not a file of baselines")
    recording = _recording(args.before, name, args)
    return side_of(recording.case, recording.name), recording.case.whole


def _open(args: argparse.Namespace, path: Path) -> Case:
    return _input.open_case(path, no_cache=args.no_cache, reading=_input.reading(args))


def _recording(path: Path, name: str, args: argparse.Namespace) -> Recording:
    from foretrace.compare.subjects import Recording, open_subject

    subject = open_subject(path, name, partial(_open, args))
    if not isinstance(subject, Recording):
        raise UsageError(
            f"{path}: gate takes recordings and Runs; `foretrace compare --fail-on` takes benchmarks, folders and snapshots too"
        )
    return subject


def _print(decision: Decision, args: argparse.Namespace) -> None:
    from foretrace.compare.decision import to_dict
    from foretrace.present.export import gate_comment
    from foretrace.present.text import comparison, tables, terminal

    found = decision.found
    if args.format == "json":
        _output.print_document(tables.document_to_json(to_dict(decision)))
        return
    if args.format == "md":
        _output.print_text(gate_comment.markdown(decision, key=args.key))
        return
    if found is not None:
        terminal.show_lines(lambda width: comparison.step_lines(found, width, decision.gates))
        print()
    print(f"{decision.outcome}: {visible(decision.says)}")


def _report(decision: Decision, args: argparse.Namespace) -> None:
    """The comment, JUnit's XML and annotations, where they are asked for."""
    from foretrace.present.export import gate_comment, gate_reports

    checked, says = decision.gates, decision.says
    if args.markdown is not None:
        with _output.writing(args.markdown) as file:
            file.write_text(gate_comment.markdown(decision, key=args.key), encoding="utf-8")
    if args.junit is not None:
        with _output.writing(args.junit) as file:
            file.write_text(
                gate_reports.junit(checked, decision.outcome, says, suite="foretrace gate"), encoding="utf-8"
            )
    if args.github:
        stream = sys.stdout if args.format == "table" else sys.stderr
        level = gate_reports.LEVELS[decision.outcome]
        for line in gate_reports.github_lines(
            checked, decision.outcome, says, suite="foretrace gate", level=level
        ):
            print(line, file=stream)
