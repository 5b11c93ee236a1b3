"""The files of a folder in which recordings may lie."""

from __future__ import annotations

from pathlib import Path

_INSPECTED = 1_000


def files_in(folder: Path) -> tuple[Path, ...]:
    """The files of a folder and those below it, in order, without hidden ones; of a very full folder the first."""
    return tuple(
        file
        for file in sorted(folder.rglob("*"))[:_INSPECTED]
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    )
