"""The StepFinder: where one step of a program ends and the next begins, found while it runs.

Candidates, the surest first: `foretrace.step()`, the program's own `prof.step()`, a function that was named,
an optimizer's step, a DataLoader's next batch, a repeated call of the same outermost nn.Module (or of a CUDA
graph). A surer one takes over as long as nothing has been recorded.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from foretrace.capture.window import ours

EXPLICIT, PROFILER, FUNCTION, OPTIMIZER, LOADER, MODULE = 6, 5, 4, 3, 2, 1
_SAYS = {
    EXPLICIT: "foretrace.step()",
    PROFILER: "the program's own prof.step()",
    FUNCTION: "calls of {key}",
    OPTIMIZER: "optimizer.step() of {name}",
    LOADER: "the next batch of a DataLoader",
    MODULE: "calls of the outermost module {name}",
}
# So many of the same kind make a candidate the source.
_NEEDED = {EXPLICIT: 1, PROFILER: 1, FUNCTION: 1, OPTIMIZER: 2, LOADER: 3, MODULE: 3}
_PATIENCE_S = 20.0  # with an optimizer at hand, its step is waited for this long (gradient accumulation)
_SILENT = 5  # times its longest pause so far: an optimizer that is silent for longer was replaced
_POLL_S = 0.02
_SAMPLE_FROM_S, _SAMPLE_UNTIL_S = 0.5, 300.0  # since torch was imported
_SAMPLES = 3


class StepFinder:
    """Calls `decided` when it has found the source, and `boundary` at each step's end from then on."""

    def __init__(
        self,
        boundary: Callable[[], None],
        decided: Callable[[str], None],
        *,
        step_function: str | None = None,
    ) -> None:
        self.source = ""
        self._profilers: dict[int, Any] = {}  # of the program's own, those that were started
        self.on_foreign_profiler: Callable[[], None] = lambda: None
        self._boundary, self._decided = boundary, decided
        self._function = step_function
        self._chosen: tuple[int, Any] | None = None
        self._fixed = False
        self._ended = False
        self._counts: Counter[tuple[int, Any]] = Counter()
        self._since_last: dict[Any, int] = {}  # of another optimizer: the chosen one's steps at its last one
        self._last_s, self._longest_s = (
            0.0,
            0.0,
        )  # the chosen one's last event, and the longest time between two
        self._optimizers = 0
        self._began = time.monotonic()
        self._undo: dict[int, list[Callable[[], None]]] = {}
        self._in_step = threading.local()

    def install(self) -> None:
        """Hooks into torch, which has just been imported."""
        self._hook_optimizers()
        self._hook_loaders()
        self._hook_profilers()
        self._hook_graphs()
        threading.Thread(target=self._watch, name="foretrace-steps", daemon=True).start()

    def adopt_optimizers(self) -> None:
        """Sees the steps of optimizers that were made before; `install` hooks those made from then on."""
        kind = sys.modules["torch"].optim.Optimizer
        # By type(): some objects that pretend to be of another class do costly things when they are asked.
        for each in [found for found in gc.get_objects() if issubclass(type(found), kind)]:
            self._adopt(each)

    def _adopt(self, optimizer: Any) -> None:
        own, inner = optimizer.__dict__.get("step"), optimizer.step

        # The wrapper carries the attributes of what it wraps: schedulers look for theirs.
        @functools.wraps(inner)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            out = inner(*args, **kwargs)
            self._event(OPTIMIZER, id(optimizer), type(optimizer).__name__)
            return out

        def undo() -> None:
            if optimizer.__dict__.get("step") is not stepped:
                return  # someone wrapped it again
            del optimizer.__dict__["step"]
            if own is not None:
                optimizer.__dict__["step"] = own

        optimizer.__dict__["step"] = stepped
        self._optimizers += 1
        self._later(OPTIMIZER, undo)

    def explicit(self) -> None:
        """foretrace.step() was called."""
        self._event(EXPLICIT, None)

    def foreign_profiler(self) -> bool:
        """Whether a profiler of the program's own runs now; one that waits for its schedule does not."""
        if not self._profilers:
            return False
        return any(_acts(getattr(each, "current_action", None)) for each in self._profilers.values())

    def fix(self) -> None:
        """Recording begins: the source stays what it is, and what is not needed is taken out."""
        self._fixed = True
        assert self._chosen is not None
        for kind, undoings in self._undo.items():
            if kind not in (self._chosen[0], PROFILER):
                while undoings:
                    undoings.pop()()

    def end(self) -> None:
        """Nothing is looked for any more."""
        self._ended = self._fixed = True
        for undoings in self._undo.values():
            while undoings:
                undoings.pop()()

    # --- deciding --------------------------------------------------------------------------------------------

    def _event(self, kind: int, key: Any, name: str = "") -> None:
        if self._ended or _capturing():
            return
        if self._chosen == (kind, key):  # the usual case, which must cost little
            if kind == OPTIMIZER and not self._fixed:
                self._counts[kind, key] += 1
                self._note_interval()
            self._boundary()
            return
        if _worker():
            return
        if self._fixed or (self._chosen is not None and kind < self._chosen[0]):
            return
        self._counts[kind, key] += 1
        if self._chosen is not None and kind == self._chosen[0]:
            if kind == OPTIMIZER and self._rarer(key):
                self._choose(kind, key, name)
            return
        if self._counts[kind, key] >= _NEEDED[kind] and self._sure(kind):
            self._choose(kind, key, name)

    def _sure(self, kind: int) -> bool:
        """Whether nothing better is to be expected."""
        if threading.current_thread().__class__.__name__ == "_DummyThread":
            return False  # a thread of autograd: a profiler cannot be started there
        if kind in (LOADER, MODULE):
            waited = time.monotonic() - self._began > _PATIENCE_S
            return waited or not (self._optimizers or self._function)
        return True

    def _rarer(self, key: Any) -> bool:
        """Of several optimizers the one that steps least often ends the step; or the one that is left."""
        assert self._chosen is not None
        steps = self._counts[self._chosen]
        before = self._since_last.get(key)
        self._since_last[key] = steps
        if before is None:
            return False
        silent_s = time.monotonic() - self._last_s
        replaced = self._counts[OPTIMIZER, key] > 3 and 0 < _SILENT * self._longest_s < silent_s
        return replaced or steps - before >= 2

    def _note_interval(self) -> None:
        now = time.monotonic()
        self._longest_s = max(self._longest_s, now - self._last_s)
        self._last_s = now

    def _choose(self, kind: int, key: Any, name: str) -> None:
        self._chosen = (kind, key)
        self._since_last.clear()
        self._last_s, self._longest_s = time.monotonic(), 0.0
        self.source = _SAYS[kind].format(key=self._function, name=name or "a module")
        self._decided(self.source)
        self._boundary()

    # --- hooks -----------------------------------------------------------------------------------------------

    def _hook_optimizers(self) -> None:
        import torch

        finder, optimizer = self, torch.optim.Optimizer
        original = optimizer.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            finder._optimizers += 1
            finder._wrap_step(type(self))

        setattr(optimizer, "__init__", init)  # noqa: B010
        self._later(OPTIMIZER, lambda: setattr(optimizer, "__init__", original))

    def _wrap_step(self, kind: type) -> None:
        """Torch's own hooks would do, but they run inside of what the profiler records as the optimizer."""
        owner = next((each for each in kind.__mro__ if "step" in each.__dict__), None)
        if owner is None or self._fixed or getattr(owner.__dict__["step"], "_foretrace", False):
            return
        finder, original = self, owner.__dict__["step"]

        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _compiling():
                return original(self, *args, **kwargs)
            outer = getattr(finder._in_step, "optimizer", None)
            finder._in_step.optimizer = self
            try:
                out = original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            finally:
                finder._in_step.optimizer = outer
            if outer is not self:
                finder._event(OPTIMIZER, id(self), type(self).__name__)
            return out

        step._foretrace = True  # type: ignore[attr-defined]
        setattr(owner, "step", step)  # noqa: B010
        self._later(OPTIMIZER, lambda: setattr(owner, "step", original))

    def _hook_loaders(self) -> None:
        from torch.utils.data import dataloader

        finder, iterator = self, dataloader._BaseDataLoaderIter
        original = iterator.__next__

        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            finder._event(LOADER, id(getattr(self, "_dataset", None)))
            try:
                return original(self)
            except BaseException as error:
                drop_own_frame(error)
                raise

        setattr(iterator, "__next__", __next__)  # noqa: B010
        self._later(LOADER, lambda: setattr(iterator, "__next__", original))

    def _hook_graphs(self) -> None:
        import torch

        graph: Any = getattr(torch.cuda, "CUDAGraph", None)
        original = getattr(graph, "__dict__", {}).get("replay")
        if original is None:
            return
        finder = self

        @functools.wraps(original)
        def replay(self: Any) -> Any:
            finder._event(MODULE, id(self), "CUDA graph")
            return original(self)

        graph.replay = replay
        self._later(MODULE, lambda: setattr(graph, "replay", original))

    def _hook_profilers(self) -> None:
        """The program's own profiler: its step is a boundary, and ours must not run at the same time."""
        import torch

        finder = self
        for owner in (torch.profiler.profile, torch.autograd.profiler.profile):
            for name in ("start", "__enter__"):
                if name in owner.__dict__:
                    self._around(owner, name, before=finder._profiler_starts)
            for name in ("stop", "__exit__"):
                if name in owner.__dict__:
                    self._around(owner, name, after=lambda each: finder._profilers.pop(id(each), None))
        self._around(
            torch.profiler.profile, "step", before=finder._profiler_will_step, after=finder._profiler_steps
        )

    def _around(
        self,
        owner: Any,
        name: str,
        *,
        before: Callable[[Any], object] | None = None,
        after: Callable[[Any], object] | None = None,
    ) -> None:
        original = owner.__dict__[name]

        @functools.wraps(original)
        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            mine = getattr(ours, "profiler", False)
            if before is not None and not mine:
                before(self)
            try:
                out = original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            if after is not None and not mine:
                after(self)
            return out

        setattr(owner, name, wrapped)
        self._later(PROFILER, lambda: setattr(owner, name, original))

    def _profiler_starts(self, profiler: Any) -> None:
        if _acts(getattr(profiler, "current_action", None)):
            self.on_foreign_profiler()
        self._profilers[id(profiler)] = profiler

    def _profiler_will_step(self, profiler: Any) -> None:
        if id(profiler) in self._profilers and _acts(profiler.schedule(profiler.step_num + 1)):
            self.on_foreign_profiler()

    def _profiler_steps(self, _: Any) -> None:
        self._event(PROFILER, None)

    def _later(self, kind: int, undo: Callable[[], None]) -> None:
        self._undo.setdefault(kind, []).append(undo)

    # --- what is found by looking from aside -----------------------------------------------------------------

    def _watch(self) -> None:
        """Looks for the named function until it exists, and for a module that is called again and again."""
        seen: Counter[int] = Counter()
        while not self._fixed and time.monotonic() - self._began < _SAMPLE_UNTIL_S:
            if self._chosen is not None and (self._function is None or self._function_found):
                return  # steps are about to be timed: nothing may run beside them
            time.sleep(_POLL_S)
            try:
                if self._function is not None and self._wrap_function(self._function):
                    self._function_found = True
                if self._chosen is None and time.monotonic() - self._began > _SAMPLE_FROM_S:
                    self._sample(seen)
            except Exception as error:  # looking must not disturb the program
                sys.stderr.write(f"foretrace: no longer looking for a repeated module: {error!r}\n")
                return

    _function_found = False

    def _wrap_function(self, where: str) -> bool:
        if self._function_found:
            return False
        module_name, _, path = where.partition(":")
        owner: Any = sys.modules.get(module_name)
        *parents, name = path.split(".")
        for each in parents:
            owner = getattr(owner, each, None)
        original = getattr(owner, name, None)
        if owner is None or not callable(original):
            return False
        finder = self

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                out = original(*args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            finder._event(FUNCTION, None)
            return out

        setattr(owner, name, wrapped)
        self._later(FUNCTION, lambda: setattr(owner, name, original))
        return True

    def _sample(self, seen: Counter[int]) -> None:
        """No hook would do: global ones change what torch.compile compiles."""
        import torch

        calls = {torch.nn.Module._wrapped_call_impl.__code__, torch.nn.Module._call_impl.__code__}
        here = threading.get_ident()
        for thread, frame in sys._current_frames().items():
            root = _outermost(frame, calls) if thread != here else None
            if root is None:
                continue
            seen[id(root)] += 1
            if seen[id(root)] == _SAMPLES:
                self._wrap_module(root)

    def _wrap_module(self, root: Any) -> None:
        """Through the attribute that nn.Module.compile() uses: only calls of this very module come by."""
        finder, before = self, root.__dict__.get("_compiled_call_impl")
        inner = before or root._call_impl
        name = type(root).__name__

        def called(*args: Any, **kwargs: Any) -> Any:
            finder._event(MODULE, id(root), name)
            try:
                return inner(*args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise

        def undo() -> None:
            if root.__dict__.get("_compiled_call_impl") is called:
                root.__dict__.pop("_compiled_call_impl")
                if before is not None:
                    root.__dict__["_compiled_call_impl"] = before

        root.__dict__["_compiled_call_impl"] = called
        self._later(MODULE, undo)
        if self._fixed:  # meanwhile
            undo()


def _acts(action: Any) -> bool:
    """Whether a profiler with this action of its schedule does anything; the old one has no schedule."""
    return getattr(action, "name", "") != "NONE"


def drop_own_frame(error: BaseException) -> None:
    """Takes the wrapper out of a traceback: the program's reads as it would without Foretrace."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _outermost(frame: FrameType | None, calls: set[Any]) -> Any:
    root = None
    while frame is not None:
        if frame.f_code in calls:
            root = frame.f_locals.get("self")
        frame = frame.f_back
    return root


def _worker() -> bool:
    """Whether this is a DataLoader's worker process."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    return worker is not None and getattr(worker, "_worker_info", None) is not None


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: a synchronisation would break that."""
    # Neither an import statement nor is_available(), which asks the driver: this runs at every step.
    cuda: Any = sys.modules["torch"].cuda
    return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())


def _compiling() -> bool:
    import torch  # dynamo follows this into a constant; it would not follow sys.modules

    return bool(torch.compiler.is_compiling())
