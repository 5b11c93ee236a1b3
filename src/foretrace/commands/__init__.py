"""The command line: one module per command, errors and exit codes in one place.

0 done, 1 a gate failed, 2 usage or output that cannot be written, 3 the input could not be read, 4 what was asked for was not recorded,
70 a fault of Foretrace's own, 130 interrupted, 141 the reader of the output went away. An error is one line on standard error; where JSON
was asked for and none was printed yet, it is a document on standard output too.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TextIO

from foretrace._version import __version__
from foretrace.commands import (
    _encoding,
    _output,
    _version_info,
    bench,
    cache,
    compare,
    completion,
    demo,
    diagnose,
    doctor,
    explain,
    flame,
    formats,
    gate,
    ledger,
    man,
    mcp,
    memory,
    perfetto,
    predict,
    ranks,
    report,
    run,
    schema,
    serve,
    show,
    sql,
    summary,
    try_,
    verify,
)
from foretrace.commands._call import Call
from foretrace.commands._parser import Parser
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
    schema,
    completion,
    man,
)

ALL = "*"  # every command is configured
_INTERNAL, _INTERRUPTED, _PIPE_CLOSED = 70, 130, 141
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_COLLECT_EVERY = (
    100_000  # objects: most commands are over before; looking for cycles was a tenth of a diagnosis
)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code. No exception but a debugger's gets out."""
    _never_fail_on_output()
    gc.set_threshold(_COLLECT_EVERY)
    call = Call(list(sys.argv[1:] if argv is None else argv))
    _output.documents.clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = _show_warning
            code = _run(call)
        sys.stdout.flush()
        return code
    except ForetraceError as error:
        return _fail(call, error.exit_code, error.kind, str(error), near=getattr(error, "near", ()))
    except KeyboardInterrupt:
        return _fail(call, _INTERRUPTED, "interrupted", "interrupted")
    except BrokenPipeError:
        _output.give_up()
        return _PIPE_CLOSED
    except OSError as error:
        return _not_accessible(call, error)
    except BaseException as error:
        if is_fault(error):
            return _internal(call, error)
        raise


def _run(call: Call) -> int:
    arguments = call.arguments
    if _version_info.is_asked_for(arguments):
        _version_info.show(as_json=call.wants_json)
        return 0
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen is not None and chosen not in map(_name, COMMANDS):
        _check_bare_path(chosen)
        arguments.insert(0, _name(diagnose))
        chosen = _name(diagnose)
    parser = _parser(chosen, arguments)
    try:
        call.parsed = parsed = parser.parse_all(arguments)
    except SystemExit as leaving:  # argparse, after --help or --version
        return leaving.code if isinstance(leaving.code, int) else 0
    if not hasattr(parsed, "run"):
        parser.print_help()
        return 0
    code: int | None = parsed.run(parsed)
    return code or 0


def _parser(chosen: str | None, arguments: Sequence[str] = ()) -> Parser:
    """The parser; only the chosen command is configured, since that may load what it needs."""
    parser = Parser(
        prog="foretrace",
        description="Why is this PyTorch program slow, and what would each fix be worth?",
        epilog="`foretrace PATH` is short for `foretrace diagnose PATH`. PATH is a file, a folder or a URL (s3://, gs://, https://). "
        "To get started: foretrace demo",
    )
    says = "print the version and exit; with --format json, as JSON"
    parser.add_argument("--version", action="version", version=f"foretrace {__version__}", help=says)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", parser_class=Parser)
    for module in COMMANDS:
        says = (module.__doc__ or "").strip().splitlines()[0]
        command = commands.add_parser(_name(module), help=says, description=says)
        if chosen in (_name(module), ALL):
            command.arguments = arguments[arguments.index(chosen) + 1 :] if chosen in arguments else ()
            module.configure(command)
            command.set_defaults(run=module.run)
    return parser


def whole_parser() -> Parser:
    """The parser with every command configured, for what describes them all."""
    return _parser(ALL)


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


def _fail(call: Call, code: int, kind: str, says: str, *, near: Sequence[str] = ()) -> int:
    """Tells an error: a line for people and, where JSON was asked for, a document; returns the exit code."""
    _say(says)
    if call.wants_json and not _output.documents:
        try:
            _output.print_error(code, kind, says, near)
            sys.stdout.flush()
        except OSError:  # the reader went away, or the disk is full; the line has told
            _output.give_up()
    return code


def _internal(call: Call, error: BaseException) -> int:
    if os.environ.get("FORETRACE_DEBUG"):
        traceback.print_exc()
    return _fail(call, _INTERNAL, "internal", fault_text(error))


def _not_accessible(call: Call, error: OSError) -> int:
    """What the system refused is no fault of ours: a file, or what standard output goes to."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return _fail(call, InputError.exit_code, InputError.kind, f"{os.fsdecode(error.filename)}: {reason}")
    if error.errno in _OUTPUT_FULL:
        _output.give_up()
        _say(f"standard output: cannot be written: {reason}")
        return UsageError.exit_code
    return _internal(call, error)


def _never_fail_on_output() -> None:
    """A stream that was closed before we began takes everything; one of another encoding, what it can write."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        _encoding.spell_out(stream)
