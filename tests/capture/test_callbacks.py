"""The callbacks, driven by fakes of the frameworks: none of these is installed where the tests run.

The fakes call hooks in the order, with the arguments and under the conditions of Lightning 2.5's fit loop and
transformers 4.50's Trainer and CallbackHandler; they train a real model, recorded by the real Recorder.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretrace import callbacks
from foretrace.capture.run_folder import RunFolder
from foretrace.errors import UsageError
from tests.capture.programs import SHORT, TRAINING, needs_torch, python

# Calls every hook that a Trainer has, by name, on each callback: one that is missing would be an error.
LIGHTNING = """
class Trainer:
    def __init__(self, callbacks, accumulate=1):
        self.callbacks, self.accumulate, self.global_step, self.should_stop = callbacks, accumulate, 0, False
    def call(self, hook, *args):
        for each in self.callbacks:
            getattr(each, hook)(self, model, *args)
    def fit(self, batches, fails_at=None):
        self.call("setup", "fit")
        self.call("on_fit_start")
        try:
            self.call("on_sanity_check_start")
            self.call("on_train_start")
            for number in range(batches):
                self.call("on_train_batch_start", None, number)
                if number == fails_at:
                    raise ValueError("mine")
                train()
                if (number + 1) % self.accumulate == 0:
                    self.global_step += 1
                self.call("on_train_batch_end", None, None, number)
                if self.should_stop:
                    break
            self.call("on_train_end")
        except BaseException as error:
            self.call("on_exception", error)
            self.call("teardown", "fit")
            raise
        self.call("on_fit_end")
        self.call("teardown", "fit")
        return number + 1
"""
HUGGING_FACE = """
from types import SimpleNamespace
class Trainer:
    def __init__(self, callbacks, accumulate=1):
        self.callbacks, self.accumulate = callbacks, accumulate
    def event(self, name):
        for each in self.callbacks:
            result = getattr(each, name)(None, self.state, self.control, model=model, optimizer=optimizer)
            if result is not None:
                self.control = result
    def train(self, batches):
        self.state, self.control = SimpleNamespace(global_step=0), SimpleNamespace(should_training_stop=False)
        self.event("on_train_begin")
        self.event("on_epoch_begin")
        for number in range(batches):
            if number % self.accumulate == 0:
                self.event("on_step_begin")
            train()
            if (number + 1) % self.accumulate == 0:
                self.state.global_step += 1
                self.event("on_step_end")
            else:
                self.event("on_substep_end")
            if self.control.should_training_stop:
                break
        self.event("on_epoch_end")
        self.event("on_train_end")
        return number + 1
"""


def complete_run(path: Path) -> Any:
    run = RunFolder.read(path)
    assert run.problems == ()
    assert run.ranks[0].facts["step_source"] == "foretrace.step()"
    return run.ranks[0].facts


@needs_torch
def test_lightning_counts_steps_of_the_optimizer_and_stops_when_asked(tmp_path: Path) -> None:
    code = f"""{TRAINING}{LIGHTNING}
callback = foretrace.callbacks.lightning("run", {SHORT}, passes="light", stop_after_capture=True)
print(Trainer([callback], accumulate=3).fit(60), callback.path.name)
"""
    done = python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    facts = complete_run(tmp_path / "run")
    # Boundaries of: start, two to wait, one to warm, two recorded; three batches each.
    assert done.stdout == "18 run\n"
    assert facts["steps_seen"] == 5


@needs_torch
def test_lightning_keeps_the_exception(tmp_path: Path) -> None:
    code = f"""{TRAINING}{LIGHTNING}
Trainer([foretrace.callbacks.lightning("run", {SHORT})]).fit(60, fails_at=5)
"""
    done = python(tmp_path, code)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    run = RunFolder.read(tmp_path / "run")
    assert run.facts["ended_at"] is not None
    assert "ValueError" in run.ranks[0].facts["reason"]


@needs_torch
def test_hugging_face(tmp_path: Path) -> None:
    code = f"""{TRAINING}{HUGGING_FACE}
callback = foretrace.callbacks.hugging_face("run", {SHORT}, passes="light", stop_after_capture=True)
print(Trainer([callback], accumulate=2).train(60))
print(Trainer([foretrace.callbacks.hugging_face("again", {SHORT}, passes="light")]).train(20))
"""
    done = python(tmp_path, code)
    assert (done.returncode, done.stdout) == (0, "12\n20\n"), done.stderr
    assert complete_run(tmp_path / "run")["steps_seen"] == 5
    complete_run(tmp_path / "again")


@needs_torch
def test_accelerate(tmp_path: Path) -> None:
    code = f"""{TRAINING}
from types import SimpleNamespace
accelerator = SimpleNamespace(sync_gradients=False)
with foretrace.callbacks.accelerate(accelerator, "run", {SHORT}, passes="light") as p:
    for number in range(24):
        accelerator.sync_gradients = number % 2 == 1
        train()
        p.step()
    assert p.finished
"""
    done = python(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert RunFolder.read(tmp_path / "run").problems == ()


def test_wrong_options_are_told_before_training_begins() -> None:
    for make in (callbacks.lightning, callbacks.hugging_face):
        with pytest.raises(UsageError, match="no option 'activ'"):
            make(activ=3)


@pytest.mark.parametrize(
    ("module", "base", "make"),
    [
        ("lightning.pytorch.callbacks", "Callback", callbacks.lightning),
        ("transformers.trainer_callback", "TrainerCallback", callbacks.hugging_face),
    ],
)
def test_a_framework_that_is_there_gets_an_instance_of_its_own_class(
    monkeypatch: pytest.MonkeyPatch, module: str, base: str, make: Any
) -> None:
    class Base:
        state_key = "theirs"

    parts = module.split(".")
    for size in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:size]), ModuleType(".".join(parts[:size])))
    monkeypatch.setattr(sys.modules[module], base, Base, raising=False)
    made = make()
    assert isinstance(made, Base)
    assert made.state_key == "theirs"
    assert made.path is None


def test_where_the_framework_is_missing_every_hook_exists_and_nothing_else() -> None:
    made = callbacks.lightning()
    assert made.on_validation_start(SimpleNamespace(), None) is None
    assert made.setup(None, None, "fit") is None
    with pytest.raises(AttributeError):
        getattr(made, "state")  # noqa: B009
