"""The StepFinder: where one step of a program ends and the next begins, found while it runs.

Candidates, the surest first: `foretrace.step()`, the program's own `prof.step()`, a function that was named,
an optimizer's step, a DataLoader's next batch, a repeated call of the same outermost nn.Module (or of a CUDA
graph). A surer one takes over as long as nothing has been recorded.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from foretrace.capture.step_hooks import (
    EXPLICIT,
    FUNCTION,
    LOADER,
    MODULE,
    OPTIMIZER,
    PROFILER,
    Hooks,
)

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
_POLL_OFTEN_S, _OFTEN_UNTIL_S = 0.004, 5.0  # at first, for a program that may be over soon
_SAMPLE_UNTIL_S = 300.0  # since torch was imported
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
        self.hooks = Hooks(self._event)
        self._boundary, self._decided = boundary, decided
        self._function, self._function_found = step_function, False
        self._chosen: tuple[int, Any] | None = None
        self._fixed = False
        self._ended = False
        self._counts: Counter[tuple[int, Any]] = Counter()
        self._since_last: dict[Any, int] = {}  # of another optimizer: the chosen one's steps at its last one
        self._last_s = self._longest_s = 0.0  # the chosen one's last event, and the longest time between two
        self._began = time.monotonic()

    def install(self) -> None:
        """Hooks into torch, which has just been imported."""
        self.hooks.install()
        threading.Thread(target=self._watch, name="foretrace-steps", daemon=True).start()

    def explicit(self) -> None:
        """foretrace.step() was called."""
        self._event(EXPLICIT, None, "")

    def fix(self) -> None:
        """Recording begins: the source stays what it is, and what is not needed is taken out."""
        self._fixed = True
        assert self._chosen is not None
        self.hooks.remove(keep=(self._chosen[0], PROFILER))

    def end(self) -> None:
        """Nothing is looked for any more."""
        self._ended = self._fixed = True
        self.hooks.remove()

    # --- deciding --------------------------------------------------------------------------------------------

    def _event(self, kind: int, key: Any, name: str) -> None:
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
            return waited or not (self.hooks.optimizers or self._function)
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

    # --- what is found by looking from aside -----------------------------------------------------------------

    def _watch(self) -> None:
        """Looks for the named function until it exists, and for a module that is called again and again."""
        seen: Counter[int] = Counter()
        while not self._fixed and time.monotonic() - self._began < _SAMPLE_UNTIL_S:
            if self._chosen is not None and (self._function is None or self._function_found):
                return  # steps are about to be timed: nothing may run beside them
            early = time.monotonic() - self._began < _OFTEN_UNTIL_S
            time.sleep(_POLL_OFTEN_S if early else _POLL_S)
            try:
                if self._function is not None and not self._function_found:
                    self._function_found = self.hooks.wrap_function(self._function)
                if self._chosen is None:
                    self._sample(seen)
            except Exception as error:  # looking must not disturb the program
                sys.stderr.write(f"foretrace: no longer looking for a repeated module: {error!r}\n")
                return

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
                self.hooks.wrap_module(root)


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
