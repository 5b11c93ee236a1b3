"""What the commands that read have in common: PATH, --no-cache, --step, --pid, --capture-trace, --ncu, --step-ms, and opening what they name."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import UsageError
from foretrace.urls import named

if TYPE_CHECKING:
    from foretrace.diagnose.case import Case
    from foretrace.ingest.reading import Reading
    from foretrace.trace import Trace

_SETTINGS = {
    # Nothing here multiplies matrices, and each thread for that spins for a while when it starts.
    "OPENBLAS_NUM_THREADS": "1",
    # One heap for all threads of polars, which gives memory back after 0.1 s: with a heap for each, a fifth of the memory of a
    # diagnosis was what some had needed once.
    "_RJEM_MALLOC_CONF": "narenas:1,dirty_decay_ms:100,muzzy_decay_ms:0",
}


def add_path(parser: argparse.ArgumentParser) -> None:
    """Adds PATH, --no-cache, --step, --pid, --capture-trace and --ncu."""
    parser.add_argument(
        "path",
        metavar="PATH",
        type=named,
        help="a recording, or a folder with one recording; a file or a URL",
    )
    add_no_cache(parser)
    add_reading(parser)


def add_no_cache(parser: argparse.ArgumentParser) -> None:
    """Adds --no-cache."""
    parser.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds --step, --pid, --capture-trace and --ncu."""
    says = (
        "the ranges that are steps: a name, how names begin, or a pattern after ~ (default: found by itself)"
    )
    parser.add_argument("--step", metavar="NAME", help=says)
    says = "of a file with several processes, the one to read (default: the one with most GPU work)"
    parser.add_argument("--pid", metavar="PID", help=says)
    says = (
        "a recording of the capture of PATH's CUDA graphs, or of the same program without graphs, or a folder of them: gives "
        "replayed kernels their operators, modules and shapes (may be repeated)"
    )
    parser.add_argument("--capture-trace", metavar="FILE", type=named, action="append", default=[], help=says)

    says = "counters of the same program's kernels, as Nsight Compute printed them (--csv); may be given more than once"
    parser.add_argument("--ncu", metavar="FILE", type=named, action="append", default=[], help=says)


def _load_libraries() -> None:
    """Loads numpy and polars with settings that they read once; then the environment is as it was, for programs to inherit."""
    if "numpy" in sys.modules or "polars" in sys.modules:
        return
    ours = {name: value for name, value in _SETTINGS.items() if name not in os.environ}
    os.environ.update(ours)
    try:
        import numpy  # noqa: F401
        import polars  # noqa: F401
    finally:
        for name in ours:
            del os.environ[name]


def reading(args: argparse.Namespace) -> Reading:
    """What --step, --pid, --capture-trace and --ncu say; opens the recordings of captures."""
    _load_libraries()
    from foretrace.ingest.reading import Reading
    from foretrace.ingest.recordings import find_recordings

    as_found = Reading()
    captures = [
        read(file, as_found, no_cache=args.no_cache)
        for path in args.capture_trace
        for file in find_recordings(path)
    ]
    return Reading(args.step, args.pid, tuple(captures), tuple(args.ncu))


def add_step_ms(parser: argparse.ArgumentParser) -> None:
    """Adds --step-ms."""
    says = "step time measured without a profiler; makes predictions more precise"
    parser.add_argument("--step-ms", type=_milliseconds, metavar="MS", help=says)


def add_rich(parser: argparse.ArgumentParser) -> None:
    """Adds --rich."""
    says = "a recording of the same program with stacks, for source lines; times still come from PATH"
    parser.add_argument("--rich", type=named, metavar="FILE", help=says)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"--step-ms {text}: a time in milliseconds is above 0")
    return value


def open_path(path: Path, *, no_cache: bool, reading: Reading) -> Trace:
    """The recording that PATH means, with a progress bar if it is large."""
    from foretrace.ingest.recordings import find_recording

    recorded = find_recording(path, counters=reading.counters)
    return recorded.told(read(recorded.path, reading, no_cache=no_cache))


def open_case(
    path: Path,
    *,
    no_cache: bool,
    step_ms: float | None = None,
    rich: Path | None = None,
    reading: Reading | None = None,
    of_sums: bool = False,
) -> Case:
    """The Case of what PATH means, with a progress bar for each recording that is large."""
    from foretrace.diagnose import opening
    from foretrace.ingest.reading import Reading

    return opening.open_case(
        path,
        step_ms=step_ms,
        rich=rich,
        reading=reading or Reading(),
        read=partial(read, no_cache=no_cache),
        of_sums=of_sums,
    )


def read(file: Path, reading: Reading, *, no_cache: bool) -> Trace:
    """One recording, with a progress bar if it is large."""
    from foretrace.ingest import open_trace
    from foretrace.present.text import terminal

    with terminal.reading(file) as progress:
        return open_trace(
            file,
            cache=not no_cache,
            step=reading.step,
            pid=reading.pid,
            capture_traces=reading.capture_traces,
            progress=progress,
        )
