"""Where the shared recordings are; tests that read them skip where they are absent."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("FORETRACE_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))
# Programs, recordings and measured times behind docs/accuracy.md.
ACCURACY = CORPUS.parent / "accuracy"


def unlike(paths: Iterable[Path]) -> list[Path]:
    """Leaves out half of h200, four recordings each of 13 programs: the slow one without stacks and the fixed one with them."""
    return sorted(
        path
        for path in paths
        if path.parent.name != "h200" or (".slow." in path.name) == (".rich." in path.name)
    )


needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"the shared recordings are not at {CORPUS} (set FORETRACE_CORPUS)"
)
needs_accuracy = pytest.mark.skipif(
    not ACCURACY.is_dir(), reason=f"the measured programs are not at {ACCURACY} (set FORETRACE_CORPUS)"
)
