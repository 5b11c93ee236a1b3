"""Patches of the program's optimizers: fused=True or foreach=True."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from foretrace.capture.patches import Patch, Proof


class OptimizerPatch(Patch):
    """Gives every optimizer of torch's that has it one of these arguments, and counts the steps that used it."""

    argument = ""
    without: tuple[str, ...] = ()  # arguments that exclude it

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self.stepped = 0
        self.refused = ""
        self._kinds: dict[str, int] = {}  # optimizers that were made with it, by name

    def install(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        kinds = [kind for kind in vars(torch.optim).values() if isinstance(kind, type)]
        for kind in dict.fromkeys(kinds):
            named = inspect.signature(kind).parameters if issubclass(kind, torch.optim.Optimizer) else {}
            if self.argument in named:
                self._wrap(kind)
        register_optimizer_step_post_hook(self._after_step)

    def _wrap(self, kind: Any) -> None:
        original, patch = kind.__init__, self
        signature = inspect.signature(original)

        @functools.wraps(original)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                given = signature.bind(optimizer, *args, **kwargs)
            except TypeError:
                return original(optimizer, *args, **kwargs)
            if given.arguments.get(patch.argument) is True:
                if not optimizer.__dict__.get("_foretrace_changed"):
                    patch.refused = f"the program's {type(optimizer).__name__} has it already"
                return original(optimizer, *args, **kwargs)
            params = list(given.arguments.get("params", ()))  # an iterator is used up by the first try
            given.arguments["params"] = params
            before = {name: given.arguments.get(name) for name in (patch.argument, *patch.without)}
            changed = {**dict.fromkeys(patch.without), patch.argument: True}
            optimizer.__dict__["_foretrace_changed"] = True
            try:
                given.arguments.update(
                    {name: changed[name] for name in changed if name in signature.parameters}
                )
                original(*given.args, **given.kwargs)
                patch._kinds[type(optimizer).__name__] = patch._kinds.get(type(optimizer).__name__, 0) + 1
            except RuntimeError as error:
                patch.refused = f"{type(optimizer).__name__} refuses it: {str(error).splitlines()[0]}"
                given.arguments.update(before)
                original(*given.args, **given.kwargs)
            finally:
                optimizer.__dict__.pop("_foretrace_changed", None)

        kind.__init__ = __init__

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        groups = optimizer.param_groups
        self.stepped += bool(groups) and all(group.get(self.argument) is True for group in groups)

    def proof(self) -> Proof:
        if not self._kinds:
            return Proof(
                False, self.refused or f"the program makes no optimizer of torch's that takes {self.argument}"
            )
        if not self.stepped:
            return Proof(False, f"no step was taken with {self.argument}=True")
        return Proof(True, f"{', '.join(self._kinds)} took {self.stepped} steps with {self.argument}=True")


class FusedOptimizer(OptimizerPatch):
    """One kernel updates many parameters, all of an update at once."""

    argument, without = "fused", ("foreach",)


class ForeachOptimizer(OptimizerPatch):
    """Each operator of an update takes many parameters."""

    argument, without = "foreach", ("fused",)
