"""Where in the source a finding is, how sure that is, and a patch that writes the fix there as comments.

Nothing is edited: what a fix needs is known from the recording, the names of the program's variables are not. So the patch
applies as it is, changes nothing that runs, and marks the line.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from foretrace.diagnose.finding import Finding, Place

# high: the file at hand has the function around this line. medium: the stack names it, and the file is not at hand.
# low: the file at hand has no such function there, so it was changed. none: no stack was recorded.
Confidence = Literal["high", "medium", "low", "none"]
_MOST_BYTES = 4 << 20
_AROUND = 3  # lines of context, as diff has them
_MOST_LINES = 20  # of a fix


@dataclass(frozen=True)
class Source:
    """A file of the program, at hand."""

    name: str  # as the recording has it
    lines: tuple[str, ...]


def source_of(place: Place, folders: Sequence[Path]) -> Source | None:
    """The file of a place, where it lies under one of the folders: a recording may name any file of this machine."""
    if place.file is None or not place.file.endswith(".py"):
        return None
    for folder in folders:
        try:
            path = (folder / place.file).resolve()
            if (
                path.is_relative_to(folder.resolve())
                and path.is_file()
                and path.stat().st_size <= _MOST_BYTES
            ):
                return Source(place.file, tuple(path.read_text(encoding="utf-8").split("\n")))
        except (OSError, ValueError):  # a name that is too long or holds a zero byte, a file that is no text
            continue
    return None


def confidence(place: Place, source: Source | None) -> Confidence:
    """How sure the line is."""
    if place.file is None or place.line is None:
        return "none"
    if source is None:
        return "medium"
    return "high" if _is_inside(place, source) else "low"


def _is_inside(place: Place, source: Source) -> bool:
    """Whether the nearest function that begins at or above the line is the one that the stack names."""
    line = place.line or 0
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


def patch(finding: Finding, source: Source | None) -> str:
    """A unified diff that puts the fix above the first place as comments; empty where the line is not sure."""
    place = finding.where[0] if finding.where else None
    code = finding.fix.code.splitlines()
    if place is None or source is None or confidence(place, source) != "high" or len(code) > _MOST_LINES:
        return ""
    assert place.line is not None  # a sure place has one
    at = place.line - 1
    first, last = max(at - _AROUND, 0), min(at + _AROUND + 1, len(source.lines))
    if last == len(source.lines) and source.lines[-1] == "":
        last -= 1  # what follows the last end of line is no line
    indent = _indent(source.lines[at])
    added = [f"+{indent}# {finding.rule}: {finding.fix.says}", *(f"+{indent}#   {line}" for line in code)]
    before = [f" {line}" for line in source.lines[first:at]]
    after = [f" {line}" for line in source.lines[at:last]]
    kept = last - first
    head = f"@@ -{first + 1},{kept} +{first + 1},{kept + len(added)} @@"
    return "\n".join([f"--- a/{source.name}", f"+++ b/{source.name}", head, *before, *added, *after])


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
