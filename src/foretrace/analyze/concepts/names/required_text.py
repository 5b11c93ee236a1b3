"""The text that a name must hold for a pattern to match: looking for it is far quicker than trying the pattern."""

from __future__ import annotations

import re
from functools import lru_cache

_SHORTEST = 3  # characters; shorter pieces are in too many names
_OPENS = re.compile(r"\(\?(?:P<\w+>|[a-zA-Z]*:|=|<=)|\((?!\?)")  # of groups that must match
_PASSES = re.compile(r"\(\?(?:!|<!)|\(\?[a-zA-Z]+\)")  # of groups that must not, and flags
Texts = frozenset[str]


def search(pattern: str, name: str, folded: str) -> re.Match[str] | None:
    """`re.search`; `folded` is the name in lower case, by `str.casefold`."""
    texts = required(pattern)
    if texts is not None and not any(text in folded for text in texts):
        return None
    return re.search(pattern, name)


@lru_cache(maxsize=1024)
def required(pattern: str) -> Texts | None:
    """Texts in lower case of which a name that matches holds at least one; None where that cannot be told."""
    if pattern.startswith("(?x)"):
        return None  # spaces and comments are no text there
    return _Reader(pattern).alternatives()


class _Reader:
    """Reads a pattern from left to right."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def alternatives(self) -> Texts | None:
        """What all alternatives up to the end of the group require together; None where one requires nothing."""
        found = [self._alternative()]
        while self._here() == "|":
            self.at += 1
            found.append(self._alternative())
        texts = [each for each in found if each is not None]
        return frozenset().union(*texts) if len(texts) == len(found) else None

    def _here(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _alternative(self) -> Texts | None:
        """What one alternative requires: its longest piece of plain text, or what a group in it requires."""
        best: Texts | None = None
        run = ""
        while (here := self._here()) and here not in "|)":
            if here.isalnum() or here in "_: ,<>=-":
                piece, plain = here.casefold(), True
                self.at += 1
            else:
                piece, plain = "", False
            group = None if plain else self._skip()
            optional = self._quantifier()
            if plain and optional is None:
                run += piece
                continue
            if plain and not optional:
                run += piece  # once or more: what follows it is not known
            best = _better(best, frozenset((run,)))
            run = ""
            if group is not None and not optional:
                best = _better(best, group)
        return _better(best, frozenset((run,)))

    def _skip(self) -> Texts | None:
        """Passes what is no plain character; what it requires, where it is a group that must match."""
        if self._here() == "[":
            self.at = self.pattern.index("]", self.at + 2 + (self.pattern[self.at + 1] == "^")) + 1
            return None
        if self._here() != "(":
            self.at += 2 if self._here() == "\\" else 1
            return None
        if flags := _PASSES.match(self.pattern, self.at):
            self.at = flags.end()
            if not flags[0].endswith(")"):
                self.alternatives()
                self.at += 1
            return None
        opens = _OPENS.match(self.pattern, self.at)
        assert opens, self.pattern
        self.at = opens.end()
        texts = self.alternatives()
        self.at += 1
        return texts

    def _quantifier(self) -> bool | None:
        """Whether what was read may be left out; None where it stands exactly once."""
        here = self._here()
        if here == "{":
            self.at = self.pattern.index("}", self.at) + 1
        elif here and here in "?*+":
            self.at += 1
        else:
            return None
        if self._here() in ("?", "+"):
            self.at += 1  # lazy, or possessive
        return here != "+"


def _better(one: Texts | None, other: Texts) -> Texts | None:
    """Those whose shortest text is longer; not those with one that is in too many names."""
    shortest = min(map(len, other))
    if shortest < _SHORTEST or (one is not None and min(map(len, one)) >= shortest):
        return one
    return other
