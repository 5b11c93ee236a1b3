"""Where in the source a finding is, how sure that is, and a patch: the fix made, or written there as comments.

A fix that is a change of one call is made (code_edits.py). Of any other, what it needs is known from the recording, the names of
the program's variables are not: then the patch changes nothing that runs, and marks the line. Both apply as they are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretrace.diagnose.finding import Finding, Place
from foretrace.present.agent import code_edits
from foretrace.present.agent.answer import CODE_WIDTH, clean

# high: the file at hand has the function around this line. medium: the stack names it, and the file is not at hand.
# low: the file at hand has no such function there, so it was changed. none: no line is known.
Confidence = Literal["high", "medium", "low", "none"]
_MOST_BYTES = 4 << 20
_AROUND = 3  # lines of context, as diff has them
_MOST_LINES = 20  # of a fix
_PLAIN_NAME = re.compile(r"[\w./+@=-]+", re.ASCII)  # a file that a patch names without quotes


@dataclass(frozen=True)
class Source:
    """A file of the program, at hand."""

    name: str  # as a patch has it: below the folder
    folder: Path
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines; what follows the last end of line is one too."""
        return self.text.split("\n")


@dataclass(frozen=True)
class Patch:
    """A unified diff for a folder, and whether it makes the fix or writes it down as comments."""

    text: str
    kind: Literal["edit", "comment"]
    folder: Path


def source_of(place: Place, folders: Sequence[Path]) -> Source | None:
    """The file of a place, where it lies under one of the folders: a recording may name any file of this machine."""
    if place.file is None or not place.file.endswith(".py"):
        return None
    for folder in folders:
        try:
            real = folder.resolve()
            path = (folder / place.file).resolve()
            if path.is_relative_to(real) and path.is_file() and path.stat().st_size <= _MOST_BYTES:
                return Source(path.relative_to(real).as_posix(), real, path.read_bytes().decode("utf-8"))
        except (OSError, ValueError):  # a name that is too long or holds a zero byte, a file that is no text
            continue
    return None


def confidence(place: Place, source: Source | None) -> Confidence:
    """How sure the line is."""
    if place.file is None or place.first_line is None:
        return "none"
    if source is None:
        return "medium"
    return "high" if _is_inside(place, source) else "low"


def _is_inside(place: Place, source: Source) -> bool:
    """Whether the nearest function that begins at or above the line is the one that the stack names."""
    line = place.first_line or 0
    if not 1 <= line <= len(source.lines):
        return False
    if place.function in ("<module>", "<lambda>"):
        return True
    # A stack names the first line of a function, which may be that of a decorator above its `def`.
    for text in source.lines[line - 1 : line + _AROUND]:
        if _defines(text, place.function):
            return True
        if not text.lstrip().startswith("@"):
            break
    indent = _indent(source.lines[line - 1])
    for text in reversed(source.lines[: line - 1]):
        if _defines(text, place.function):
            return len(_indent(text)) < len(indent)
    return False


def _defines(text: str, function: str) -> bool:
    words = text.strip().removeprefix("async ").partition("(")[0]
    return words.strip() == f"def {function.rpartition('.')[2]}"


def patch(finding: Finding, sources: Sequence[Source | None]) -> Patch | None:
    """What to apply for a finding, by the sources of its places; `None` where no line is sure."""
    sure = [
        (place, source)
        for place, source in zip(finding.where, sources, strict=False)
        if source is not None and confidence(place, source) == "high"
    ]
    for place, source in sure:
        changed = code_edits.edited(finding, source.text, place.first_line or 0)
        made = None if changed is None else _patch(source, changed, "edit")
        if made is not None:
            return made
    if not sure or sure[0][0] is not finding.where[0]:
        return None
    place, source = sure[0]
    commented = _commented(finding, source, place.first_line or 0)
    return None if commented is None else _patch(source, commented, "comment")


def _commented(finding: Finding, source: Source, line: int) -> str | None:
    """The source with the fix above a line, as comments."""
    code = finding.fix.code.splitlines()
    if len(code) > _MOST_LINES:
        return None
    lines = source.lines
    indent = _indent(lines[line - 1])
    added = [f"{indent}# {finding.rule}: {finding.fix.says}", *(f"{indent}#   {each}" for each in code)]
    return "\n".join([*lines[: line - 1], *added, *lines[line - 1 :]])


def _patch(source: Source, changed: str, kind: Literal["edit", "comment"]) -> Patch | None:
    """The difference; `None` where an answer could not show it as it is, and so would not apply."""
    before, after = (re.findall(r"[^\n]*\n|[^\n]+\Z", text) for text in (source.text, changed))
    if "\r" in source.text or not _PLAIN_NAME.fullmatch(source.name):
        return None
    hunks = difflib.unified_diff(before, after, f"a/{source.name}", f"b/{source.name}", n=_AROUND)
    text = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in hunks
    )
    return Patch(text, kind, source.folder) if clean(text, CODE_WIDTH) == text else None


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
