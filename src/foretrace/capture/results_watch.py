"""The ResultsWatch: losses, gradient norms and outputs of a program's first steps, and whether random numbers are drawn.

Reading them waits for the device, so they are read before anything is timed, and then all of this is taken out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_LOOKS = 4  # batches and calls that are looked at for random numbers
_DEEP = 4  # of an output made of lists and dicts, how deep its tensors are looked for


class ResultsWatch:
    """`install` when torch is there, `remove` before steps are timed."""

    def __init__(self, most: int) -> None:
        self.losses: list[float] = []
        self.gradient_norms: list[float] = []
        self.outputs: list[float] = []
        self.draws_in_model = False
        self.draws_in_data = False
        self.problem = ""
        self._most = most
        self._calls = self._batches = 0
        self._undo: list[Callable[[], object]] = []

    def install(self) -> None:
        """Torch has just been imported."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_pre_hook
        from torch.utils.data import dataloader

        backward = torch.autograd.backward

        def watched_backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            self._read(self.losses, lambda: _number_of(tensors))
            return backward(tensors, *args, **kwargs)

        torch.autograd.backward = watched_backward
        self._undo.append(lambda: setattr(torch.autograd, "backward", backward))
        self._undo.append(register_optimizer_step_pre_hook(self._before_step).remove)
        kind: Any = dataloader._SingleProcessDataLoaderIter
        next_data = kind._next_data

        def watched_next(iterator: Any) -> Any:
            self._batches += 1
            look = 1 < self._batches <= _LOOKS  # the first one draws the order of an epoch
            before = _states() if look else None
            out = next_data(iterator)
            self.draws_in_data = self.draws_in_data or (look and before != _states())
            return out

        kind._next_data = watched_next
        self._undo.append(lambda: setattr(kind, "_next_data", next_data))

    def remove(self) -> None:
        """Takes all of it out."""
        while self._undo:
            self._undo.pop()()

    @contextmanager
    def call(self, _: Any) -> Iterator[Callable[[Any], None]]:
        """Around a call of an outermost module: what it returns is told."""
        if not self._undo or self._calls >= self._most:
            yield lambda _: None
            return
        self._calls += 1
        before = _states()
        yield lambda out: self._read(self.outputs, lambda: _norm(list(_tensors(out, _DEEP))))
        self.draws_in_model = self.draws_in_model or before != _states()

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        def norm() -> float:
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            return _norm([weight.grad for weight in weights if weight.grad is not None])

        self._read(self.gradient_norms, norm)

    def _read(self, values: list[float], value: Callable[[], float]) -> None:
        if len(values) >= self._most or _busy():
            return
        try:
            values.append(value())
        except Exception as error:  # the program must go on: what could not be read is said
            self.problem = f"{type(error).__name__}: {error}"

    def to_dict(self) -> dict[str, Any]:
        """As the result file holds it."""
        return {
            "losses": self.losses,
            "gradient_norms": self.gradient_norms,
            "outputs": self.outputs,
            "draws_in_model": self.draws_in_model,
            "draws_in_data": self.draws_in_data,
            "problem": self.problem,
        }


def _busy() -> bool:
    """Whether nothing may be read now: something is compiled, or a CUDA graph captured."""
    import torch

    if torch.compiler.is_compiling():
        return True
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def _states() -> list[Any]:
    """Where the random generators of this process stand."""
    import torch

    states: list[Any] = [random.getstate(), torch.get_rng_state().numpy().tobytes()]
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states.append((kind, keys.tobytes(), *rest))
    if torch.cuda.is_initialized() and not _busy():
        states.append(torch.cuda.get_rng_state().numpy().tobytes())
    return states


def _number_of(tensors: Any) -> float:
    """A loss, or the norm of several values that are differentiated."""
    roots = [tensors] if hasattr(tensors, "detach") else list(tensors)
    if len(roots) == 1 and roots[0].numel() == 1:
        return float(roots[0].detach())
    return _norm(roots)


def _norm(tensors: list[Any]) -> float:
    import torch

    if not tensors:
        return 0.0
    floats = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
    norms = [
        torch.linalg.vector_norm((each.coalesce().values() if each.is_sparse else each).float()).cpu()
        for each in floats
    ]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else 0.0


def _tensors(value: Any, depth: int) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, depth - 1)
