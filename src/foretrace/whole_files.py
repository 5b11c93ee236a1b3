"""Files that are whole or not there, however a process ends and however full the disk is."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A new file beside `target`, which replaces it at the end of the block; after an error nothing has changed.

    It has the mode of the file that it replaces, else that of any new file of this process.
    """
    mode = target.stat().st_mode & 0o777 if target.exists() else None
    partial = _created(target.parent, 0o666 if mode is None else mode)
    with whole_or_gone(partial):
        yield partial
        if mode is not None:
            partial.chmod(mode)  # the umask took its part
        partial.replace(target)


def replace_text(target: Path, text: str) -> None:
    """Replaces a file by one with this text."""
    with replacing(target) as partial:
        partial.write_text(text, encoding="utf-8")


def _created(folder: Path, mode: int) -> Path:
    """An empty file with a name of its own; the system applies the umask, which cannot be read without setting it."""
    while True:
        # Not made from the target's name, which may be as long as names can be.
        partial = folder / f".foretrace-{secrets.token_hex(6)}"
        try:
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
        except FileExistsError:
            continue
        return partial


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
