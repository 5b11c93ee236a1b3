"""What was predicted of memory from one recording, beside what was measured on an H200."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus import ACCURACY, needs_accuracy

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
@needs_accuracy
def test_savings_and_batches_are_those_measured() -> None:
    """Checkpointing's saving within 15 %, the largest batch within 5 %, of two models; the script has the bars."""
    command = [
        sys.executable,
        "benchmarks/memory_predictions.py",
        "--judge",
        str(ACCURACY / "memory/predictions"),
    ]
    judged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr
    assert judged.stdout.count("freed by checkpointing") == judged.stdout.count("largest batch") == 2
