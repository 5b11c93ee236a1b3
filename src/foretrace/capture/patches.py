"""Patches: changes that `foretrace try` makes in a running program, without an edit of its source.

Each is installed when torch has been imported, before the program's own code goes on, and tells after the measured steps
whether it took effect: from what it reads back, never from the fact that it was asked for.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Proof:
    """Whether a change took effect, and what shows it."""

    applied: bool
    says: str


class Patch(ABC):
    """One change; the value is what it is set to, where it has one."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def install(self) -> None:  # noqa: B027  # not every change is made there
        """Torch has just been imported."""

    def adopt(self, root: Any) -> None:  # noqa: B027  # nor there
        """An outermost module of the program is about to be called for the first time."""

    @abstractmethod
    def proof(self) -> Proof:
        """After the measured steps."""


def replaced(owner: Any, name: str, wrapping: Callable[[Any], Any]) -> None:
    """Puts a wrapper in the place of a function."""
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(wrapping(original)))


def on_gpu() -> bool:
    """Whether the program has used a GPU."""
    import torch

    return bool(torch.cuda.is_initialized())


class CudnnBenchmark(Patch):
    """cuDNN measures its algorithms, and takes the fastest."""

    def install(self) -> None:
        import torch

        torch.backends.cudnn.benchmark = True

    def proof(self) -> Proof:
        import torch

        if not on_gpu():
            return Proof(False, "the program uses no GPU")
        if not torch.backends.cudnn.benchmark:
            return Proof(False, "the program sets it to False itself")
        return Proof(True, "torch.backends.cudnn.benchmark is True after the steps")


class Tf32(Patch):
    """Single precision on the tensor cores."""

    def install(self) -> None:
        import torch

        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True

    def proof(self) -> Proof:
        import torch

        if not on_gpu():
            return Proof(False, "the program uses no GPU")
        now = torch.get_float32_matmul_precision()
        if now == "highest":
            return Proof(False, "the program sets the precision back to highest itself")
        return Proof(True, f"the precision of fp32 products is {now!r} after the steps")


class AnomalyOff(Patch):
    """Autograd does not look for NaN."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self._asked = 0

    def install(self) -> None:
        import torch

        def wrapping(original: Any) -> Any:
            def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
                self._asked += bool(enabled)
                original(False, check_nan)

            return set_anomaly_enabled

        replaced(torch, "set_anomaly_enabled", wrapping)

    def proof(self) -> Proof:
        import torch

        if torch.is_anomaly_enabled():
            return Proof(False, "it is still on")
        if not self._asked:
            return Proof(False, "the program does not turn it on")
        return Proof(True, f"the program asked for it {self._asked} times, and it is off")


class DeterministicOff(Patch):
    """Algorithms need not give the same bits every time."""

    def __init__(self, value: Any = None) -> None:
        super().__init__(value)
        self._asked = 0

    def install(self) -> None:
        import torch

        def wrapping(original: Any) -> Any:
            def use_deterministic_algorithms(mode: bool, *, warn_only: bool = False) -> None:
                self._asked += bool(mode)
                original(False, warn_only=warn_only)

            return use_deterministic_algorithms

        replaced(torch, "use_deterministic_algorithms", wrapping)
        # The flag of cuDNN is a descriptor of the module's class.
        kind = type(torch.backends.cudnn)
        flag = kind.__dict__.get("deterministic")
        setter = getattr(flag, "setter", None)
        if setter is not None:

            def refuse(value: bool) -> None:
                self._asked += bool(value)
                setter(False)

            flag.setter = refuse  # type: ignore[union-attr]

    def proof(self) -> Proof:
        import torch

        if torch.are_deterministic_algorithms_enabled() or torch.backends.cudnn.deterministic:
            return Proof(False, "it is still on")
        if not self._asked:
            return Proof(False, "the program does not ask for deterministic algorithms")
        return Proof(True, f"the program asked for it {self._asked} times, and it is off")


class Threads(Patch):
    """So many threads in torch's operators."""

    def install(self) -> None:
        import torch

        def wrapping(original: Any) -> Any:
            def set_num_threads(_: int) -> None:
                original(self.value)

            return set_num_threads

        replaced(torch, "set_num_threads", wrapping)
        torch.set_num_threads(self.value)

    def proof(self) -> Proof:
        import torch

        now = torch.get_num_threads()
        return Proof(now == self.value, f"torch.get_num_threads() is {now} after the steps")


class ExpandableSegments(Patch):
    """The allocator's segments grow; the launcher sets the variable, before CUDA is asked for anything."""

    def proof(self) -> Proof:
        import torch

        if not on_gpu():
            return Proof(False, "the program uses no GPU")
        try:
            settings = torch.cuda.memory._snapshot().get("allocator_settings", {})
        except (RuntimeError, AttributeError) as error:
            return Proof(False, f"the allocator does not tell its settings ({error})")
        now = bool(settings.get("expandable_segments"))
        return Proof(now, f"the allocator says expandable_segments: {now}")
