"""Callbacks: recording a training loop that a framework runs.

    lightning.pytorch.Trainer(callbacks=[foretrace.callbacks.lightning()])
    transformers.Trainer(..., callbacks=[foretrace.callbacks.hugging_face()])
    with foretrace.callbacks.accelerate(accelerator) as p: ...; p.step()

They take the options of `foretrace.profile`. A step is one step of the optimizer, however many batches went
into it. The frameworks are imported only where one of these functions is called, for their base classes.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Unpack

from foretrace.capture.api import profile
from foretrace.capture.profile_options import ProfileOptions

Output = str | os.PathLike[str] | None

_LIGHTNING = ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks")
_HUGGING_FACE = ("transformers.trainer_callback", "transformers")


def lightning(output: Output = None, **options: Unpack[ProfileOptions]) -> Any:
    """A callback for Lightning's Trainer."""
    return _combined(_Lightning, _LIGHTNING, "Callback")(output, options)


def hugging_face(output: Output = None, **options: Unpack[ProfileOptions]) -> Any:
    """A callback for the Trainer of Hugging Face's transformers, and those derived from it."""
    return _combined(_HuggingFace, _HUGGING_FACE, "TrainerCallback")(output, options)


class accelerate(profile):
    """A `profile` for a loop with Accelerate: batches that only accumulate gradients are no steps."""

    def __init__(self, accelerator: Any, output: Output = None, **options: Unpack[ProfileOptions]) -> None:
        super().__init__(output, **options)
        self._accelerator = accelerator

    def step(self) -> None:
        """Call it at the end of each batch."""
        if getattr(self._accelerator, "sync_gradients", True):
            super().step()

    def _another(self) -> profile:
        return accelerate(self._accelerator, self._output, **self._given)


class _Capture:
    """One recording of a fit, from the first step of training to the last."""

    def __init__(self, output: Output, options: ProfileOptions) -> None:
        super().__init__()
        profile(output, **options)  # a wrong option is told now, not hours later when training begins
        # The framework is asked to stop; the recorder would leave the program by SystemExit.
        self._stop = bool(options.pop("stop_after_capture", False))
        self._output, self._options = output, options
        self._profile: profile | None = None

    @property
    def path(self) -> Any:
        """The Run folder, once training began."""
        return self._profile.path if self._profile else None

    def _begin(self) -> None:
        self._end("training began anew")
        self._profile = profile(self._output, **self._options).__enter__()

    def _step(self) -> bool:
        """Marks a step; says whether training should stop now."""
        if self._profile is None:
            return False
        self._profile.step()
        return self._stop and self._profile.finished

    def _end(self, reason: str) -> None:
        if self._profile is not None:
            self._profile.close(reason)


class _Lightning(_Capture):
    """The hooks of Lightning; all others are the base class's, which do nothing."""

    _global_step = 0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Before the first batch; the sanity check of validation is over."""
        self._global_step = trainer.global_step
        self._begin()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """`global_step` counts steps of the optimizer: it stands still while gradients accumulate."""
        if trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        if self._step():
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """The fit is over."""
        self._end("training ended")

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        """Lightning raises it again after this; Ctrl-C comes here too."""
        self._end(f"the program raised {type(exception).__name__}")

    def teardown(self, trainer: Any, module: Any, stage: str) -> None:
        """Called last, whatever happened."""
        self._end("training ended")


class _HuggingFace(_Capture):
    """The events of transformers' Trainer; all others are the base class's, which do nothing."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Before the first batch."""
        self._begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """After a step of the optimizer; a batch that only accumulates is `on_substep_end`."""
        if self._step():
            control.should_training_stop = True
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The end; where training raises there is no event, and the Run is closed when Python exits."""
        self._end("training ended")


class _NoHooks:
    """Stands in where the framework is not installed: every hook exists and does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_") or name in ("setup", "teardown"):
            return lambda *args, **kwargs: None
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")


def _combined(hooks: type[_Capture], modules: tuple[str, ...], name: str) -> type[Any]:
    """Our hooks on the framework's base class, since frameworks ask for instances of it."""
    base: type[Any] = _NoHooks
    for module in modules:
        try:
            base = getattr(importlib.import_module(module), name)
            break
        except (ImportError, AttributeError):
            continue
    return type("ForetraceCallback", (hooks, base), {"__doc__": hooks.__doc__})
