"""Recording from inside a program: `profile` around its loop, `step` where a step ends, `region` to name parts.

    with foretrace.profile() as p:
        for batch in batches:
            train(batch)
            p.step()

The same Recorder and the same Run folder as `foretrace run`. Nothing here changes what the program does: its
exceptions pass, and a fault of the recording's own is one line on stderr.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from foretrace.capture import environment
from foretrace.capture.on_demand import Trigger
from foretrace.capture.options import MEMORY, VARIABLE, CaptureOptions, Switches
from foretrace.capture.profile_options import ProfileOptions
from foretrace.capture.run_folder import RANK_FILE, Run, RunFolder
from foretrace.errors import ForetraceError, UsageError, unknown
from foretrace.units import visible

if TYPE_CHECKING:
    from foretrace.capture.out_of_memory import OutOfMemory
    from foretrace.capture.recorder import Recorder
    from foretrace.capture.steps import StepFinder

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

_SWITCHES = tuple(field.name for field in fields(Switches))
_listeners: list[Callable[[], None]] = []
_open: weakref.WeakSet[profile] = weakref.WeakSet()


def step() -> None:
    """Marks the end of a step, for `foretrace run` and for every open `profile`; costs nothing otherwise."""
    for listener in tuple(_listeners):
        listener()


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Calls the listener at each `step()`; returns how to end that."""
    _listeners.append(listener)

    def stop() -> None:
        if listener in _listeners:
            _listeners.remove(listener)

    return stop


class profile:
    """Records the steps of a block or of a function; `path` is the Run folder once it began."""

    def __init__(
        self, output: str | os.PathLike[str] | None = None, **options: Unpack[ProfileOptions]
    ) -> None:
        self._output = output
        self._given = _checked(options)
        self._options = CaptureOptions(output="", **self._given)
        self._recorder: Recorder | None = None
        self._finder: StepFinder | None = None
        self._folder: RunFolder | None = None
        self._oom: OutOfMemory | None = None
        self._facts: dict[str, Any] = {}
        self._trigger: Trigger | None = None
        self._stop_listening: Callable[[], None] = lambda: None
        self._pid: int | None = None  # of the process that opened it
        self._rank, self._world_size = 0, 1
        self._finished = False

    @property
    def path(self) -> Path | None:
        """The Run folder; None before anything was recorded, and for ranks that were not chosen."""
        return self._folder.path if self._folder else None

    @property
    def finished(self) -> bool:
        """Whether everything asked for is recorded, so that the program may stop if it likes."""
        if _launched():
            session: Any = sys.modules.get("foretrace.capture.session")
            return session is not None and not session.active()
        return self._finished or (self._recorder is not None and self._recorder.finished)

    def read(self) -> Run:
        """The Run as recorded."""
        if self._folder is None:
            raise UsageError("nothing was recorded yet: use `with foretrace.profile() as p:` around the loop")
        return RunFolder.read(self._folder.path)

    def __enter__(self) -> profile:
        if self._pid is not None:
            raise UsageError("this profile is open already: make a second one with foretrace.profile()")
        self._rank, self._world_size = environment.rank_of_process()
        self._pid = os.getpid()
        if _launched() or not self._options.wants_rank(self._rank):
            return self
        if any(each._pid == self._pid for each in _open):
            _say("a profile within another one records nothing of its own: there can be only one profiler")
            return self
        try:
            self._arm()
        except BaseException:
            self._pid = None
            raise
        _open.add(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("the block ended" if kind is None else f"the program raised {kind.__name__}")

    def __call__(self, function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        """Records each call of a function that holds a loop, each into a Run of its own."""

        @functools.wraps(function)
        def recorded(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            with self._another():
                return function(*args, **kwargs)

        return recorded

    def _another(self) -> profile:
        return profile(self._output, **self._given)

    def step(self) -> None:
        """Marks the end of a step; without it, steps are found as `foretrace run` finds them."""
        if self._finder is not None:
            self._finder.explicit()
        elif self._pid is not None:
            step()  # for the launcher, or the profile around this one

    def close(self, reason: str = "closed by the program") -> None:
        """Ends the recording; leaving the block does it too."""
        if self._pid != os.getpid():  # a forked child has a copy, and the parent's files are not its own
            return
        _open.discard(self)
        self._stop_listening()
        if self._finder:
            self._finder.end()
        if self._trigger:
            self._trigger.close()
        self._end(reason)
        self._pid = self._finder = self._trigger = None

    def _arm(self) -> None:
        try:
            importlib.import_module("torch")
        except ImportError as error:
            raise UsageError(f"recording needs torch: pip install torch ({error})") from error
        from foretrace.capture.steps import StepFinder

        self._finder = StepFinder(self._boundary, self._decided, step_function=self._options.step_function)
        self._finder.hooks.on_foreign_profiler = self._make_way
        if self._options.on_demand or self._options.trigger:
            self._trigger = Trigger(self._options.trigger)
            _say(f"waiting to record: {self._trigger.says}")
        else:
            self._begin("")
        self._finder.install()
        self._finder.hooks.adopt_optimizers()
        self._stop_listening = listen(self._finder.explicit)

    def _decided(self, source: str) -> None:
        if self._recorder is not None and self._pid == os.getpid():
            self._recorder.restart(source)

    def _boundary(self) -> None:
        if self._pid != os.getpid() or self._finder is None:
            return
        if self._trigger is not None and self._trigger.fired():
            self._begin_on_demand(self._finder.source)
        recorder = self._recorder
        if recorder is None:
            return
        try:
            recorder.take(self._finder.fix)
        finally:
            if recorder.finished and self._trigger is None:
                self._finder.end()

    def _make_way(self) -> None:
        if self._recorder is not None and self._pid == os.getpid():
            self._recorder.yield_to_program()

    def _begin_on_demand(self, source: str) -> None:
        """A request during another capture is dropped, since only one profiler can run."""
        if self._recorder is not None and not self._recorder.finished:
            return
        self._end("the next capture was asked for")
        _guarded(lambda: self._begin(source))

    def _begin(self, source: str) -> None:
        from foretrace.capture import line_files
        from foretrace.capture.out_of_memory import OutOfMemory
        from foretrace.capture.recorder import Recorder

        assert self._finder is not None
        self._folder = _folder(self._output, self._rank, self._world_size)
        options = replace(self._options, output=str(self._folder.path))
        self._facts = {
            **environment.describe(_command()),
            "started_at": _now(),
            "ended_at": None,
            "exit_code": None,
            "options": options.to_dict(),
            "launch_blocking": os.environ.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"),
            "notes": ["recorded from inside the program, by foretrace.profile"],
        }
        self._write_run()
        if options.lines:
            line_files.start(self._folder.path)
        if options.memory:
            self._oom = OutOfMemory(options, self._folder)
            self._oom.install()
        recorder = Recorder(
            options,
            self._folder,
            self._rank,
            step_source=source,
            world_size=self._world_size,
            oom=self._oom,
        )
        recorder.watch_foreign(self._finder.hooks.foreign_profiler)
        self._recorder, self._finished = recorder, False

    def _end(self, reason: str) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None or self._folder is None:
            return
        self._finished = recorder.finished
        _guarded(lambda: recorder.close(reason))
        if self._oom is not None:
            self._oom.close()
            self._oom = None
        if self._options.lines:
            _guarded(self._end_lines)
        self._facts["ended_at"] = _now()
        _guarded(self._write_run)
        if self._writes_run:
            _say(f"recorded into {self._folder.path}; what it says: foretrace {self._folder.path}")

    def _end_lines(self) -> None:
        from foretrace.capture import line_files, line_sampler

        assert self._folder is not None
        line_sampler.stop()
        line_files.publish(self._folder, line_files.own_folder_of(self._folder.path))

    def _write_run(self) -> None:
        if self._writes_run and self._folder is not None:
            self._folder.write_run(self._facts)

    @property
    def _writes_run(self) -> bool:
        """One rank only: the first of those chosen."""
        chosen = [rank for rank in self._options.ranks or () if rank < self._world_size]
        return self._rank == (min(chosen) if chosen else 0)


class region:
    """Names a part of the program in recordings; as `with region("attention"):` or as a decorator."""

    __slots__ = ("_annotation", "_nvtx", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._annotation: Any = None
        self._nvtx: Any = None

    def __enter__(self) -> region:
        torch: Any = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "autograd"):  # absent, or still being imported
            return self
        if torch.compiler.is_compiling():  # torch leaves its own annotations out of compiled code too
            return self
        self._annotation = torch.autograd.profiler.record_function(self.name)
        self._annotation.__enter__()
        if torch.cuda.is_initialized() and not torch.version.hip:
            torch.cuda.nvtx.range_push(self.name)
            self._nvtx = torch.cuda.nvtx
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        nvtx, self._nvtx = self._nvtx, None
        annotation, self._annotation = self._annotation, None
        if nvtx is not None:
            nvtx.range_pop()
        if annotation is not None:
            annotation.__exit__(kind, error, trace)

    def __call__(self, function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        """The function, named in recordings at each call."""
        name = self.name
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:
                with region(name):
                    return await function(*args, **kwargs)

            return awaited  # type: ignore[return-value]

        @functools.wraps(function)
        def named(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            with region(name):  # a new one for each call: calls may nest, and run in several threads
                return function(*args, **kwargs)

        return named


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as CaptureOptions takes them: torch.profiler's switches go to the rich pass, lists become tuples."""
    known = {field.name for field in fields(CaptureOptions)} - {"output"}
    switches = {name: value for name, value in options.items() if name in _SWITCHES}
    given = {name: value for name, value in options.items() if name not in switches}
    for name in given:
        if name not in known:
            raise unknown(f"profile() has no option {name!r}", name, sorted([*known, *_SWITCHES]))
    if given.get("launch_blocking"):
        raise UsageError(
            "CUDA_LAUNCH_BLOCKING=1 must be set before the program starts: foretrace run --launch-blocking"
        )
    if given.get("ranks") is not None and given.get("stop_after_capture"):
        raise UsageError(
            "stop_after_capture with ranks: the other ranks would wait for ever; "
            "`foretrace run --ranks ... --stop-after-capture` stops all of them"
        )
    if switches:
        given["rich"] = replace(given.get("rich", CaptureOptions(output="").rich), **switches)
    for name in ("passes", "ranks", "rich_ranks"):
        if given.get(name) is not None:
            given[name] = (given[name],) if isinstance(given[name], (str, int)) else tuple(given[name])
    if MEMORY in given.get("passes", ()):
        given.update(memory=True, passes=tuple(kind for kind in given["passes"] if kind != MEMORY))
    return given


def _folder(output: str | os.PathLike[str] | None, rank: int, world_size: int) -> RunFolder:
    """The Run folder of this capture, created; ranks of one job arrive at the same one."""
    if world_size == 1:
        if output is None:
            return RunFolder.default(_command()).create()
        return RunFolder(_next(Path(output), _in_use)).create()
    path = Path(output) if output is not None else RunFolder.of_job(_command()).path
    return RunFolder(_next(path, lambda each: (each / f"rank{rank}" / RANK_FILE).exists())).create(join=True)


def _command() -> list[str]:
    return [sys.executable or "python", *sys.argv]


def _in_use(path: Path) -> bool:
    return path.exists() and not (path.is_dir() and not any(path.iterdir()))


def _next(path: Path, taken: Callable[[Path], bool]) -> Path:
    """The path, or with a number behind it the first one that is free."""
    candidate, number = path, 1
    while taken(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate


def _launched() -> bool:
    """Whether `foretrace run` started this program: then it records, and marks of steps are for it."""
    return bool(os.environ.get(VARIABLE))


def _guarded(action: Callable[[], object]) -> None:
    """Does it; a fault of the recording must not become one of the program."""
    try:
        action()
    except Exception as error:
        if os.environ.get("FORETRACE_DEBUG"):
            raise
        what = str(error) if isinstance(error, ForetraceError) else f"{type(error).__name__}: {error}"
        _say(f"recording failed, the program goes on: {what}")


def _say(text: str) -> None:
    sys.stderr.write(f"foretrace: {visible(' '.join(text.split()))}\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@atexit.register
def _close_all() -> None:
    for each in tuple(_open):
        each.close("the program ended inside the block")
