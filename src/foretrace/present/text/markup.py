"""Text of a recording in documents that would take some of it for markup: Markdown, and CSV in a spreadsheet."""

from __future__ import annotations

import re

from foretrace.units import visible

_MARKS = re.compile(r"([\\`*_\[\]<>|~#&$])")
# Addresses that GitHub and others make links of, though nothing marks them as such.
_LINKS = re.compile(r"(?<=[A-Za-z])(:)(?=//)|(?<=\bwww)(\.)|(?<=\bmailto)(:)", re.IGNORECASE)
# A line that begins like a list, a heading below it, or a number with a dot.
_BEGINNING = re.compile(r"^(\s*)([-+=]|\d+(?=[.)]))")
_FORMULA = re.compile(r"[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def escaped(text: str) -> str:
    """The text as Markdown that shows it as it is: no markup, no links, nothing that acts on a terminal."""
    marked = _MARKS.sub(r"\\\1", visible(text))
    return _LINKS.sub(lambda match: f"\\{match[0]}", marked)


def paragraph(text: str) -> str:
    """Escaped text that begins a line."""
    return _BEGINNING.sub(_begun, escaped(text))


def _begun(match: re.Match[str]) -> str:
    # A number is no mark; the dot behind it is what would begin a list.
    return f"{match[1]}\\{match[2]}" if not match[2].isdigit() else f"{match[1]}{match[2]}\\"


def code(text: str) -> str:
    """The text as a code span, whatever backticks it holds."""
    shown = visible(text)
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown[:1] in ("`", " ") or shown[-1:] in ("`", " ") or not shown else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def code_block(text: str, *, language: str = "python") -> list[str]:
    """The lines of a fenced block that nothing in the text can end."""
    lines = [visible(line) for line in text.splitlines()]
    fence = "`" * max(_longest_run("\n".join(lines)) + 1, 3)
    return [f"{fence}{language}", *lines, fence]


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def csv_text(text: str) -> str:
    """A text cell that a spreadsheet shows as text: a formula gets an apostrophe before it, a number stays one."""
    shown = visible(text)
    return f"'{shown}" if _FORMULA.match(shown) and not _NUMBER.fullmatch(shown) else shown
