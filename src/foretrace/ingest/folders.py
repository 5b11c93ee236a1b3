"""The files of a folder in which recordings may lie."""

from __future__ import annotations

from pathlib import Path

from foretrace.urls import RemotePath, look_ahead

_INSPECTED = 1_000


def files_in(folder: Path) -> tuple[Path, ...]:
    """The files of a folder and those below it, in order, without hidden ones; of a very full folder on disk the first."""
    inspected = None if isinstance(folder, RemotePath) else _INSPECTED
    found = tuple(
        file
        for file in sorted(folder.rglob("*"))[:inspected]
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
    look_ahead(found)
    return found
