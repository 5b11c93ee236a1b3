"""What `compare` and `gate` have for build servers: --fail-on, --strict, --junit, --github and --markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from foretrace.commands import _output
from foretrace.errors import UsageError
from foretrace.urls import here

if TYPE_CHECKING:
    from foretrace.compare.compared import Compared
    from foretrace.compare.gates import Checked, Gate
    from foretrace.compare.steps import StepComparison
    from foretrace.trace import Trace

_XML, _MARKDOWN = (".xml",), (".md", ".markdown")


def add_gates(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `compare`."""
    group = parser.add_argument_group("as a gate")
    add_limits(group)
    group.add_argument("--strict", action="store_true", help="exit with 1 also where a gate is inconclusive")
    add_reports(group)


def add_limits(group: argparse._ActionsContainer) -> None:
    """Adds --fail-on."""
    group.add_argument(
        "--fail-on",
        metavar="LIMIT",
        action="append",
        default=[],
        help="exit with 1 where this comes true, such as 'step_ms > +3%%'; also peak_bytes, kernels, launches, "
        "exposed_communication_pct, ANALYSIS.VALUE; may be given several times",
    )


def add_reports(group: argparse._ActionsContainer) -> None:
    """Adds --junit, --markdown and --github."""
    group.add_argument("--junit", metavar="FILE", type=here, help="write the gates as JUnit XML")
    group.add_argument("--markdown", metavar="FILE", type=here, help="write a comment for a pull request")
    group.add_argument("--github", action="store_true", help="print annotations for GitHub Actions")


def parsed(args: argparse.Namespace) -> list[Gate]:
    """The limits; wrong ones, and files that may not be written, are told before anything is read."""
    from foretrace.compare.gates import parse

    if args.junit is not None:
        _output.check_file(args.junit, force=args.force, endings=_XML, such_as=".xml")
    if args.markdown is not None:
        _output.check_file(args.markdown, force=args.force, endings=_MARKDOWN, such_as=".md")
    if getattr(args, "strict", False) and not args.fail_on:
        raise UsageError("--strict needs --fail-on")
    return [parse(text) for text in args.fail_on]


def checked(gates: list[Gate], found: Compared) -> list[Checked]:
    """All gates on two things that were compared."""
    return [result for gate in gates for result in _on(gate, found)]


def checked_steps(
    gates: list[Gate], found: StepComparison, before: Trace | None, after: Trace
) -> list[Checked]:
    """All gates on the steps of two sides; a baseline has no trace."""
    from foretrace.compare.gates import check

    return [check(gate, found, before, after) for gate in gates]


def _on(gate: Gate, found: Compared) -> Iterator[Checked]:
    from foretrace.compare.compared import FolderComparison
    from foretrace.compare.gates import check, check_case
    from foretrace.compare.traces import Comparison

    if isinstance(found, FolderComparison):
        for name, pair in found.pairs:
            yield from (replace(result, says=f"{name}: {result.says}") for result in _on(gate, pair))
    elif isinstance(found, Comparison):
        yield check(gate, found.steps, found.a_trace, found.b_trace)
    else:
        yield from (result for row in found.rows if (result := check_case(gate, row)) is not None)


def exit_code(results: list[Checked], *, strict: bool) -> int:
    """1 where a gate failed."""
    states = {result.state for result in results}
    return int("failed" in states or (strict and "inconclusive" in states))


def report(args: argparse.Namespace, results: list[Checked], verdict: str, says: str, text: str) -> None:
    """Writes and prints what was asked for; `text` is the comparison in Markdown."""
    from foretrace.present.export import gate_reports

    if args.junit is not None:
        with _output.writing(args.junit) as file:
            file.write_text(gate_reports.junit(results, verdict, says), encoding="utf-8")
    if args.markdown is not None:
        with _output.writing(args.markdown) as file:
            file.write_text(text + gate_reports.markdown(results), encoding="utf-8")
    if args.github:
        # GitHub reads both streams; a document on standard output stays one.
        stream = sys.stderr if args.format in ("json", "csv") else sys.stdout
        for line in gate_reports.github_lines(results, verdict, says):
            print(line, file=stream)


def as_dicts(results: list[Checked]) -> list[dict[str, str]]:
    """The gates as JSON has them."""
    return [{"limit": result.gate.text, "state": result.state, "says": result.says} for result in results]
