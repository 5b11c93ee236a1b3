"""Code in a terminal: every line whole, so that it can be pasted; only its comments are made to fit."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from foretrace.present.text.tables import wrap
from foretrace.units import cells

_CALL = re.compile(r"[^\s()]+\([^()]*\)")
_BLANK = "\0"  # stands for a blank at which no line is broken
_LEAST = 20  # columns below which a comment is no longer worth breaking


def code_lines(code: str, width: int) -> Iterator[str]:
    """The lines of some code, of which those with a comment that is too long for `width` have it on lines of its own.

    Nothing is left out, and what a line does stays on that line, however long it is.
    """
    lines = code.splitlines()
    comments = _comments(code)
    for number, line in enumerate(lines):
        start = comments.get(number)
        goes_on = number > 0 and lines[number - 1].endswith("\\")
        if cells(line) <= width or start is None or goes_on:
            yield line
            continue
        indent = line[: len(line) - len(line.lstrip())]
        yield from (f"{indent}# {part}" for part in _wrapped(line[start:], width - len(indent) - 2))
        if statement := line[:start].rstrip():
            yield statement


def _wrapped(comment: str, width: int) -> list[str]:
    """The text of a comment in lines; a call that it names stays in one piece."""
    text = _CALL.sub(lambda call: call[0].replace(" ", _BLANK), comment.lstrip("#").strip())
    room = max(width, _LEAST, *(cells(word) for word in text.split()))
    return [part.replace(_BLANK, " ") for part in wrap(text, room)]


def _comments(code: str) -> dict[int, int]:
    """Where comments that can be moved begin, by the line; none of what is no Python, such as a command."""
    found: dict[int, int] = {}
    within = 0  # the last line that begins inside of a text of several lines
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.ERRORTOKEN and token.string.strip():
                return found
            (first, start), (last, _) = token.start, token.end
            if first != last:
                within = last
            elif token.type == tokenize.COMMENT and first > within:
                found[first - 1] = start
    except (tokenize.TokenError, SyntaxError):
        return found  # a part of a program: what was read before it ended counts
    return found
