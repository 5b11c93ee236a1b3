"""Compare recordings, Runs or benchmarks: which is faster, and what explains the difference."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrace.commands import _gates, _input, _output
from foretrace.errors import MissingDataError, UsageError
from foretrace.units import visible
from foretrace.urls import here, named

if TYPE_CHECKING:
    import polars as pl

    from foretrace.compare.compared import Compared
    from foretrace.compare.gates import Checked, Gate
    from foretrace.compare.steps import StepComparison
    from foretrace.compare.subjects import Recording, Subject
    from foretrace.diagnose.case import Case

_FLAME = (".svg", ".html")
_TABLES = ("causes", "modules", "operators", "kernels", "nodes", "memory")
BASELINES = Path("foretrace-baselines.json")


def configure(parser: argparse.ArgumentParser) -> None:
    """The paths, how to print, gates and baselines."""
    says = "recordings, Runs (folders of `foretrace run`), benchmarks, folders of them, or memory snapshots: before, then after"
    parser.add_argument("paths", metavar="PATH", type=named, nargs="+", help=f"{says}; more make a trend")
    _input.add_no_cache(parser)
    _input.add_reading(parser)
    _output.add_format(parser)
    says = "the table to print (default: causes, which sum to the difference); memory: at the peaks of two snapshots, by line"
    parser.add_argument("--by", choices=_TABLES, default="causes", help=says)
    _output.add_rows(parser)
    says = "write a differential flame graph of two recordings: .svg or .html"
    parser.add_argument("--flame", metavar="FILE", type=here, help=says)
    parser.add_argument("--force", action="store_true", help="overwrite existing files and baselines")
    _gates.add_gates(parser)
    group = parser.add_argument_group("baselines")
    group.add_argument("--baseline", metavar="NAME", help="compare PATH with a saved baseline")
    group.add_argument("--save-baseline", metavar="NAME", help="save the last PATH as a baseline")
    says = f"the file that holds baselines (default: {BASELINES})"
    group.add_argument("--baselines", metavar="FILE", type=here, default=BASELINES, help=says)


def run(args: argparse.Namespace) -> int:
    """Prints the comparison; 1 where a gate failed."""
    gates = _gates.parsed(args)
    if args.flame is not None:
        _output.check_file(args.flame, force=args.force, endings=_FLAME, such_as=".svg or .html")
        if args.baseline or len(args.paths) != 2:
            raise UsageError("--flame needs two recordings")
    least = 1 if args.baseline or args.save_baseline else 2
    if len(args.paths) < least:
        raise UsageError("compare needs two paths, or one and --baseline")
    if args.baseline and len(args.paths) > 1:
        raise UsageError("--baseline is what one PATH is compared with: name no other")
    subjects = _subjects(args)
    if args.baseline:
        code = _against_baseline(subjects[0], gates, args)
    elif len(subjects) > 2:
        code = _trend(subjects, gates, args)
    elif len(subjects) == 2:
        code = _pair(subjects, gates, args)
    else:
        code = 0
    if args.save_baseline:
        _save(_recordings(subjects[-1:])[0], gates, args)
    return code


def _open(args: argparse.Namespace, path: Path) -> Case:
    return _input.open_case(path, no_cache=args.no_cache, reading=_input.reading(args))


def _subjects(args: argparse.Namespace) -> list[Subject]:
    from foretrace.compare.subjects import open_subject, short_names

    names = short_names(args.paths)
    return [
        open_subject(path, name, partial(_open, args)) for path, name in zip(args.paths, names, strict=True)
    ]


def _recordings(subjects: list[Subject]) -> list[Recording]:
    from foretrace.compare.subjects import Recording

    recordings = [subject for subject in subjects if isinstance(subject, Recording)]
    if len(recordings) < len(subjects):
        other = next(subject.name for subject in subjects if not isinstance(subject, Recording))
        raise UsageError(f"{other}: only recordings and Runs can have a baseline or make a trend")
    return recordings


def _pair(subjects: list[Subject], gates: list[Gate], args: argparse.Namespace) -> int:
    from foretrace.compare.compared import compare_subjects, to_dict
    from foretrace.compare.subjects import MemorySnapshot
    from foretrace.compare.traces import Comparison
    from foretrace.present.text import comparison, terminal

    if all(isinstance(subject, MemorySnapshot) for subject in subjects):
        return _snapshots(subjects, gates, args)
    found = compare_subjects(subjects[0], subjects[1], partial(_open, args))
    results = _gates.checked(gates, found)
    if args.flame is not None:
        _write_flame(found, args.flame)
    if args.by != "causes":
        if not isinstance(found, Comparison):
            raise UsageError(f"--by {args.by} needs two recordings")
        if args.by == "memory" and found.memory is None:
            raise MissingDataError(
                "--by memory needs a snapshot in both Runs; record with `foretrace run --memory`"
            )
        _output.print_frame(comparison.drill(found, args.by), _printing(args))
        if args.format == "table":
            terminal.show_lines(lambda width: comparison.gate_lines(results, width))
    elif args.format != "table":
        _document(to_dict(found), comparison.frame(found), comparison.markdown(found), results, args)
    elif isinstance(found, Comparison):
        terminal.show_lines(lambda width: comparison.lines(found, width, results))
    else:
        _bare(found, results, args)
    steps = found.steps if isinstance(found, Comparison) else found
    _gates.report(args, results, steps.verdict, found.says, comparison.markdown(found))
    return _gates.exit_code(results, strict=args.strict)


def _snapshots(subjects: list[Subject], gates: list[Gate], args: argparse.Namespace) -> int:
    """Two memory snapshots, at their peaks by source line."""
    from foretrace.compare import memory
    from foretrace.compare.gates import check_peaks
    from foretrace.compare.steps import SCHEMA
    from foretrace.compare.subjects import MemorySnapshot
    from foretrace.present.text import comparison, memory_page, memory_words, tables, terminal

    if args.by not in ("causes", "memory") or args.flame is not None:
        raise UsageError(f"{subjects[0].name}: memory snapshots have no steps, only memory by source line")
    both = [subject.findings for subject in subjects if isinstance(subject, MemorySnapshot)]
    found = memory.same_device(*both)
    if found is None:
        raise MissingDataError(
            f"{subjects[0].name}: nothing of {both[1].devices[0].name}, which the second is about"
        )
    results = [check_peaks(gate, *found.peaks_bytes) for gate in gates]
    says = memory_words.compared_says(found.before, found.after)
    text = f"**{found.verdict}**: {visible(says)}\n\n{tables.to_markdown(found.lines)}"
    if args.format == "table":
        top = args.limit or memory_page.TOP
        terminal.show_lines(
            lambda width: memory_page.compared_lines(found.before, found.after, "line", top, width)
        )
        terminal.show_lines(lambda width: comparison.gate_lines(results, width))
    else:
        document = {"schema": SCHEMA, "verdict": found.verdict, "says": says, "memory": memory.to_dict(found)}
        _document(document, found.lines, text, results, args)
    _gates.report(args, results, found.verdict, says, text)
    return _gates.exit_code(results, strict=args.strict)


def _write_flame(found: Compared, output: Path) -> None:
    from foretrace.compare.traces import Comparison
    from foretrace.present.export import difference_flame

    if not isinstance(found, Comparison):
        raise UsageError("--flame needs two recordings")
    is_page = output.name.lower().endswith(".html")
    text = (difference_flame.to_html if is_page else difference_flame.to_svg)(found)
    with _output.writing(output) as file:
        file.write_text(text, encoding="utf-8")
    print(f"wrote {visible(str(output))}", file=sys.stderr)


def _bare(found: Compared, results: list[Checked], args: argparse.Namespace) -> None:
    """Benchmarks and folders: what is said, and one table."""
    from foretrace.compare.traces import Comparison
    from foretrace.present.text import comparison, terminal

    assert not isinstance(found, Comparison)  # these have a page of their own
    print(f"{found.verdict}: {visible(found.says)}\n")
    _output.print_frame(comparison.frame(found), _printing(args))
    if results:
        print()
        terminal.show_lines(lambda width: comparison.gate_lines(results, width))


def _against_baseline(subject: Subject, gates: list[Gate], args: argparse.Namespace) -> int:
    from foretrace.compare import baselines
    from foretrace.compare.sides import side_of
    from foretrace.compare.steps import compare_sides

    recording = _recordings([subject])[0]
    before = baselines.load(args.baselines, args.baseline)
    found = compare_sides(before, side_of(recording.case, recording.name))
    if args.by != "causes":
        raise UsageError(f"--by {args.by} needs two recordings: a baseline holds only causes and counts")
    results = _gates.checked_steps(gates, found, None, recording.case.whole)
    _print_steps(found, results, args)
    return _gates.exit_code(results, strict=args.strict)


def _print_steps(found: StepComparison, results: list[Checked], args: argparse.Namespace) -> None:
    from foretrace.compare.steps import to_dict
    from foretrace.present.text import comparison, terminal

    text = comparison.steps_markdown(found)
    if args.format == "table":
        terminal.show_lines(lambda width: comparison.step_lines(found, width, results))
    else:
        document = {**to_dict(found), "memory": None}  # a baseline holds none
        _document(document, comparison.causes_frame(found), text, results, args)
    _gates.report(args, results, found.verdict, found.says, text)


def _trend(subjects: list[Subject], gates: list[Gate], args: argparse.Namespace) -> int:
    from foretrace.compare.compared import trend, trend_to_dict
    from foretrace.compare.sides import side_of
    from foretrace.present.text import comparison, tables, terminal

    if args.by != "causes":
        raise UsageError(f"--by {args.by} needs exactly two recordings")
    recordings = _recordings(subjects)
    rows = trend([side_of(recording.case, recording.name) for recording in recordings])
    last = rows[-1].against_first
    assert last is not None  # there are more than two
    results = _gates.checked_steps(gates, last, recordings[0].case.whole, recordings[-1].case.whole)
    frame = comparison.trend_frame(rows)
    text = tables.to_markdown(frame)
    if args.format == "table":
        _output.print_frame(frame, _printing(args))
        terminal.show_lines(lambda width: comparison.note_lines(comparison.trend_notes(rows), width))
        if results:
            print()
            terminal.show_lines(lambda width: comparison.gate_lines(results, width))
    else:
        _document({**trend_to_dict(rows), "memory": None}, frame, text, results, args)
    _gates.report(args, results, last.verdict, last.says, text)
    return _gates.exit_code(results, strict=args.strict)


def _document(
    document: dict[str, Any], frame: pl.DataFrame, text: str, results: list[Checked], args: argparse.Namespace
) -> None:
    """Prints JSON, CSV or Markdown."""
    from foretrace.present.export import gate_reports
    from foretrace.present.text import tables

    if args.format == "json":
        _output.print_document(tables.document_to_json({**document, "gates": _gates.as_dicts(results)}))
    elif args.format == "csv":
        _output.print_frame(frame, _printing(args))
    else:
        _output.print_text(text + gate_reports.markdown(results))


def _printing(args: argparse.Namespace) -> _output.Printing:
    return _output.Printing(args.format, args.sort, args.limit)


def _save(recording: Recording, gates: list[Gate], args: argparse.Namespace) -> None:
    """Adds the recording to the file of baselines, with the values that gates ask for."""
    from foretrace.compare import baselines
    from foretrace.compare.gates import saved_values
    from foretrace.compare.sides import side_of

    side = side_of(recording.case, recording.name)
    values = saved_values(gates, recording.case.whole)
    text = baselines.with_baseline(args.baselines, args.save_baseline, side, values, force=args.force)
    with _output.writing(args.baselines) as file:
        file.write_text(text, encoding="utf-8")
    print(f"saved {visible(args.save_baseline)} in {visible(str(args.baselines))}", file=sys.stderr)
