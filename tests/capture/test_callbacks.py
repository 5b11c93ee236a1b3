"""The callbacks where a framework is missing, and what is told before training begins; test_frameworks.py has the rest."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from foretrace import callbacks
from foretrace.errors import UsageError

FRAMEWORKS = (
    "lightning.pytorch.callbacks",
    "pytorch_lightning.callbacks",
    "transformers.trainer_callback",
    "transformers",
)


@pytest.fixture
def without_frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if none were installed; importing them takes seconds."""
    for name in FRAMEWORKS:
        monkeypatch.setitem(sys.modules, name, None)


@pytest.mark.usefixtures("without_frameworks")
def test_wrong_options_are_told_before_training_begins() -> None:
    misspelt: dict[str, Any] = {"activ": 3}
    for make in (callbacks.lightning, callbacks.hugging_face):
        with pytest.raises(UsageError, match="no option 'activ'"):
            make(**misspelt)


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
    assert getattr(made, "path", "absent") is None


@pytest.mark.usefixtures("without_frameworks")
def test_where_the_framework_is_missing_every_hook_exists_and_nothing_else() -> None:
    made = callbacks.lightning()
    assert made.on_validation_start(SimpleNamespace(), None) is None
    assert made.setup(None, None, "fit") is None
    with pytest.raises(AttributeError):
        getattr(made, "state")  # noqa: B009
