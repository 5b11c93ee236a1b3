"""Files that a profiler writes: they get their name once they are whole and their secrets are masked, or never.

Until then the bytes belong to a file without a name, which the system frees when the process ends, even by `kill -9`. torch
wants a path: it gets a link to the open file. Systems without /proc have a file with a hidden name instead, which
`foretrace run` removes if the program could not.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foretrace.capture import known_secrets
from foretrace.capture.masking import mask_in_file


class HiddenFile:
    """Write to `path`; `publish` makes it the file that was asked for."""

    def __init__(self, target: Path) -> None:
        self.path = target.with_name(f".{target.stem}.partial{target.suffix}")
        self._target = target
        # Kineto writes to the second name, and renames it to the first.
        self._names = (self.path, self.path.with_name(f"{self.path.name}.tmp"))
        self._descriptor = _unnamed_file(target.parent)
        self._remove_names()
        if self._descriptor is not None:
            for name in self._names:
                name.symlink_to(f"/proc/{os.getpid()}/fd/{self._descriptor}")

    def publish(self) -> None:
        """Masks the secrets that this process knows of, and gives the file its name."""
        mask_in_file(self.path, known_secrets.values())
        if self._descriptor is None:
            self.path.replace(self._target)
            return
        masked = self._target.with_name(f".{self._target.name}.{os.getpid()}.tmp")
        masked.unlink(missing_ok=True)
        try:
            _name(self._descriptor, masked)
            masked.replace(self._target)
        except BaseException:
            masked.unlink(missing_ok=True)
            raise

    def close(self) -> None:
        """What was not published is gone."""
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._remove_names()

    def _remove_names(self) -> None:
        for name in self._names:
            if name.exists() and not name.is_symlink():
                os.truncate(name, 0)  # who has it open still would keep its bytes on the disk
            name.unlink(missing_ok=True)


@contextmanager
def hidden_file(target: Path) -> Iterator[HiddenFile]:
    """A file in the making; one that is not published leaves nothing."""
    file = HiddenFile(target)
    try:
        yield file
    finally:
        file.close()


def remove_leftovers(folder: Path) -> None:
    """Removes what a killed program left of files in the making; links of a program that still writes stay."""
    for leftover in folder.glob(".*.partial*"):
        if not (leftover.is_symlink() and leftover.exists()):
            leftover.unlink(missing_ok=True)


def _unnamed_file(folder: Path) -> int | None:
    """A descriptor of a file without a name, in this folder if its file system can; `None` on a system without /proc."""
    if not Path(f"/proc/{os.getpid()}/fd").is_dir():
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o666)
    except OSError:  # NFS and others
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())


def _name(descriptor: int, name: Path) -> None:
    """Gives a file without a name this one, or makes a copy with it."""
    folder = os.open(name.parent, os.O_RDONLY)
    try:
        # With a descriptor of a folder, Python calls linkat(), which follows the link in /proc to the file.
        os.link(f"/proc/{os.getpid()}/fd/{descriptor}", name, src_dir_fd=folder)
    except OSError:
        with open(descriptor, "rb", closefd=False) as file, name.open("xb") as copy:
            file.seek(0)
            shutil.copyfileobj(file, copy, 1 << 20)
    finally:
        os.close(folder)
