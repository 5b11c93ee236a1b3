"""Folders for copies of recordings, as from a pipe or a URL: a copy that a killed process left goes when the next one makes its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_locks: dict[Path, int] = {}


def make(kind: str) -> Path:
    """A new folder of this kind, which only the user can read and which is this process's until `remove`, or its end."""
    prefix = f"foretrace-{kind}-"
    _remove_abandoned(prefix)
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix))
        if fcntl is None:
            return folder
        lock = _locked(folder)
        if lock is not None and folder.exists():  # no other process took it for an abandoned one meanwhile
            _locks[folder] = lock
            return folder


def remove(folder: Path) -> None:
    """Removes the folder with what is in it."""
    shutil.rmtree(folder, ignore_errors=True)
    if (lock := _locks.pop(folder, None)) is not None:
        os.close(lock)


def _remove_abandoned(prefix: str) -> None:
    """Removes folders of processes that were killed: the system gives their locks back."""
    if fcntl is None:
        return
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder in _locks:
                continue
            lock = _locked(folder)
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _locked(folder: Path) -> int | None:
    """A descriptor with a lock on the folder; `None` if another process has one, or the folder is gone."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
