"""Write the page of recordings, benchmarks or memory snapshots as a single HTML file that works offline."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.commands import _input, _output
from foretrace.errors import UsageError
from foretrace.units import visible
from foretrace.urls import named

if TYPE_CHECKING:
    from foretrace.present.web.snapshot_view import SnapshotView

_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|g)?b?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}
_STEPS = re.compile(r"(\d+)(?:-(\d+))?")


def configure(parser: argparse.ArgumentParser) -> None:
    """The recordings, the file to write and how large it may be."""
    parser.add_argument(
        "paths",
        metavar="PATH",
        type=named,
        nargs="+",
        help="recordings, folders with one recording each, benchmarks (bench -o FILE.json), or snapshots of GPU memory",
    )
    _output.add_file(parser, says="the file to write: out.html")
    parser.add_argument(
        "--budget",
        type=_size,
        default=_size("25MB"),
        metavar="SIZE",
        help="largest file size; Python frames go first, then spans outside the last steps (default: 25MB)",
    )
    parser.add_argument("--steps", type=_steps, metavar="N[-M]", help="steps to keep in the timeline")
    _input.add_step_ms(parser)
    _input.add_reading(parser)
    _input.add_no_cache(parser)


def run(args: argparse.Namespace) -> None:
    """Writes the file."""
    from foretrace.compare.benches import is_bench
    from foretrace.ingest.snapshot_files import snapshot_alone
    from foretrace.present.export import report
    from foretrace.present.web.bench_view import BenchView
    from foretrace.present.web.payload import View
    from foretrace.present.web.recording_view import RecordingView
    from foretrace.present.web.run_files import bench_names, place_of

    _output.check_file(args.output, force=args.force, endings=(".html", ".htm"), such_as=".html")
    views: list[View] = []
    names = bench_names(args.paths)
    for number, path in enumerate(args.paths, 1):
        if path.is_file() and is_bench(path):
            views.append(BenchView(path, run_id=str(number), name=names[path]))
            continue
        if (snapshot := snapshot_alone(path)) is not None:
            views.append(_snapshot(snapshot, str(number)))
            continue
        case = _input.open_case(
            path, no_cache=args.no_cache, step_ms=args.step_ms, reading=_input.reading(args), of_sums=True
        )
        group, label = place_of(case.whole.path, case.whole.path)
        views.append(RecordingView(case, run_id=str(number), group=group, label=label))
    made = report.make(views, budget_bytes=args.budget, steps=args.steps)
    with _output.writing(args.output) as file:
        file.write_text(made.text, encoding="utf-8")
    for note in made.notes:
        print(visible(note), file=sys.stderr)
    size = args.output.stat().st_size / 1e6
    print(f"wrote {visible(str(args.output))}: {size:,.1f} MB", file=sys.stderr)


def _snapshot(path: Path, run_id: str) -> SnapshotView:
    from foretrace.present.text import terminal
    from foretrace.present.web.snapshot_view import SnapshotView

    with terminal.reading(path) as progress:
        return SnapshotView(path, run_id=run_id, progress=progress)


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
