"""What can be compared: a recording or Run, a benchmark, a memory snapshot, or a folder with several of these, told by content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretrace.analyze.snapshots.findings import SnapshotFindings
from foretrace.analyze.snapshots.opening import open_findings
from foretrace.compare.benches import Bench, is_bench, read_bench
from foretrace.diagnose.case import Case
from foretrace.errors import InputError, UsageError
from foretrace.ingest import gathered
from foretrace.ingest.ranks import lowest_rank
from foretrace.ingest.recordings import is_recording
from foretrace.ingest.run import find_recorded
from foretrace.ingest.snapshot_files import snapshot_alone
from foretrace.urls import RemotePath, look_ahead

OpenCase = Callable[[Path], Case]
_MOST_FILES = 1_000


@dataclass(frozen=True)
class Recording:
    """A recording or a Run."""

    name: str
    case: Case


@dataclass(frozen=True)
class Folder:
    """Several recordings, Runs or benchmarks, by their names in the folder."""

    name: str
    files: dict[str, Path]


@dataclass(frozen=True)
class MemorySnapshot:
    """A memory snapshot, or a Run that recorded nothing else."""

    name: str
    findings: SnapshotFindings


Subject = Recording | Bench | Folder | MemorySnapshot


def open_subject(path: Path, name: str, open_case: OpenCase) -> Subject:
    """What a path means."""
    if path.is_file() and is_bench(path):
        return read_bench(path, name)
    if (snapshot := snapshot_alone(path)) is not None and (told := open_findings(snapshot)) is not None:
        return MemorySnapshot(name, told)
    if path.is_dir() and find_recorded(path) is None:
        files = _members(path)
        if not files:
            raise InputError(f"{path}: no recording, Run or benchmark in this folder")
        whole = gathered([*files.values()])
        if whole is not None and set(whole[1]) == set(files.values()):
            return Recording(name, open_case(path))
        if len(files) > 1 and lowest_rank([*files.values()]) is None:
            return Folder(name, files)
        if len(files) == 1:
            return open_subject(next(iter(files.values())), name, open_case)
    return Recording(name, open_case(path))


def _members(folder: Path) -> dict[str, Path]:
    """What a folder holds: Runs and files, each by its path in the folder without the endings that only tell the format."""
    found: dict[str, Path] = {}
    within = sorted(folder.rglob("*"))[: None if isinstance(folder, RemotePath) else _MOST_FILES]
    look_ahead(path for path in within if path.is_file())
    for path in within:
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or any(
            known in path.parents for known in found.values()
        ):
            continue
        if path.is_dir():
            is_run = (path / "run.json").is_file() or (path / "rank.json").is_file()
        else:
            is_run = is_bench(path) or is_recording(path)
        if is_run:
            found[str(inside)] = path
    return found


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last part of each path; as many more as tell them apart."""
    parts = [path.resolve().parts for path in paths]
    longest = max(map(len, parts), default=1)
    for length in range(1, longest + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(set(parts)):
            return names
    return ["/".join(part) for part in parts]


def matched(before: Folder, after: Folder) -> tuple[list[str], list[str], list[str]]:
    """The names in both folders, only in the first, only in the second."""
    both = [name for name in before.files if name in after.files]
    if not both:
        raise UsageError(f"{before.name} and {after.name} hold no files of the same name to compare")
    alone = [name for name in before.files if name not in after.files]
    return both, alone, [name for name in after.files if name not in before.files]
