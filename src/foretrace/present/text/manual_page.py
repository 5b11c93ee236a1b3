"""The manual page of a command line, in roff with the macros of man(7), made from its parsers."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence

_WIDTH = 72  # of a line of the source; pages are laid out by who shows them


def manual_page(
    parser: argparse.ArgumentParser, *, version: str, sections: Mapping[str, Sequence[tuple[str, str]]]
) -> str:
    """The page: the parser's description, its commands with their options, then more sections of names and what they mean."""
    commands = _commands(parser)
    lines = [
        f'.TH {parser.prog.upper()} 1 "" "{parser.prog} {version}" "User Commands"',
        ".SH NAME",
        f"{parser.prog} \\- {_text(_lowered(parser.description or ''))}",
        ".SH SYNOPSIS",
        f".B {parser.prog}",
        ".I COMMAND",
        "[options]",
        ".br",
        f".B {parser.prog}",
        ".I PATH",
        ".SH DESCRIPTION",
        *_paragraph(parser.epilog or ""),
        ".SH OPTIONS",
        *_options(parser),
        ".SH COMMANDS",
        *(line for command in commands.values() for line in _command(command)),
    ]
    for title, entries in sections.items():
        lines += [
            f".SH {title}",
            *(line for name, says in entries for line in _entry(f"\\fB{_text(name)}\\fR", says)),
        ]
    return "\n".join(lines) + "\n"


def _commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found = next((each for each in parser._actions if isinstance(each, argparse._SubParsersAction)), None)
    return dict(found.choices) if found else {}


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    """A command: what it does, its options, the commands below it and its examples."""
    yield f'.SS "{_text(parser.prog)}"'
    yield from _paragraph(parser.description or "")
    yield from _options(parser)
    below = _commands(parser)
    shared = _shared(list(below.values()))
    if below:
        yield from ("Options of each:", *(line for action in shared for line in _option(action)))
    for name, command in below.items():
        yield from _entry(f"\\fB{_text(parser.prog)} {_text(name)}\\fR", command.description or "")
        own = [action for action in command._actions if _heading(action) not in map(_heading, shared)]
        if own:
            yield from (".RS", *(line for action in own for line in _option(action)), ".RE")
    if parser.epilog:
        yield from (".PP", ".nf", *map(_line, parser.epilog.rstrip().splitlines()), ".fi")


def _shared(commands: Sequence[argparse.ArgumentParser]) -> list[argparse.Action]:
    """The options that all of some commands have."""
    if not commands:
        return []
    headings = [set(map(_heading, command._actions)) for command in commands]
    common = set.intersection(*headings)
    return [action for action in commands[0]._actions if _heading(action) in common]


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            yield from _option(action)


def _option(action: argparse.Action) -> Iterator[str]:
    if action.help is argparse.SUPPRESS or "--help" in action.option_strings:
        return
    says = action.help or ""
    yield from _entry(_heading(action), says % vars(action) if "%" in says else says)


def _heading(action: argparse.Action) -> str:
    """An option with its value, as `--limit N`; or the name of what stands for itself."""
    value = _value(action)
    flags = ", ".join(f"\\fB{_text(flag)}\\fR" for flag in action.option_strings)
    return f"{flags} {value}".strip() if flags else value


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, str):
        return f"\\fI{_text(action.metavar)}\\fR"
    if action.choices:
        return "{" + ",".join(_text(str(choice)) for choice in action.choices) + "}"
    return f"\\fI{_text(action.dest.upper())}\\fR"


def _entry(heading: str, says: str) -> Iterator[str]:
    yield from (".TP", heading, *_paragraph(says))


def _paragraph(text: str) -> list[str]:
    # A list of values may be broken after each.
    return [
        re.sub(r",(?=\S)", r",\\:", _line(line))
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    ] or ["\\&"]


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]


def _line(text: str) -> str:
    """Text as a line of its own: what begins with a dot or a quote would be a request."""
    said = _text(text)
    return f"\\&{said}" if said.startswith((".", "'")) else said or "\\&"


_ESCAPES = str.maketrans(
    {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq", "µ": "\\(mc",
     "×": "\\(mu", "→": "\\(->"}
)  # fmt: skip


def _text(text: str) -> str:
    """Text with what roff reads otherwise spelled out; not ASCII, by its code."""
    spelled = text.expandtabs().translate(_ESCAPES)
    return "".join(each if each.isascii() else f"\\[u{ord(each):04X}]" for each in spelled)
