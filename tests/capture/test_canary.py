"""The canary: programs with secrets of their own are recorded, ended in every way, and all that was written is searched.

`python benchmarks/secrets/canary.py --runs 200` does the same for all scenarios.
"""

from __future__ import annotations

import base64
import gzip
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from benchmarks.secrets.canary import Canary, Run, leaks
from foretrace import zstd
from tests.capture.programs import needs_torch

CANARY = Canary.hatch()
LEAKING = f"region {CANARY.password}".encode()


def arrow(text: bytes) -> bytes:
    """A table of the cache."""
    file = io.BytesIO()
    pl.DataFrame({"name": [text.decode()] * 100}).write_ipc(file, compression="zstd")
    return file.getvalue()


CONTAINERS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": lambda text: text,
    "in UTF-16": lambda text: text.decode().encode("utf-16-le"),
    "in a pickle": lambda text: pickle.dumps({"frames": [text.decode()]}),
    "in base64, behind a user": lambda text: base64.b64encode(b"user:" + text),
    "in gzip": gzip.compress,
    "in zstd": zstd.compress,
    "in Arrow": arrow,
    "in Arrow, in zstd, behind a header": lambda text: zstd.compress(b"header" + arrow(text)),
    "in a report": lambda text: (
        b"<script>" + base64.b64encode(gzip.compress(text + os.urandom(99))) + b"</script>"
    ),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_search_finds_a_secret(container: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTAINERS[container](LEAKING))
    assert leaks(tmp_path, CANARY) == ["password in file"]
    (tmp_path / "file").write_bytes(CONTAINERS[container](b"region"))
    assert leaks(tmp_path, CANARY) == []


def test_the_search_looks_at_names_and_links(tmp_path: Path) -> None:
    (tmp_path / CANARY.token).mkdir()
    (tmp_path / "link").symlink_to(f"/data/{CANARY.path}")
    assert sorted(leaks(tmp_path, CANARY)) == ["path in link", f"token in {CANARY.token}"]


@needs_torch
@pytest.mark.parametrize("scenario", ["settles", "SIGKILL at 11", "fork"])
def test_no_secret_reaches_a_file(scenario: str, tmp_path: Path) -> None:
    """In the environment, arguments, addresses, names of regions and functions, and exceptions."""
    outcome = Run(scenario, tmp_path).go()
    assert (outcome.problem, outcome.leaking) == ("", [])
    if scenario != "SIGKILL at 11":
        assert outcome.recordings == 2, "there was something to leak"
