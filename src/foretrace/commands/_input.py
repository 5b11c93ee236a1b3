"""What the commands that read have in common: PATH, --no-cache, and opening what they name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from foretrace.errors import ForetraceError, InputError, UsageError
from foretrace.units import visible

if TYPE_CHECKING:
    from foretrace.trace import Trace

_LISTED, _INSPECTED = 10, 1_000


def add_path(parser: argparse.ArgumentParser) -> None:
    """Adds PATH and --no-cache."""
    parser.add_argument("path", metavar="PATH", type=Path, help="a recording, or a folder with one in it")
    add_no_cache(parser)


def add_no_cache(parser: argparse.ArgumentParser) -> None:
    """Adds --no-cache."""
    parser.add_argument("--no-cache", action="store_true", help="read the recording itself; keep nothing")


def open_path(args: argparse.Namespace, *, of_ranks: bool = False) -> Trace:
    """The recording that the arguments name, with a progress bar if it is large.

    A folder with recordings of the ranks of one job means the lowest rank, where `of_ranks` allows it.
    """
    from foretrace.ingest import open_trace
    from foretrace.present.text import terminal

    path = _take_run(args) or find_recording(args.path, of_ranks=of_ranks)
    with terminal.reading(path) as progress:
        return open_trace(path, cache=not args.no_cache, progress=progress)


def open_rich(args: argparse.Namespace) -> Trace:
    """The recording of a Run that has stacks and memory, named by `open_path` before."""
    from foretrace.ingest import open_trace
    from foretrace.present.text import terminal

    with terminal.reading(args.rich) as progress:
        return open_trace(args.rich, cache=not args.no_cache, progress=progress)


def open_ranks(path: Path, *, no_cache: bool) -> list[Trace]:
    """The recordings of the other ranks of the job that one is of, where they lie beside it."""
    from foretrace.ingest import open_trace
    from foretrace.ingest.ranks import find_others
    from foretrace.present.text import terminal

    opened = []
    for each in find_others(path):
        with terminal.reading(each) as progress:
            opened.append(open_trace(each, cache=not no_cache, progress=progress))
    return opened


def _take_run(args: argparse.Namespace) -> Path | None:
    """The recording in a Run; the step time measured with it becomes --step-ms where that was not given."""
    from foretrace.ingest.run import find_recorded

    recorded = find_recorded(args.path)
    if recorded is None:
        return None
    if getattr(args, "step_ms", 0) is None and recorded.step_ns is not None:
        args.step_ms = recorded.step_ns / 1e6
    args.rich = getattr(args, "rich", None) or recorded.rich
    return recorded.path


def find_recording(path: Path, *, of_ranks: bool = False) -> Path:
    """The file itself, the one to read in a Run, or the one recording in a folder; of several ranks, the lowest."""
    from foretrace.ingest.ranks import lowest_rank
    from foretrace.ingest.run import find_recorded

    if not path.is_dir():
        return path
    recorded = find_recorded(path)
    if recorded is not None:
        return recorded.path
    found = list(_recordings(path))
    if not found:
        raise InputError(f"{path}: no recording in this folder")
    if len(found) == 1:
        return found[0]
    if of_ranks and (lowest := lowest_rank(found)) is not None:
        return lowest
    names = ", ".join(visible(str(each.relative_to(path))) for each in found[:_LISTED])
    more = f" and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
    raise UsageError(f"{path}: {len(found)} recordings in this folder, name one: {names}{more}")


def _recordings(folder: Path) -> Iterator[Path]:
    """The files under a folder that begin as a recording does."""
    from foretrace.ingest import READERS
    from foretrace.ingest.source import open_source

    for number, file in enumerate(sorted(folder.rglob("*"))):
        if number >= _INSPECTED:
            return
        if not file.is_file() or any(part.startswith(".") for part in file.relative_to(folder).parts):
            continue
        try:
            head = open_source(file).head
        except ForetraceError:
            continue  # not readable is not a recording; naming the file itself tells why
        if any(reader.accepts(head) for reader in READERS):
            yield file
