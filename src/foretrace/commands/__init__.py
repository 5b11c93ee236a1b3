"""The command line: one module per command, errors and exit codes in one place.

0 done, 1 a gate failed, 2 usage or output that cannot be written, 3 the input could not be read, 4 what was asked for was not recorded,
70 a fault of Foretrace's own, 130 interrupted, 141 the reader of the output went away.
"""

from __future__ import annotations

import argparse
import errno
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn, TextIO

from foretrace._version import __version__
from foretrace.commands import (
    _encoding,
    _output,
    bench,
    cache,
    compare,
    demo,
    diagnose,
    doctor,
    explain,
    flame,
    formats,
    gate,
    ledger,
    mcp,
    memory,
    perfetto,
    predict,
    ranks,
    report,
    run,
    serve,
    show,
    sql,
    summary,
    try_,
    verify,
)
from foretrace.errors import ForetraceError, InputError, UsageError, fault_text, is_fault, unknown
from foretrace.urls import is_url

COMMANDS: tuple[ModuleType, ...] = (
    demo,
    run,
    diagnose,
    try_,
    verify,
    ledger,
    serve,
    report,
    summary,
    show,
    memory,
    ranks,
    compare,
    gate,
    predict,
    explain,
    sql,
    flame,
    perfetto,
    mcp,
    bench,
    formats,
    cache,
    doctor,
)

_INTERNAL, _INTERRUPTED, _PIPE_CLOSED = 70, 130, 141
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COLLECT_EVERY = (
    100_000  # objects: most commands are over before; looking for cycles was a tenth of a diagnosis
)


class _Parser(argparse.ArgumentParser):
    arguments: Sequence[str] = ()  # what was typed after the command, for one that configures by it

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. No exception but a debugger's gets out."""
    _never_fail_on_output()
    gc.set_threshold(_COLLECT_EVERY)
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except ForetraceError as error:
        _say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        _say("interrupted")
        return _INTERRUPTED
    except BrokenPipeError:
        _output.give_up()
        return _PIPE_CLOSED
    except OSError as error:
        return _not_accessible(error)
    except BaseException as error:
        if is_fault(error):
            return _internal(error)
        raise


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen is not None and chosen not in map(_name, COMMANDS):
        _check_bare_path(chosen)
        arguments.insert(0, _name(diagnose))
        chosen = _name(diagnose)
    parser = _parser(chosen, arguments)
    try:
        parsed = parser.parse_args(arguments)
    except SystemExit as leaving:  # argparse, after --help or --version
        return leaving.code if isinstance(leaving.code, int) else 0
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 0
    code: int | None = parsed.run(parsed)
    return code or 0


def _parser(chosen: str | None, arguments: Sequence[str]) -> _Parser:
    """The parser; only the chosen command is configured, since that may load what it needs."""
    parser = _Parser(
        prog="foretrace",
        description="Why is this PyTorch program slow, and what would each fix be worth?",
        epilog="`foretrace PATH` is short for `foretrace diagnose PATH`. PATH is a file, a folder or a URL (s3://, gs://, https://). "
        "To get started: foretrace demo",
    )
    parser.add_argument("--version", action="version", version=f"foretrace {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=_Parser)
    for module in COMMANDS:
        says = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(_name(module), help=says, description=says)
        if _name(module) == chosen:
            command.arguments = arguments[arguments.index(chosen) + 1 :]
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def _name(module: ModuleType) -> str:
    return module.__name__.rpartition(".")[2].rstrip("_")  # `try_`: a module cannot be named `try`


def _check_bare_path(text: str) -> None:
    """A word that is neither a command nor like a path was meant as a command."""
    if os.path.exists(text) or os.sep in text or "." in text or is_url(text):
        return
    raise unknown(f"no command or file named {text!r}", text, map(_name, COMMANDS), listed="commands")


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if category.__name__ == "CacheWarning" or os.environ.get("FORETRACE_DEBUG"):
        _say(f"warning: {message}")


def _say(text: str) -> None:
    """One line on stderr, whatever the text holds."""
    from foretrace.units import visible

    line = visible(" ".join(text.split()))
    print(f"foretrace: {line}", file=sys.stderr)


def _internal(error: BaseException) -> int:
    if os.environ.get("FORETRACE_DEBUG"):
        traceback.print_exc()
    _say(fault_text(error))
    return _INTERNAL


def _not_accessible(error: OSError) -> int:
    """What the system refused is no fault of ours: a file, or what standard output goes to."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        _say(f"{os.fsdecode(error.filename)}: {reason}")
        return InputError.exit_code
    if error.errno in _OUTPUT_FULL:
        _output.give_up()
        _say(f"standard output: cannot be written: {reason}")
        return UsageError.exit_code
    return _internal(error)


def _never_fail_on_output() -> None:
    """A stream that was closed before we began takes everything; one of another encoding, what it can write."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        _encoding.spell_out(stream)
