"""Write the page of one or more recordings as one HTML file that opens anywhere, without a network."""

from __future__ import annotations

import argparse
import re
import sys
from functools import partial
from pathlib import Path

from foretrace.commands import _input
from foretrace.commands.predict import _milliseconds
from foretrace.errors import UsageError

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_STEPS = re.compile(r"(\d+)(?:-(\d+))?")


def configure(parser: argparse.ArgumentParser) -> None:
    """The recordings, the file to write and how large it may be."""
    parser.add_argument(
        "paths", metavar="PATH", type=Path, nargs="+", help="recordings, or folders with one each"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="out.html")
    parser.add_argument(
        "--budget",
        type=_size,
        default=_size("25MB"),
        metavar="SIZE",
        help="drop Python frames, then spans outside the last steps, to stay under it (default: 25MB)",
    )
    parser.add_argument("--steps", type=_steps, metavar="N[-M]", help="keep only these steps of the timeline")
    parser.add_argument(
        "--step-ms",
        type=_milliseconds,
        metavar="MS",
        help="step time measured without a profiler; narrows the ranges",
    )
    parser.add_argument("--force", action="store_true", help="overwrite an existing file")
    _input.add_no_cache(parser)


def run(args: argparse.Namespace) -> None:
    """Writes the file."""
    from foretrace.present.export import report
    from foretrace.present.web.library import place_of
    from foretrace.present.web.recording_view import Session

    if args.output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"{args.output}: end the name in .html")
    if args.output.exists() and not args.force:
        raise UsageError(f"will not overwrite without --force: {args.output}")
    sessions = []
    for number, path in enumerate(args.paths, 1):
        named = argparse.Namespace(path=path, no_cache=args.no_cache, step_ms=args.step_ms)
        trace = _input.open_path(named, of_ranks=True)  # of a Run, its measured step comes along
        group, label = place_of(trace.path, trace.path)
        rich = partial(_input.open_rich, named) if getattr(named, "rich", None) else None
        sessions.append(
            Session(
                trace,
                run_id=str(number),
                group=group,
                label=label,
                step_ms=named.step_ms,
                open_rich=rich,
                open_ranks=partial(_input.open_ranks, trace.path, no_cache=args.no_cache),
            )
        )
    made = report.make(sessions, budget_bytes=args.budget, steps=args.steps)
    try:
        args.output.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{args.output}: cannot be written: {error.strerror}") from error
    for note in made.notes:
        print(note, file=sys.stderr)
    print(f"wrote {args.output}: {args.output.stat().st_size / 1e6:,.1f} MB", file=sys.stderr)


def _size(text: str) -> int:
    match = _BYTES.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise UsageError(f"--budget {text}: a size is a number and kB, MB or GB, as in 25MB")
    return int(float(match[1]) * _FACTORS[(match[2] or "").lower()])


def _steps(text: str) -> tuple[int, int]:
    match = _STEPS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--steps {text}: a step or a range of them, as in 10 or 10-12")
    return int(match[1]), int(match[2] or match[1])
