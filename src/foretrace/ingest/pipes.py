"""What comes through a pipe (`<(zcat ...)`, `/dev/stdin`, a FIFO), kept as a file: readers look at a recording more than once."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from weakref import finalize

from foretrace import scratch_folders
from foretrace.errors import InputError

PATIENCE_S = 15.0  # without a writer, or without anything new from it
_PIECE = 1 << 20


class _Kept:
    """The folder of one copy: it goes with the process."""

    def __init__(self) -> None:
        self.folder = scratch_folders.make("pipe")
        finalize(self, scratch_folders.remove, self.folder)


_kept: dict[str, _Kept] = {}  # by path: one that was read is empty


def as_file(path: Path) -> Path:
    """The path itself where it is a file or a folder, or is not there; a copy of what a pipe gives, to its end."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path  # opening it says what is wrong
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
        return path
    if not stat.S_ISFIFO(mode):
        raise InputError(f"{path}: neither a file nor a pipe")
    if str(path) not in _kept:
        kept = _Kept()
        copy = kept.folder / path.name
        _copy(path, copy)
        # The cache knows a recording by its content, its name and its time; what was piped has no time of its own.
        os.utime(copy, (0, 0))
        _kept[str(path)] = kept
    return _kept[str(path)].folder / path.name


def _copy(path: Path, copy: Path) -> None:
    try:
        # Not to wait in `open` for a writer that never comes.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb", buffering=0) as pipe, copy.open("wb") as file:
            while piece := _next(pipe.fileno(), path):
                file.write(piece)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error


def _next(pipe: int, path: Path) -> bytes:
    """What comes next; empty at the end."""
    ready = select.poll()
    ready.register(pipe, select.POLLIN | select.POLLHUP)
    while True:
        if not ready.poll(PATIENCE_S * 1000):
            raise InputError(f"{path}: nothing came through this pipe for {PATIENCE_S:g} s")
        try:
            return os.read(pipe, _PIECE)
        except BlockingIOError:
            continue
