"""The command line: one module per command, errors and exit codes in one place.

0 done, 1 a gate failed, 2 usage or output that cannot be written, 3 the input could not be read, 4 what was asked for was not recorded,
70 a fault of Foretrace's own, 130 interrupted, 141 the reader of the output went away. An error is one line on standard error; where JSON
was asked for and none was printed yet, it is a document on standard output too.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from foretrace._version import __version__
from foretrace.commands import _encoding
from foretrace.commands._call import Call, documents
from foretrace.commands._parser import Parser
from foretrace.errors import ForetraceError, InputError, UsageError, fault_text, is_fault, unknown


class Command(NamedTuple):
    """A command: its module, loaded when it is asked for, and the module's first line, for --help to load none."""

    file: str
    says: str

    @property
    def name(self) -> str:
        return self.file.rstrip("_")  # `try_`: a module cannot be named `try`

    @property
    def module(self) -> Any:
        return importlib.import_module(f"foretrace.commands.{self.file}")


COMMANDS = (
    Command("demo", "Diagnose the sample recording that comes with Foretrace: a first look."),
    Command("run", "Record a program without changing it, and diagnose the recording."),
    Command("diagnose", "List what to change, ordered by how much time each change would save."),
    Command(
        "try_", "Make the changes that need no edit, in a program as it is, and measure what each brings."
    ),
    Command(
        "verify", "Compare what a finding predicted with what a recording of the changed program measured."
    ),
    Command("ledger", "Show how far predictions came true in this project, by rule and device."),
    Command(
        "serve",
        "Open recordings, benchmarks and memory snapshots in the browser: findings, timeline, kernels, memory and more. All stays on this machine.",
    ),
    Command(
        "report",
        "Write the page of recordings, benchmarks or memory snapshots as a single HTML file that works offline.",
    ),
    Command(
        "summary",
        "Print trust, overview, steps and top kernels of a recording (top operators if it holds no GPU work; counters, of an ncu file).",
    ),
    Command("show", "Print one analysis of a recording as a table."),
    Command(
        "memory",
        "Show who holds GPU memory at the peak, what leaks, what is wasted and why a request did not fit.",
    ),
    Command("ranks", "Compare the ranks of a job: who holds it up, and what a step would save without that."),
    Command(
        "compare",
        "Compare recordings, Runs or benchmarks: which is faster, and what explains the difference.",
    ),
    Command("gate", "Decide a CI job by limits on what changed: 0 passed, 1 failed, 4 inconclusive."),
    Command("predict", "Predict the step time after a change, by replaying the recorded steps."),
    Command("explain", "Explain the name of a kernel, an operator or another event in plain words."),
    Command("sql", "Query the tables of a recording with SQL."),
    Command("flame", "Write a flame graph of a recording: speedscope JSON or folded stacks."),
    Command(
        "perfetto",
        "Open a recording in ui.perfetto.dev, with steps, findings and counters as extra tracks, or write the file.",
    ),
    Command(
        "mcp",
        "Serve recordings to a coding agent as tools of the Model Context Protocol, over standard input and output.",
    ),
    Command(
        "bench", "Time functions of your own, products, attention, a transformer or collectives, honestly."
    ),
    Command("formats", "List the files that Foretrace reads, how well, and what each cannot tell."),
    Command("cache", "List or clear the cache of recordings that were read before."),
    Command("doctor", "Check what this machine can record and read, and say how to get what is missing."),
    Command(
        "schema", "Print the JSON Schema of an output, to check documents by; without a name, list them."
    ),
    Command(
        "completion",
        "Print the completions of a shell: commands, options, and names of analyses, rules, benchmarks, changes and schemas.",
    ),
    Command("man", "Print the manual page: foretrace man | man -l -"),
)

ALL = "*"  # every command is configured
_INTERNAL, _INTERRUPTED, _PIPE_CLOSED = 70, 130, 141
_OUTPUT_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
# Objects: most commands are over before. Loading makes more than 100,000, and looking for cycles among them takes 40 ms.
_COLLECT_EVERY = 500_000


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command, that of the process where none is given; returns its exit code. No exception but a debugger's gets out."""
    try:
        return _answered(Call(list(sys.argv[1:] if argv is None else argv)))
    finally:
        if argv is None:
            gc.freeze()  # the process ends here: looking for cycles among all that is left takes a sixth of a second


def _answered(call: Call) -> int:
    _never_fail_on_output()
    gc.set_threshold(_COLLECT_EVERY)
    documents.clear()
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
    except MemoryError:
        says = (
            "not enough memory for this input: record fewer steps, or read it on a machine with more memory"
        )
        return _fail(call, InputError.exit_code, InputError.kind, says)
    except BrokenPipeError:
        _printer().give_up()
        return _PIPE_CLOSED
    except OSError as error:
        return _not_accessible(call, error)
    except BaseException as error:
        if is_fault(error):
            return _internal(call, error)
        raise


def _run(call: Call) -> int:
    arguments = call.arguments
    if "--version" in arguments:
        from foretrace.commands import _version_info

        if _version_info.is_asked_for(arguments):
            _version_info.show(as_json=call.wants_json)
            return 0
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen is not None and chosen not in _names():
        _check_bare_path(chosen)
        arguments.insert(0, "diagnose")
        chosen = "diagnose"
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
    for command in COMMANDS:
        below = commands.add_parser(command.name, help=command.says, description=command.says)
        if chosen in (command.name, ALL):
            below.arguments = arguments[arguments.index(chosen) + 1 :] if chosen in arguments else ()
            command.module.configure(below)
            below.set_defaults(run=command.module.run)
    return parser


def whole_parser() -> Parser:
    """The parser with every command configured, for what describes them all."""
    return _parser(ALL)


def _names() -> list[str]:
    return [command.name for command in COMMANDS]


def _printer() -> Any:
    """The module that prints: loaded when there is something to print, since --help has no need of it."""
    return importlib.import_module("foretrace.commands._output")


def _check_bare_path(text: str) -> None:
    """A word that is neither a command nor like a path was meant as a command."""
    from foretrace.urls import is_url

    if os.path.exists(text) or os.sep in text or "." in text or is_url(text):
        return
    raise unknown(f"no command or file named {text!r}", text, _names(), listed="commands")


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
    if call.wants_json and not documents:
        try:
            _printer().print_error(code, kind, says, near)
            sys.stdout.flush()
        except OSError:  # the reader went away, or the disk is full; the line has told
            _printer().give_up()
    return code


def _internal(call: Call, error: BaseException) -> int:
    if os.environ.get("FORETRACE_DEBUG"):
        import traceback

        traceback.print_exc()
    return _fail(call, _INTERNAL, "internal", fault_text(error))


def _not_accessible(call: Call, error: OSError) -> int:
    """What the system refused is no fault of ours: a file, or what standard output goes to."""
    reason = error.strerror or str(error)
    if error.filename is not None:
        return _fail(call, InputError.exit_code, InputError.kind, f"{os.fsdecode(error.filename)}: {reason}")
    if error.errno in _OUTPUT_FULL:
        _printer().give_up()
        _say(f"standard output: cannot be written: {reason}")
        return UsageError.exit_code
    if error.errno == errno.ENOENT and not _has_current_folder():
        says = "the current folder was removed: change into one that is there"
        return _fail(call, InputError.exit_code, InputError.kind, says)
    return _internal(call, error)


def _has_current_folder() -> bool:
    """Not where somebody removed it since this process was started in it."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return False
    return True


def _never_fail_on_output() -> None:
    """A stream that was closed before we began takes everything; one of another encoding, what it can write."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        _encoding.spell_out(stream)
