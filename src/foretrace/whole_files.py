"""Files that torch writes: whole, or not there, however full the disk is."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole_or_gone(partial: Path) -> Iterator[None]:
    """A file that could not be written to its end does not stay, nor what torch writes beside it until then."""
    try:
        yield
    except BaseException:
        for file in (partial, partial.with_name(f"{partial.name}.tmp")):
            if file.exists():
                os.truncate(file, 0)  # who has it open still would keep its bytes on the disk
                file.unlink()
        raise


def check_end(file: Path, end: bytes) -> None:
    """Raises OSError where a file is not there or breaks off."""
    try:
        with file.open("rb") as written:
            written.seek(max(file.stat().st_size - 64, 0))
            whole = written.read().rstrip().endswith(end)
    except FileNotFoundError:
        whole = False
    if not whole:
        free = shutil.disk_usage(file.parent).free
        raise OSError(
            f"the recording could not be written to {file.parent} ({free / 2**20:,.1f} MiB are free there)"
        )
