"""Where the shared recordings are; tests that read them skip where they are absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CORPUS = Path(os.environ.get("FORETRACE_CORPUS", Path(__file__).parents[2] / "shared" / "corpus"))

needs_corpus = pytest.mark.skipif(
    not CORPUS.is_dir(), reason=f"the shared recordings are not at {CORPUS} (set FORETRACE_CORPUS)"
)
