"""List what to change, ordered by how much time each change would save."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _input, _output, summary
from foretrace.errors import FaultError, MissingDataError, UsageError, contained
from foretrace.units import visible
from foretrace.urls import here, named

if TYPE_CHECKING:
    from foretrace.analyze.trust import Trust
    from foretrace.diagnose.case import Case
    from foretrace.diagnose.diagnosis import Diagnosis
    from foretrace.present.agent.answer import Answer
    from foretrace.trace import Trace
    from foretrace.trial.ledger import Kept


def configure(parser: argparse.ArgumentParser) -> None:
    """PATH, the measured step time and how to print."""
    says = "a recording, or a folder with one recording, a Run, or the recordings of all ranks of a job"
    parser.add_argument("path", metavar="PATH", type=named, nargs="?", help=says)
    _input.add_no_cache(parser)
    _input.add_reading(parser)
    _input.add_step_ms(parser)
    _input.add_rich(parser)
    parser.add_argument("--explain", metavar="RULE", help="print the manual page of a rule instead")
    _output.add_format(parser, formats=("table", "json", "md", "agent", "sarif"))
    says = "for --format sarif: the checkout that paths are relative to (default: the git repository around this folder)"
    parser.add_argument("--source-root", metavar="FOLDER", type=here, help=says)


def run(args: argparse.Namespace) -> None:
    """Prints the diagnosis, or a rule's page."""
    if args.explain:
        print(manual(args.explain))
        return
    if args.path is None:
        raise UsageError("diagnose needs a PATH, or --explain RULE")
    if args.source_root is not None and args.format != "sarif":
        raise UsageError("--source-root needs --format sarif")
    if args.source_root is not None and not args.source_root.is_dir():
        raise UsageError(f"--source-root {args.source_root}: not a folder")
    case = _input.open_case(
        args.path,
        no_cache=args.no_cache,
        step_ms=args.step_ms,
        rich=args.rich,
        reading=_input.reading(args),
    )
    if args.format == "agent":
        from foretrace.present.agent.answer import shown
        from foretrace.present.agent.brief import BRIEF_TOKENS

        print(shown(agent_answer(case, args.path.resolve()), most_tokens=BRIEF_TOKENS, commands=True).text)
        return
    if args.format == "sarif":
        _print_sarif(case, args.source_root)
        return
    print_diagnosis(case, args.format)


def _print_sarif(case: Case, root: Path | None) -> None:
    """Prints the findings for a code host, and says how many have no line in the repository."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnosed
    from foretrace.present.export.sarif import Repository, repository_root, to_sarif
    from foretrace.present.text import tables
    from foretrace.units import counted

    case.require_replay()
    diagnosis = diagnosed(case, RULES)
    repository = Repository(root or repository_root(Path.cwd()))
    log = to_sarif(diagnosis, judged(case.whole), repository)
    print(tables.document_to_json(log))
    missing = len(diagnosis.findings) - len(log["runs"][0]["results"])
    if missing:
        says = f"{counted(missing, 'finding')} without a line in {visible(str(repository.root))}: in the log as notifications"
        print(f"foretrace: {says}", file=sys.stderr)


def agent_answer(case: Case, path: Path, *, top: int | None = None, roots: Sequence[Path] = ()) -> Answer:
    """The diagnosis for a program that reads by the token; where nothing can be replayed, why."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnosed
    from foretrace.diagnose.step_times import step_times
    from foretrace.present.agent.answer import Answer
    from foretrace.present.agent.brief import brief, next_step, reasons
    from foretrace.present.text import tables

    trust = judged(case.whole)
    try:
        case.require_replay()
    except MissingDataError as reason:
        command = f"summary {shlex.quote(str(path))}"
        following = next_step("show", path, command=command, analysis="overview")
        return Answer(trust=trust.verdict, reasons=reasons(trust), says=str(reason), next=following)
    diagnosis = diagnosed(case, RULES)
    document = _contract(case, diagnosis)
    answer = brief(diagnosis, trust, step_times(case), document["overview"], path, top=top, roots=roots)
    return replace(answer, document=lambda: tables.document_to_json(document))


def print_diagnosis(
    case: Case, form: str, *, parts: tuple[str, ...] = ("trust", "overview", "steps")
) -> None:
    """Prints what is wrong with a recorded program; where it cannot be replayed, the page of the recording."""
    from foretrace.diagnose import RULES
    from foretrace.diagnose.diagnosis import diagnose
    from foretrace.diagnose.step_times import step_times
    from foretrace.present.text import findings, tables, terminal

    trace = case.whole
    try:
        case.require_replay()
    except MissingDataError as reason:
        if form != "table":
            raise
        summary.print_page(trace, form)
        terminal.show_note("findings", str(reason))
        return
    # What is told of the whole recording comes first: while the rules' tables are not there yet, it finds more room.
    at_hand = case.result if case.trace is trace else None
    results, missing = summary.analyse(trace, parts, run=at_hand) if form == "table" else ([], {})
    diagnosis = diagnose(case, RULES)
    came_true, skipped = _came_true(case, diagnosis)
    if form == "json":
        document = _contract(case, diagnosis)
        quoted = {"ledger": [kept.__dict__ for kept in came_true]} if came_true else {}
        unread = {"ledger_skipped": skipped} if skipped else {}
        _output.print_document(tables.document_to_json({**document, **quoted, **unread}))
    elif form == "md":
        _output.print_text(findings.to_markdown(diagnosis, step_times(case), trace.path.name))
    else:
        terminal.show_diagnosis(trace, results, missing, diagnosis, step_times(case))
        if came_true:
            from foretrace.trial import ledger

            terminal.show_note("ledger", "; ".join(map(ledger.sentence, came_true)))
    _output.warn(f"{problem}; it is not quoted" for problem in skipped)


def _came_true(case: Case, diagnosis: Diagnosis) -> tuple[list[Kept], list[str]]:
    """How far predictions of these rules came true in this project, where enough were measured; and lines that are damaged."""
    # The ledger's types take a while to load.
    if not Path(".foretrace", "ledger.jsonl").exists():
        return [], []
    from foretrace.trial import ledger, verification

    kept = ledger.read(ledger.DEFAULT)
    rules = dict.fromkeys(finding.rule for finding in diagnosis.findings)
    quotes = ledger.quotes(kept.records, rules, verification.device_of(case))
    return [quotes[rule] for rule in rules if rule in quotes], list(kept.problems)


def _contract(case: Case, diagnosis: Diagnosis) -> dict[str, Any]:
    import polars as pl

    from foretrace import analyze
    from foretrace.analyze.result import Result
    from foretrace.diagnose.bound import bound
    from foretrace.diagnose.step_times import step_times
    from foretrace.present.text import findings

    try:
        overview = analyze.run(case.whole, "overview")
    except FaultError as fault:
        overview = Result(says=str(fault), table=pl.DataFrame())
    times = step_times(case)
    facts = {
        "steps": len(case.whole.steps),
        "step_ms": case.step_ns / 1e6,
        "step_known_by": times.known_by,
        "recorded_step_ms": _milliseconds(times.recorded_ns),
        "unprofiled_step_ms": _milliseconds(times.unprofiled_ns),
        "estimated_step_ms": _milliseconds(times.estimated_ns),
        **{f"step_{what}_count": count for what, count in times.taken_in.items()},
        **{f"step_{what}_per_s": times.per_s(what) for what in times.taken_in},
        "bound": bound(case),
    }
    return findings.to_json(case.whole, judged(case.whole).to_dict(), overview, diagnosis, facts)


def _milliseconds(time_ns: float | None) -> float | None:
    return None if time_ns is None else time_ns / 1e6


def judged(trace: Trace) -> Trust:
    """The trust report of a recording, also where making it fails."""
    from foretrace.analyze.concepts.trust.evidence import Note
    from foretrace.analyze.trust import Trust, judge

    try:
        with contained("trust"):
            return judge(trace)
    except FaultError as fault:
        return Trust("no", (Note("fault", "no", str(fault)),))


def manual(name: str) -> str:
    """The manual page of a rule."""
    from foretrace.diagnose import find

    rule = find(name)
    limits = [f"    {key:<24} {limit} ({limit.of}; {limit.source})" for key, limit in rule.limits.items()]
    return "\n".join([rule.name, "", rule.manual, *(["", "Limits", *limits] if limits else [])])
