"""Patches of the program's outermost modules: compiled in place, in another layout, under autocast.

The outermost modules are those with parameters that the program itself calls, found when they are first called. For that,
calls of all modules are looked at, in the first steps alone and never inside of an outermost one: torch.compile must not see
it. What a module gets stays in its own `_compiled_call_impl`, as with nn.Module.compile(): no name in a checkpoint changes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from foretrace.capture.patches import Patch, Proof


class Roots:
    """Tells patches of each outermost module before its first call, and a watch of what calls return."""

    def __init__(self, patches: Sequence[Patch], watch: Callable[[Any], Any]) -> None:
        self.first_call_ns = 0
        self.names: list[str] = []
        self._patches, self._watch = patches, watch
        self._seen: set[int] = set()
        self._original: Any = None
        self._hook: Any = None
        self._thread = 0

    def install(self) -> None:
        """From now on calls are looked at."""
        import torch

        roots, self._original = self, torch.nn.Module.__call__

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not _has_parameters(module):
                return roots._original(module, *args, **kwargs)
            return roots._outermost(module, args, kwargs)

        self._hook = __call__
        torch.nn.Module.__call__ = __call__

    def remove(self) -> None:
        """No more; what the modules have got stays."""
        import torch

        if self._original is not None:
            torch.nn.Module.__call__ = self._original
            self._hook = None

    def _outermost(self, module: Any, args: Any, kwargs: Any) -> Any:
        import torch

        if self._thread and self._thread != threading.get_ident():
            return self._original(module, *args, **kwargs)
        self._thread = threading.get_ident()
        torch.nn.Module.__call__ = self._original
        try:
            if id(module) not in self._seen:
                self._seen.add(id(module))
                self.names.append(type(module).__name__)
                self.first_call_ns = self.first_call_ns or time.perf_counter_ns()
                for patch in self._patches:
                    patch.adopt(module)
            with self._watch(module) as told:
                out = module(*args, **kwargs)
                told(out)
            return out
        finally:
            self._thread = 0
            if self._hook is not None:
                torch.nn.Module.__call__ = self._hook


def _has_parameters(module: Any) -> bool:
    return next(module.parameters(), None) is not None


def around_calls(root: Any, wrapping: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Puts a wrapper around all calls of one module."""
    inner = root.__dict__.get("_compiled_call_impl") or root._call_impl
    root.__dict__["_compiled_call_impl"] = wrapping(inner)


class ModulePatch(Patch):
    """Counts the modules that it changed."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.names: list[str] = []
        self.calls = 0

    def none(self) -> Proof:
        """Where no module was changed."""
        return Proof(False, "the program calls no module with parameters")


class Compile(ModulePatch):
    """module.compile(), in place; the value is the mode."""

    def adopt(self, root: Any) -> None:
        if not hasattr(root, "compile"):
            return
        self.names.append(type(root).__name__)
        options = {"mode": self.value} if self.value else {}
        if not type(root).__module__.startswith("torch.nn.modules"):
            root.compile(**options)
            return
        # Of a container of torch's own, such as nn.Sequential, compile() compiles nothing: dynamo skips torch's files.
        # torch.compile(model) wraps it, and so does this.
        import torch
        from torch._dynamo.external_utils import wrap_inline

        root.__dict__["_compiled_call_impl"] = torch.compile(wrap_inline(root._call_impl), **options)

    def proof(self) -> Proof:
        from torch._dynamo.utils import counters

        if not self.names:
            return self.none()
        graphs = int(counters["stats"]["unique_graphs"])
        breaks = sum(counters["graph_break"].values())
        if not graphs:
            return Proof(False, f"nothing of {', '.join(self.names)} was compiled")
        return Proof(
            True,
            f"{_counted(graphs, 'compiled graph')}, {_counted(breaks, 'graph break')}, of {', '.join(self.names)}",
        )


class Bf16Autocast(ModulePatch):
    """Calls of the module run under autocast; what they return is fp32 again, as a loss under autocast would make it."""

    def adopt(self, root: Any) -> None:
        import torch

        self.names.append(type(root).__name__)
        device = next(root.parameters()).device.type

        def wrapping(inner: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                self.calls += 1
                with torch.autocast(device, torch.bfloat16):
                    out = inner(*args, **kwargs)
                return mapped(out, _to_fp32)

            return called

        around_calls(root, wrapping)

    def proof(self) -> Proof:
        if not self.calls:
            return self.none()
        return Proof(True, f"{self.calls} calls of {', '.join(self.names)} ran under bf16 autocast")


class ChannelsLast(ModulePatch):
    """The module's weights and its images in channels-last order."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.weights = 0

    def adopt(self, root: Any) -> None:
        import torch

        self.weights += sum(weight.dim() == 4 for weight in root.parameters())
        if not self.weights:
            return
        self.names.append(type(root).__name__)
        root.to(memory_format=torch.channels_last)

        def wrapping(inner: Callable[..., Any]) -> Callable[..., Any]:
            def called(*args: Any, **kwargs: Any) -> Any:
                return inner(*mapped(args, self._converted), **mapped(kwargs, self._converted))

            return called

        around_calls(root, wrapping)

    def _converted(self, tensor: Any) -> Any:
        import torch

        if tensor.dim() != 4:
            return tensor
        self.calls += 1
        return tensor.contiguous(memory_format=torch.channels_last)

    def proof(self) -> Proof:
        if not self.names:
            return Proof(False, "no outermost module has weights of four dimensions")
        if not self.calls:
            return Proof(False, "no tensor of four dimensions is given to the module")
        return Proof(True, f"{self.weights} weights and {self.calls} inputs are in channels-last order")


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _to_fp32(tensor: Any) -> Any:
    import torch

    return tensor.float() if tensor.dtype == torch.bfloat16 else tensor


def mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """A value with the tensors in it replaced, in lists, tuples and dicts of it; what is of another kind stays as it is."""
    import torch

    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        changed = {key: mapped(item, function) for key, item in value.items()}
        if type(value) is dict:
            return changed
        for (
            key,
            item,
        ) in changed.items():  # a model's own kind of output, which also has its fields as attributes
            value[key] = item
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(item, function) for item in value))
    if type(value) in (list, tuple):
        return type(value)(mapped(item, function) for item in value)
    return value
