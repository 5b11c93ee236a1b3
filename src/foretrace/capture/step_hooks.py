"""The Hooks: wrappers around torch's classes and the program's functions that tell when a step may have ended.

Each can be taken out again, and leaves no frame of its own in the program's tracebacks.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

from foretrace.capture.passes import ours

EXPLICIT, PROFILER, FUNCTION, OPTIMIZER, LOADER, MODULE = (
    6,
    5,
    4,
    3,
    2,
    1,
)  # the surest sign of a step is the highest


class Hooks:
    """Calls `event` with the kind of sign, which object gave it, and that object's name."""

    def __init__(self, event: Callable[[int, Any, str], None]) -> None:
        self.optimizers = 0  # that the program made
        self.on_foreign_profiler: Callable[[], None] = lambda: None
        self._event = event
        self._closed = False
        self._profilers: dict[int, Any] = {}  # of the program's own, those that were started
        self._undo: dict[int, list[Callable[[], None]]] = {}
        self._in_step = threading.local()
        self._told_before = False  # of the step of the program's own profiler that ends now
        self._real_steps = 0  # of any optimizer, where they are counted
        self._counts_real_steps = False

    def install(self) -> None:
        """Hooks into torch, which has just been imported."""
        self._hook_optimizers()
        self._hook_loaders()
        self._hook_profilers()
        self._hook_graphs()

    def remove(self, *, keep: tuple[int, ...] = ()) -> None:
        """Takes out all but these kinds; nothing more is hooked from here on."""
        self._closed = True
        for kind, undoings in self._undo.items():
            while undoings and kind not in keep:
                undoings.pop()()

    def _later(self, kind: int, undo: Callable[[], None]) -> None:
        self._undo.setdefault(kind, []).append(undo)

    def foreign_profiler(self) -> bool:
        """Whether a profiler of the program's own runs now; one that waits for its schedule does not."""
        if not self._profilers:
            return False
        return any(_acts(getattr(profiler, "current_action", None)) for profiler in self._profilers.values())

    def adopt_optimizers(self) -> None:
        """Sees the steps of optimizers that were made before; `install` hooks those made from then on."""
        kind = sys.modules["torch"].optim.Optimizer
        # By type(): some objects that pretend to be of another class do costly things when they are asked.
        for optimizer in [found for found in gc.get_objects() if issubclass(type(found), kind)]:
            self._adopt(optimizer)

    def _adopt(self, optimizer: Any) -> None:
        own, inner = optimizer.__dict__.get("step"), optimizer.step
        # Accelerate's optimizer calls the one inside it only once gradients are accumulated, and with a GradScaler in a way
        # that no wrapper of the one inside sees.
        around_another = not getattr(type(optimizer).step, "hooked", False)
        if around_another:
            self._count_real_steps()

        # The wrapper carries the attributes of what it wraps: schedulers look for theirs.
        @functools.wraps(inner)
        def stepped(*args: Any, **kwargs: Any) -> Any:
            before = self._real_steps
            out = inner(*args, **kwargs)
            if not around_another or self._real_steps != before:
                self._event(OPTIMIZER, id(optimizer), type(optimizer).__name__)
            return out

        def undo() -> None:
            if optimizer.__dict__.get("step") is not stepped:
                return  # someone wrapped it again
            del optimizer.__dict__["step"]
            if own is not None:
                optimizer.__dict__["step"] = own

        optimizer.__dict__["step"] = stepped
        self.optimizers += 1
        self._later(OPTIMIZER, undo)

    def _count_real_steps(self) -> None:
        """By torch's own hook, which every optimizer calls that updates parameters."""
        if self._counts_real_steps:
            return
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def count(*_: Any) -> None:
            self._real_steps += 1

        self._counts_real_steps = True
        self._later(OPTIMIZER, register_optimizer_step_post_hook(count).remove)

    def _hook_optimizers(self) -> None:
        import torch

        hooks, optimizer = self, torch.optim.Optimizer
        original = optimizer.__init__

        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            try:
                original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            hooks.optimizers += 1
            hooks._wrap_step(type(self))

        setattr(optimizer, "__init__", init)  # noqa: B010
        self._later(OPTIMIZER, lambda: setattr(optimizer, "__init__", original))

    def _wrap_step(self, kind: type) -> None:
        """Torch's own hooks would do, but they run inside of what the profiler records as the optimizer."""
        owner = next((each for each in kind.__mro__ if "step" in each.__dict__), None)
        if owner is None or self._closed or getattr(owner.__dict__["step"], "_foretrace", False):
            return
        hooks, original = self, owner.__dict__["step"]

        @functools.wraps(original)
        def step(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _compiling():
                return original(self, *args, **kwargs)
            outer = getattr(hooks._in_step, "optimizer", None)
            hooks._in_step.optimizer = self
            try:
                out = original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            finally:
                hooks._in_step.optimizer = outer
            if outer is not self:
                hooks._event(OPTIMIZER, id(self), type(self).__name__)
            return out

        step._foretrace = True  # type: ignore[attr-defined]
        setattr(owner, "step", step)  # noqa: B010
        self._later(OPTIMIZER, lambda: setattr(owner, "step", original))

    def _hook_loaders(self) -> None:
        from torch.utils.data import dataloader

        hooks, iterator = self, dataloader._BaseDataLoaderIter
        original = iterator.__next__

        @functools.wraps(original)
        def __next__(self: Any) -> Any:
            hooks._event(LOADER, id(getattr(self, "_dataset", None)), "")
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
        hooks = self

        @functools.wraps(original)
        def replay(self: Any) -> Any:
            hooks._event(MODULE, id(self), "CUDA graph")
            return original(self)

        graph.replay = replay
        self._later(MODULE, lambda: setattr(graph, "replay", original))

    def _hook_profilers(self) -> None:
        """The program's own profiler: its step is a boundary, and ours must not run at the same time."""
        import torch

        for owner in (torch.profiler.profile, torch.autograd.profiler.profile):
            for name in ("start", "__enter__"):
                if name in owner.__dict__:
                    self._around(owner, name, before=self._profiler_starts)
            for name in ("stop", "__exit__"):
                if name in owner.__dict__:
                    self._around(owner, name, after=self._profiler_stops)
        self._around(
            torch.profiler.profile, "step", before=self._profiler_will_step, after=self._profiler_steps
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
            foreign = not getattr(ours, "profiler", False)
            if before is not None and foreign:
                before(self)
            try:
                out = original(self, *args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            if after is not None and foreign:
                after(self)
            return out

        setattr(owner, name, wrapped)
        self._later(PROFILER, lambda: setattr(owner, name, original))

    def _profiler_starts(self, profiler: Any) -> None:
        if _acts(getattr(profiler, "current_action", None)):
            self.on_foreign_profiler()
        self._profilers[id(profiler)] = profiler

    def _profiler_stops(self, profiler: Any) -> None:
        self._profilers.pop(id(profiler), None)

    def _profiler_will_step(self, profiler: Any) -> None:
        acts_next = id(profiler) in self._profilers and _acts(profiler.schedule(profiler.step_num + 1))
        if acts_next:
            self.on_foreign_profiler()
        # One that waits marks its steps all the same. Told after it began the next mark, our recording would end with that
        # mark, a step without work; told before, this one's mark and ours are of the same step.
        elif not _acts(getattr(profiler, "current_action", None)):
            self._event(PROFILER, None, "")
            self._told_before = True

    def _profiler_steps(self, _: Any) -> None:
        told, self._told_before = self._told_before, False
        if not told:
            self._event(PROFILER, None, "")

    def wrap_function(self, where: str) -> bool:
        """Tells of each call of MODULE:NAME, once that exists; whether it does."""
        module_name, _, path = where.partition(":")
        owner: Any = sys.modules.get(module_name)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = getattr(owner, name, None)
        if owner is None or not callable(original):
            return False
        event = self._event

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                out = original(*args, **kwargs)
            except BaseException as error:
                drop_own_frame(error)
                raise
            event(FUNCTION, None, "")
            return out

        setattr(owner, name, wrapped)
        self._later(FUNCTION, lambda: setattr(owner, name, original))
        return True

    def wrap_module(self, root: Any) -> None:
        """Tells of each call of a module, through the attribute that nn.Module.compile() uses: no other module is slowed."""
        event, before = self._event, root.__dict__.get("_compiled_call_impl")
        inner = before or root._call_impl
        name = type(root).__name__

        def called(*args: Any, **kwargs: Any) -> Any:
            event(MODULE, id(root), name)
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
        if self._closed:  # meanwhile
            undo()


def _acts(action: Any) -> bool:
    """Whether a profiler with this action of its schedule does anything; the old one has no schedule."""
    return getattr(action, "name", "") != "NONE"


def drop_own_frame(error: BaseException) -> None:
    """Takes the wrapper out of a traceback: the program's reads as it would without Foretrace."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def _compiling() -> bool:
    import torch  # dynamo follows this into a constant; it would not follow sys.modules

    return bool(torch.compiler.is_compiling())
