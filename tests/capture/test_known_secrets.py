"""The secrets that a process knows of, and what is written of them outside of recordings."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shlex
import sys
import urllib.parse
from pathlib import Path

import pytest

from foretrace.bench.benchmark import Benchmark
from foretrace.capture import known_secrets
from foretrace.capture.masking import keep_log, mask_in_file
from foretrace.capture.trial_options import TrialOptions
from foretrace.commands import bench
from foretrace.trial import process
from foretrace.trial.sweep import shown
from tests.capture.planted import ISSUED, PEM

PASSWORD = 'sw0rd"fish/über\\12'


@pytest.fixture
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", PASSWORD)


@pytest.mark.usefixtures("_password")
@pytest.mark.parametrize(
    "spelled",
    [
        PASSWORD,
        json.dumps(PASSWORD)[1:-1],
        json.dumps(PASSWORD, ensure_ascii=False)[1:-1],
        PASSWORD.replace("/", "\\/"),
        repr(PASSWORD)[1:-1],
        urllib.parse.quote(PASSWORD),
        urllib.parse.quote_plus(PASSWORD),
        re.sub("%..", lambda escape: escape[0].lower(), urllib.parse.quote(PASSWORD, safe="")),
    ],
    ids=str,
)
def test_a_secret_is_found_in_every_spelling(spelled: str) -> None:
    assert known_secrets.without_values([f"a {spelled} b"]) == ["a <left out> b"]


@pytest.mark.usefixtures("_password")
@pytest.mark.parametrize("user", ["", "u", "us", "use"])
def test_a_secret_is_found_in_base64_behind_anything(user: str) -> None:
    """At most the characters that it shares with its neighbours stay: 8 bits at either end."""
    encoded = base64.b64encode(f"{user}{PASSWORD}:".encode()).decode()
    left = known_secrets.without_values(encoded)
    assert "<left out>" in left
    assert len(left.replace("<left out>", "")) <= len(user) * 4 / 3 + 6


def test_a_secret_stays_known_when_its_variable_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "Zx9swordfish99")
    known_secrets.values()
    monkeypatch.delenv("DB_PASSWORD")
    assert known_secrets.without_values({"Zx9swordfish99": ("x Zx9swordfish99", 5)}) == {
        "<left out>": ["x <left out>", 5]
    }


def test_a_recording_as_kineto_writes_it_holds_no_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kineto has no escapes: it makes a slash of a backslash and an apostrophe of a quote, and drops line breaks."""
    monkeypatch.setenv("API_KEY", 'first"half\\second\nhalf')
    path = tmp_path / "light.json"
    path.write_text(json.dumps({"name": "region first'half/secondhalf."}))
    assert mask_in_file(path, known_secrets.values()) == 1
    assert json.loads(path.read_text()) == {"name": f"region {'*' * 21}."}


def test_a_log_holds_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_KEY", PEM)
    printed = [f"push {ISSUED['github']}", "step 1", *PEM.split("\n"), "caf\u00e9 \udcff", "end"]
    log = tmp_path / "log"
    keep_log(io.BytesIO("\n".join(printed).encode(errors="surrogateescape")), log)
    lines = log.read_bytes().decode(errors="surrogateescape").splitlines()
    assert lines[:2] == ["push <left out>", "step 1"]
    assert lines[-2:] == ["caf\u00e9 \udcff", "end"]
    assert [
        line for line in PEM.split("\n") if len(line) > 16 and line in log.read_text(errors="replace")
    ] == []


@pytest.mark.usefixtures("_password")
def test_what_a_tried_program_prints_is_masked(tmp_path: Path) -> None:
    code = (
        "import os, sys; print('x', os.environ['DB_PASSWORD']); raise ValueError(os.environ['DB_PASSWORD'])"
    )
    options = TrialOptions(output=str(tmp_path / "1.json"))
    log = tmp_path / "1.log"
    command = [sys.executable, "-S", "-c", code]
    outcome = process.run(
        command, options, log=log, folder=tmp_path, environment={}, limits=process.Limits(60)
    )
    assert outcome["error"] == "ValueError: <left out>"
    assert log.read_text().startswith("x <left out>\n")
    assert sorted(os.listdir(tmp_path)) == ["1.log"]


@pytest.mark.usefixtures("_password")
def test_a_command_line_is_shown_without_secrets() -> None:
    command = ["/usr/bin/python", "train.py", "--api-key", "x1", f"db={PASSWORD}", "--lr", "0.1"]
    assert shlex.join(shown(command)) == "python train.py --api-key '<left out>' 'db=<left out>' --lr 0.1"


@pytest.mark.usefixtures("_password")
def test_a_benchmark_says_why_it_failed_without_secrets() -> None:
    row = {"status": "ERROR", "reason": f"OSError: no login with {PASSWORD} {ISSUED['github']}", "ms": 1.5}
    made = Benchmark(
        "functions", "CPU", "2.13", ("size",), (row,), (f"note {PASSWORD}",), command="foretrace bench x"
    )
    cleaned = bench._without_secrets(made)
    assert cleaned.rows == (
        {"status": "ERROR", "reason": "OSError: no login with <left out> <left out>", "ms": 1.5},
    )
    assert (cleaned.notes, cleaned.command) == (("note <left out>",), "foretrace bench x")
