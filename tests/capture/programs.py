"""Programs to record, run in processes of their own; and what they leave behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.capture.warm_torch import FORKS, warm_torch

SOURCES = Path(find_spec("foretrace").origin or "").parents[1]  # type: ignore[union-attr]
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="torch is not installed: pip install torch==2.13.0"
)
# A model, its optimizer, and one step of training; prints nothing.
TRAINING = """
import sys
import torch
import foretrace
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    loss = model(torch.ones(8, 32)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss.detach())
"""
SHORT = "wait=2, warmup=1, active=2"


def python(
    folder: Path,
    code: str,
    *arguments: str,
    environ: Mapping[str, str] | None = None,
    modules: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a folder, in a process of its own, for which these modules may be imported already."""
    script = folder / "program.py"
    script.write_text(code, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **(environ or {})}
    if FORKS:
        return warm_torch(*modules).run(script, *arguments, environment=environment)
    return subprocess.run(
        [sys.executable, "-W", "error", str(script), *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        env=environment,
        timeout=300,
        check=False,
    )
