"""What tests of recording share: a Run folder, and a made-up GPU's allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.capture import known_secrets
from foretrace.capture.run_folder import RunFolder
from tests.capture.made_up_cuda import MadeUpCuda


@pytest.fixture(autouse=True)
def _secrets_of_this_test_alone() -> None:
    """A process never forgets a secret; tests share one."""
    known_secrets.forget()


@pytest.fixture
def new_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """The folder of a Run that nobody has written into."""
    monkeypatch.setattr("foretrace.capture.environment.describe_process", dict)
    return RunFolder(tmp_path / "run").create()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> MadeUpCuda:
    """torch's CUDA allocator, made up for this test."""
    monkeypatch.setattr("foretrace.capture.out_of_memory._attached", False)
    monkeypatch.setattr("foretrace.capture.out_of_memory._watching", [])
    return MadeUpCuda(lambda owner, name, value: monkeypatch.setattr(owner, name, value, raising=False))
