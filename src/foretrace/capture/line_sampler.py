"""The line sampler of this process: a native thread that reads the frames of all Python threads without the GIL.

Started by the bootstrap before the program's first line, and in every process that the program forks or starts. It writes
RUN/.lines/PID.jsonl each second, since worker processes end without notice; `line_files.py` publishes these when the program has
ended. Where its stacks would not be the interpreter's own, it stays off and says why: wrong lines are worse than none.

The bootstrap loads this file alone, so nothing here imports more than every Python has loaded anyway.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, ModuleType

VARIABLE = "FORETRACE_LINES"  # the folder for the files of a program that `foretrace run` started
FOLDER = ".lines"  # in the Run, until the program ends

PERIOD_NS = 10_000_000
WRITE_EVERY_NS = 1_000_000_000
MOST_COST = 0.005  # of wall time: own processor time, and what waking takes

why_off: str | None = "not started"
_folder = ""
_hooked = False
_pid = 0


def start(folder: str) -> None:
    """Samples this process from here on; `why_off` says why not."""
    global why_off, _folder, _hooked
    if why_off is None:
        return
    _folder = folder
    why_off = _start("started")
    if why_off is None and not _hooked:
        _hooked = True
        import atexit

        atexit.register(stop)
        os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def stop() -> None:
    """Writes what is left."""
    global why_off
    if why_off is None and _pid == os.getpid():
        why_off = "stopped"
        _native().lines_stop()


def facts() -> str | None:
    """The sampler's counts so far, as JSON."""
    text: str | None = _native().lines_facts() if why_off is None else None
    return text


def thread_id() -> int | None:
    """The kernel's number of the sampler's own thread."""
    text = facts()
    return int(text.rpartition('"thread":')[2].rstrip("}")) if text else None


def _start(kind: str) -> str | None:
    global _pid
    _pid = os.getpid()
    why = _why_not()
    if why is not None:
        return why
    version = ".".join(map(str, sys.version_info[:3]))
    header = (
        f'{{"schema": 1, "pid": {_pid}, "parent": {os.getppid()}, "kind": "{kind}", "python": "{version}",'
        f' "prefixes": {_json_list(sys.prefix, sys.base_prefix)}, "package": {_json_list(_package())}}}'
    )
    path = os.path.join(_folder, f"{_pid}.jsonl")
    if not os.path.isdir(_folder):  # the Run has ended without this process, which goes on
        return "its folder is gone"
    try:
        _native().lines_start(_code_type(), path, header, PERIOD_NS, WRITE_EVERY_NS, MOST_COST)
    except RuntimeError as error:
        return str(error)
    return None


def _json_list(*texts: str) -> str:
    """A list of JSON, without the module for it: loading it costs every Python that the program starts."""
    escaped = (text.replace("\\", "\\\\").replace('"', '\\"') for text in dict.fromkeys(texts))
    return "[" + ", ".join(f'"{text}"' for text in escaped if text.isprintable() and text.isascii()) + "]"


def _why_not() -> str | None:
    if not sys.platform.startswith("linux"):
        return f"lines are sampled on Linux only, not on {sys.platform}"
    if sys.implementation.name != "cpython":
        return f"lines are sampled in CPython only, not in {sys.implementation.name}"
    try:
        native = _native()
    except ImportError as error:
        free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
        return (
            "this Python is free-threaded" if free_threaded else f"the native extension is missing: {error}"
        )
    if not hasattr(native, "lines_now"):
        return "the native extension cannot sample lines on this system"
    return _test(native)


def _test(native: ModuleType) -> str | None:
    """Whether a stack that the sampler reads is the interpreter's own, its lines included; else what is wrong."""

    def inside() -> Iterator[str | None]:
        yield _compared(native)

    try:
        for problem in (_compared(native), next(inside())):
            if problem is not None:
                return problem
    except RuntimeError as error:
        return str(error)
    return None


def _compared(native: ModuleType) -> str | None:
    frame: FrameType | None = sys._getframe()
    (read, holds, listed), line = native.lines_now(_code_type()), sys._getframe().f_lineno
    own: list[tuple[str, str, int]] = []
    while frame is not None:
        code = frame.f_code
        own.append((code.co_filename, code.co_qualname, frame.f_lineno if own else line))
        frame = frame.f_back
    if [row[:3] for row in read] != own:
        return "self-test failed: the stack as sampled is not the interpreter's"
    if not holds:
        return "self-test failed: the holder of the GIL cannot be read"
    return None if listed else "self-test failed: this thread is not in the interpreter's list"


def _package() -> str:
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _code_type() -> type[CodeType]:
    return type(_compared.__code__)


def _native() -> ModuleType:
    """The extension beside this package, whether or not the package itself is loaded."""
    name = "foretrace._scan"
    if name in sys.modules:
        return sys.modules[name]
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec

    beside = os.path.join(_package(), "_scan")
    path = next((beside + suffix for suffix in EXTENSION_SUFFIXES if os.path.exists(beside + suffix)), None)
    if path is None:
        raise ImportError("it was not built for this Python")
    loader = ExtensionFileLoader(name, path)
    module = loader.create_module(ModuleSpec(name, loader, origin=path))
    loader.exec_module(module)
    sys.modules[name] = module
    return module


def _before_fork() -> None:
    if why_off is None:
        _native().lines_hold()


def _after_fork() -> None:
    if why_off is None:
        _native().lines_let_go()


def _in_child() -> None:
    global why_off
    if why_off is None:
        _native().lines_forget()
        why_off = _start("forked")
