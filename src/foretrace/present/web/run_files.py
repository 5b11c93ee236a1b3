"""Files of runs: how a recording on disk is known, named and grouped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from foretrace.compare.benches import is_bench
from foretrace.compare.subjects import short_names
from foretrace.ingest.run import pass_of
from foretrace.present.web.recording_view import as_text, display_name
from foretrace.urls import walked

# Size, time of the last change as it is told and as the system knows it, inode: another one is another recording.
Stamp = tuple[int, int, int, int]
# A name that tells processes of one program apart, as torch's handler gives: host_1234, rank-0.
_ONE_PROCESS = re.compile(r"rank[-_]?[0-9]+|_[0-9]+$", re.IGNORECASE)


def identity(path: Path) -> str:
    """The id of the run of a file: the same at the next start, so that links keep working."""
    return hashlib.blake2b(str(path).encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def place_of(file: Path, named: Path) -> tuple[str, str]:
    """The group that a run stands under and what it is called there: `naive_attention` and `slow.rich`.

    The passes of a Run stand together, each called by its kind.
    """
    name = display_name(file.name)
    if (recorded := pass_of(file)) is not None:
        below = named in recorded.run.parents
        group = recorded.run.relative_to(named).as_posix() if below else recorded.run.name
        rank = "" if recorded.rank is None else f"rank {recorded.rank} "
        return as_text(group), as_text(f"{rank}{recorded.kind}")
    if file != named and file.parent != named:
        return as_text(file.parent.relative_to(named).as_posix()), name
    program, _, variant = name.partition(".")
    if program and variant and not _ONE_PROCESS.search(program):
        return program, variant
    return as_text(file.parent.name), name


def bench_names(named: Sequence[Path]) -> dict[Path, str]:
    """What the benchmarks among these files are called: so much of each path as tells them apart."""
    files = [path for path in named if path.is_file() and is_bench(path)]
    return {path: as_text(display_name(name)) for path, name in zip(files, short_names(files), strict=True)}


def files_in(folder: Path) -> Iterator[Path]:
    """Every file under a folder by name, without hidden ones; a folder's own files before those below it."""
    return walked(folder)


def stamp_of(file: Path) -> Stamp | None:
    """What tells a file as it is now from another; None where there is none to read."""
    try:
        facts = file.stat()
    except OSError:
        return None
    stamp = (facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino)
    return stamp if file.is_file() else None
