"""The BenchView: one benchmark of `foretrace bench` as the page sees it."""

from __future__ import annotations

import json
from pathlib import Path

from foretrace.bench.benchmark import STATUSES, Benchmark
from foretrace.compare.benches import read_bench
from foretrace.errors import FormatError, InputError
from foretrace.present.web.recording_view import display_name
from foretrace.units import visible


class BenchView:
    """A benchmark, and the names under which the page lists it: those of one kind stand together."""

    def __init__(self, path: Path, *, run_id: str = "run", name: str | None = None) -> None:
        self.id = run_id
        self.name = self.label = visible(name or display_name(path.name))
        self.title = ""
        self.benchmark = read(path)
        self.group = self.benchmark.kind
        self.compared = read_bench(path, self.name)


def read(path: Path) -> Benchmark:
    """The benchmark in a file; an error names the file, and what is wrong with it."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: damaged: {error}") from error
    try:
        found = Benchmark.from_dict(document if isinstance(document, dict) else {})
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from error
    if not _is_whole(found):
        raise FormatError(f"{path}: damaged: not what `foretrace bench -o FILE.json` writes")
    return found


def _is_whole(found: Benchmark) -> bool:
    """Whether its fields are of the types that they are written with."""
    texts = (found.kind, found.device, found.torch, *found.case, *found.notes)
    maybe = (found.began, found.command)
    return (
        all(isinstance(text, str) for text in texts)
        and all(text is None or isinstance(text, str) for text in maybe)
        and isinstance(found.timing, dict)
        and isinstance(found.clock, dict)
        and bool(found.rows)
        and all(isinstance(row, dict) and row.get("status") in STATUSES for row in found.rows)
    )
