"""Print the completions of a shell: commands, options, and names of analyses, rules, benchmarks, changes and schemas."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from foretrace.commands._parser import parsers
from foretrace.errors import UsageError

SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
_FOLDERS = ("FOLDER", "DIR")
_EXAMPLES = """\
to set up:
  bash        foretrace completion bash > ~/.local/share/bash-completion/completions/foretrace
  zsh         foretrace completion zsh > ~/.zfunc/_foretrace     (a folder of $fpath, before compinit)
  fish        foretrace completion fish > ~/.config/fish/completions/foretrace.fish
  tcsh        foretrace completion tcsh > ~/.foretrace.tcsh      (and source it in ~/.cshrc)
  powershell  foretrace completion powershell >> $PROFILE
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The shell."""
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES


def run(args: argparse.Namespace) -> None:
    """Prints the script."""
    try:
        import shtab
    except ImportError as error:
        raise UsageError(f"completion needs shtab: pip install shtab ({error})") from error
    from foretrace.commands import whole_parser

    parser = whole_parser()
    _name_values(parser)
    _name_files(parser, file=shtab.FILE, folder=shtab.DIRECTORY)
    print(shtab.complete(parser, shell=args.shell))


def _name_values(parser: argparse.ArgumentParser) -> None:
    """Lets values be completed that are checked later than by the parser."""
    values: dict[tuple[str, str], Callable[[], Iterable[str]]] = {
        ("diagnose", "explain"): _rules,
        ("verify", "finding"): _rules,
        ("try", "also"): _changes,
        ("try", "only"): _changes,
        ("bench", "target"): _kinds,
        ("bench", "device"): lambda: ("cpu", "cuda"),
        ("ranks", "on"): lambda: ("local", "ray"),
        ("schema", "name"): _schemas,
    }
    for each in parsers(parser):
        command = each.prog.rpartition(" ")[2]
        for action in each._actions:
            if found := values.get((command, action.dest)):
                action.choices = tuple(found())


def _name_files(parser: argparse.ArgumentParser, *, file: Any, folder: Any) -> None:
    for each in parsers(parser):
        for action in each._actions:
            takes_path = action.type is Path or action.metavar in ("PATH", "-- COMMAND")
            if takes_path and action.choices is None:
                action.complete = folder if action.metavar in _FOLDERS else file  # type: ignore[attr-defined]


def _rules() -> Iterable[str]:
    from foretrace.diagnose import RULES

    return (rule.name for rule in RULES)


def _changes() -> Iterable[str]:
    from foretrace.trial.candidates import CANDIDATES

    return (candidate.name for candidate in CANDIDATES)


def _kinds() -> Iterable[str]:
    from foretrace.bench.kinds import KINDS

    return (name for name in KINDS if name != "functions")


def _schemas() -> Iterable[str]:
    from foretrace.present import schema

    return schema.names()
