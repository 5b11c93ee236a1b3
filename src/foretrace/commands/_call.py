"""A Call: the arguments of one command, whether its answer is to be JSON, and whether that was printed."""

from __future__ import annotations

import argparse
from itertools import pairwise, takewhile

_FLAG = "--format"
_SHORTEST = "--f"  # argparse takes a flag by its beginning
documents: list[str] = []  # the kinds of JSON documents that were printed: one call prints at most one


class Call:
    """What was typed; `parsed` once that is understood."""

    def __init__(self, arguments: list[str]) -> None:  # no dataclass: to load that takes longer than --help
        self.arguments = arguments
        self.parsed: argparse.Namespace | None = None

    @property
    def wants_json(self) -> bool:
        """Whether JSON is asked for; of arguments that were not understood, as far as they tell."""
        if self.parsed is not None:
            return getattr(self.parsed, "format", None) == "json"
        words = list(
            takewhile(lambda word: word != "--", self.arguments)
        )  # what follows is of another program
        if any(_is_format(flag) and value == "json" for flag, value in pairwise(words)):
            return True
        return any(
            _is_format(flag) and value == "json" for flag, _, value in (word.partition("=") for word in words)
        )


def _is_format(word: str) -> bool:
    return word.startswith(_SHORTEST) and _FLAG.startswith(word)
