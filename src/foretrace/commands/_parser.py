"""The parser of the command line: argparse, with errors that are raised and say what may be meant."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from foretrace.errors import UsageError, did_you_mean, near_names


class Parser(argparse.ArgumentParser):
    """A parser that raises UsageError in place of leaving the process."""

    arguments: Sequence[str] = ()  # what was typed after the command, for one that configures by it
    _near: Sequence[str] = ()  # what may be meant by the value that is refused next

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        raise UsageError(f"{message} (see {self.prog} --help)", near=self._near)

    def parse_all(self, arguments: Sequence[str]) -> argparse.Namespace:
        """What the arguments say; raises UsageError for those that no option takes, with options of a name like theirs."""
        parsed, strange = self.parse_known_args(arguments)
        if strange:
            flag = next((word.partition("=")[0] for word in strange if word.startswith("-")), "")
            self._near = near_names(flag.lstrip("-"), flags(self)) if flag else ()
            self.error(f"unrecognized arguments: {' '.join(strange)}{did_you_mean(self._near)}")
        return parsed

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            self._near = near_names(str(value), map(str, action.choices or ()))
            error.message += did_you_mean(self._near)
            raise


def flags(parser: argparse.ArgumentParser) -> list[str]:
    """The long options of a parser and of the commands below it that are configured."""
    names = [name for each in parsers(parser) for action in each._actions for name in action.option_strings]
    return list(dict.fromkeys(name for name in names if name.startswith("--")))


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A parser, and those of all commands below it."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield from parsers(below)
