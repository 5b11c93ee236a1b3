"""What lies in a folder that can be asked about: Runs, recordings, benchmarks and memory snapshots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from foretrace.commands.agent.roots import Roots
from foretrace.compare.benches import is_bench
from foretrace.errors import UsageError
from foretrace.ingest.recordings import is_recording
from foretrace.ingest.run import pass_of
from foretrace.ingest.snapshot_files import is_snapshot_file
from foretrace.present.web.run_files import files_in

_LOOKED_AT = 2_000  # files: each is opened to see what it is
Sort = Literal["run", "recording", "benchmark", "snapshot"]


@dataclass(frozen=True)
class Listed:
    """A Run or a file."""

    path: Path
    sort: Sort
    size_bytes: int
    changed_s: float


def listed(folder: Path, roots: Roots) -> tuple[list[Listed], str]:
    """What a folder holds, the newest first, and what was not looked at; a file is told for itself."""
    files = list(islice(files_in(folder), _LOOKED_AT + 1)) if folder.is_dir() else [folder]
    cut = f"only the first {_LOOKED_AT:,} files were looked at" if len(files) > _LOOKED_AT else ""
    found: dict[Path, Listed] = {}
    for path, sort, file in _told(files[:_LOOKED_AT], folder, roots):
        facts, known = file.stat(), found.get(path)
        size = facts.st_size + (known.size_bytes if known else 0)
        changed = max(facts.st_mtime, known.changed_s if known else 0.0)
        found[path] = Listed(path, sort, size, changed)
    return sorted(found.values(), key=lambda each: (-each.changed_s, each.path)), cut


def _told(files: list[Path], folder: Path, roots: Roots) -> Iterator[tuple[Path, Sort, Path]]:
    """For each file that holds something: what to name it by, what it is, and itself."""
    for file in files:
        try:
            roots.check(file)
        except UsageError:
            continue  # a link that leads out of the roots
        if not file.is_file():
            continue
        of_run = pass_of(file)
        if of_run is not None and of_run.run.is_relative_to(folder):
            yield of_run.run, "run", file
        elif is_bench(file):
            yield file, "benchmark", file
        elif is_recording(file):
            yield file, "recording", file
        elif is_snapshot_file(file):
            yield file, "snapshot", file
