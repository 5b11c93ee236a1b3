"""Names of a program's classes, functions and modules stay; tokens do not, wherever they stand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from foretrace.capture.program_names import named_in_program
from foretrace.capture.run_folder import RunFolder, script_name
from foretrace.capture.secret_shapes import secrets_among

LONG_NAMES = (
    "UNet2DConditionModel",
    "Qwen3OmniMoeThinkerForConditionalGeneration",
    "AutoencoderKLTemporalDecoder2D3D4x",
    "sk_LearnPipeline2DModel",  # begins as some tokens do
    "T5EncoderModelWithProjection4bit8bitQ4K",
)
TOKEN = "hf_" + "abcdefghijABCDEFGHIJ1234567890abcd"
RANDOM = "q7Rz0Xv4Lk9Tn2Bw8Ye5Hd1Cm3"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of the program that defines classes with such names."""
    module = ModuleType("a_program")
    for name in LONG_NAMES:
        setattr(module, name, type(name, (), {"forward": lambda self: None}))
    monkeypatch.setitem(sys.modules, "a_program", module)
    return module


@pytest.mark.parametrize("name", LONG_NAMES)
def test_where_a_step_ends_is_told_by_the_names_of_the_program(tmp_path: Path, name: str) -> None:
    folder = RunFolder(tmp_path / "run").create()
    source = f"calls of the outermost module {name}"
    folder.write_rank(0, {"step_source": source, "reason": f"401 for {TOKEN}", "note": RANDOM})
    folder.write_run({"options": {"step_function": f"a_program:{name}.forward", "trigger": RANDOM}})
    rank = json.loads((folder.path / "rank0" / "rank.json").read_text())
    assert (rank["step_source"], rank["reason"], rank["note"]) == (source, "401 for <left out>", "<left out>")
    options = json.loads((folder.path / "run.json").read_text())["options"]
    assert options == {"step_function": f"a_program:{name}.forward", "trigger": "<left out>"}
    assert script_name(["python", f"examples/{name}Train2D.py"]) == (
        f"{name}Train2D" if not name.startswith("sk_") else "left-out"
    )


@pytest.mark.parametrize("name", LONG_NAMES)
def test_a_class_named_on_the_command_line_stays_in_recordings(program: ModuleType, name: str) -> None:
    environ = {"MODEL_CLASS": name, "NOTE": TOKEN, "OTHER": RANDOM}
    arguments = ["train.py", "--model", name, f"--target=a_program.{name}", "--hub", TOKEN, RANDOM]
    assert set(secrets_among(environ, arguments)) == {TOKEN, RANDOM}


def test_a_secret_is_none_the_less_for_being_named_after_a_class(program: ModuleType) -> None:
    assert secrets_among({"API_TOKEN": LONG_NAMES[0]}) == [LONG_NAMES[0]], "its variable promises a secret"


def test_names_are_looked_up_and_not_guessed(program: ModuleType) -> None:
    known = {"a_program", "json.decoder", "a_program.UNet2DConditionModel.forward", "JSONDecoder"}
    unknown = {"a_program.Missing", "UNet2DConditionModel.backward", RANDOM, "json decoder", "1", ""}
    assert named_in_program(known | unknown) == known


def test_looking_for_a_name_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    lazy = ModuleType("a_lazy_package")

    def found(name: str) -> object:
        raise AssertionError(f"asked for {name}")

    setattr(lazy, "__getattr__", found)  # noqa: B010
    monkeypatch.setitem(sys.modules, "a_lazy_package", lazy)
    assert named_in_program(["a_lazy_package.UNet2DConditionModel"]) == set()
