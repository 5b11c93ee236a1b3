"""`foretrace predict`: short forms of what the diagnosis proposes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretrace.commands import main
from tests.diagnose.kernels import ADD, HOST_US, Op, device_bound

GEMM = "nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
SMALL = 1 << 16


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Steps that follow the host: 30 small operators and a product."""
    ops = [Op("aten::relu", ADD, 5, [[SMALL]], ["float"]) for _ in range(30)]
    product = Op("aten::mm", GEMM, 5, [[256, 256], [256, 256]], ["float", "float"])
    device_bound(tmp_path, [*ops, product])
    return tmp_path / "trace.json"


def predicted(capsys: pytest.CaptureFixture[str], path: Path, change: str) -> dict[str, Any]:
    step_ms = str(31 * HOST_US / 1e3)
    arguments = ["predict", str(path), "--no-cache", "--step-ms", step_ms, "--format", "json", "--change"]
    assert main([*arguments, change]) == 0
    printed: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert printed.pop("changes") == [change]
    return printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("short", "label"),
    [
        ("compile", "default"),
        ("compile reduce-overhead", "reduce-overhead"),
        ("compile  whole-step ", "whole-step"),
    ],
)
def test_compile_is_a_fix_of_the_rule(
    recording: Path, capsys: pytest.CaptureFixture[str], short: str, label: str
) -> None:
    whole = predicted(capsys, recording, f"fix unfused-elementwise:{label}")
    assert predicted(capsys, recording, short) == whole
    assert whole["speedup"]["point"] > 2


@pytest.mark.slow
def test_a_level_that_is_not_there_is_a_usage_error(
    recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(recording), "--no-cache", "--change", "compile max-autotune"]) == 2
    assert "default, " in capsys.readouterr().err


def test_help_names_the_short_form(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--help"]) == 0
    assert "compile reduce-overhead" in capsys.readouterr().out
