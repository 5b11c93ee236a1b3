"""Labels: while they are on, every nn.Module that is called shows under its name, in torch.profiler and in NVTX."""

from __future__ import annotations

import threading
from typing import Any


class ModuleLabels:
    """Hooks for all modules of the process. Compiled code has no modules left, so it gets no labels."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}
        self._open = threading.local()

    def start(self) -> None:
        """From now on calls are labelled."""
        from torch.nn.modules import module

        self._handles = [
            module.register_module_forward_pre_hook(self._enter),
            module.register_module_forward_hook(self._leave, always_call=True),
        ]

    def stop(self) -> None:
        """No longer."""
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, called: Any, _: Any) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        ranges = self._ranges()
        if not ranges and id(called) not in self._names:
            self._names.update((id(named_module), name) for name, named_module in called.named_modules())
        name = self._names.get(id(called)) or type(called).__name__
        annotation = torch.autograd.profiler.record_function(name)
        annotation.__enter__()
        nvtx = torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.version.hip
        if nvtx:
            torch.cuda.nvtx.range_push(name)
        ranges.append((called, annotation, nvtx))

    def _leave(self, called: Any, *_: Any) -> None:
        import torch

        ranges = self._ranges()
        if torch.compiler.is_compiling() or not any(each is called for each, _, _ in ranges):
            return
        while ranges:  # a module that raised left its range open
            each, annotation, nvtx = ranges.pop()
            if nvtx:
                torch.cuda.nvtx.range_pop()
            annotation.__exit__(None, None, None)
            if each is called:
                return

    def _ranges(self) -> list[tuple[Any, Any, bool]]:
        if not hasattr(self._open, "ranges"):
            self._open.ranges = []
        ranges: list[tuple[Any, Any, bool]] = self._open.ranges
        return ranges
