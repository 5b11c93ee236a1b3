"""Roots: the folders that tools may read, and no others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foretrace.errors import InputError, UsageError
from foretrace.units import shorten, visible
from foretrace.urls import is_url, located, shown

_SHOWN = 200


@dataclass(frozen=True)
class Roots:
    """Real paths of folders, or URLs; what lies under none of them is not opened, nor is any other URL asked for."""

    folders: tuple[Path, ...]

    @classmethod
    def of(cls, named: list[Path]) -> Roots:
        """The folders that --root names, or the working directory."""
        for folder in named:
            if not folder.is_dir():
                raise UsageError(f"--root {folder}: no such folder")
        return cls(tuple(folder.resolve() for folder in named or [Path.cwd()]))

    def path(self, text: str) -> Path:
        """The real path of what a tool is asked for: relative to the first root, and under one of them."""
        if is_url(text) and not any(is_url(folder) for folder in self.folders):
            raise UsageError(
                f"{_short(shown(text))}: URLs are not read; start `foretrace mcp` with --root URL to allow those below one"
            )
        try:
            path = located(text) if is_url(text) else (self.folders[0] / text).resolve()
            self.check(path)
            if not (path.is_dir() or path.is_file()):  # a pipe would be waited for
                raise InputError(f"{_short(path)}: no such file or folder; `recordings` lists what there is")
        except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, links in a circle
            raise InputError(f"{_short(text)}: {getattr(error, 'strerror', None) or error}") from error
        return path

    def short(self, path: Path) -> str:
        """The path as `path` takes it: relative to the first root where it lies under that."""
        return str(path.relative_to(self.folders[0]) if path.is_relative_to(self.folders[0]) else path)

    def check(self, path: Path) -> Path:
        """The path, which lies under a root once every link is followed; raises UsageError where it does not."""
        real = path.resolve()
        plain = not is_url(real) or (".." not in real.parts and "?" not in str(real))
        under = [
            folder
            for folder in self.folders
            if is_url(folder) == is_url(real) and real.is_relative_to(folder)
        ]
        if not plain or not under:
            roots = ", ".join(_short(folder) for folder in self.folders)
            raise UsageError(
                f"{_short(path)}: outside of {roots}; start `foretrace mcp` with --root FOLDER to allow another folder"
            )
        return path


def _short(path: Path | str) -> str:
    return shorten(visible(str(path)), _SHOWN)
