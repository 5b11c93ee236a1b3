"""A bounded run of the fuzzer; `python tests/ingest/fuzz.py` runs more."""

from __future__ import annotations

import os

import pytest

from tests.ingest import fuzz, samples
from tests.ingest.comparison import needs_native

pytestmark = pytest.mark.slow
CASES = int(os.environ.get("FORETRACE_FUZZ_CASES", "1000"))


@needs_native
def test_both_readers_agree_on_damaged_recordings() -> None:
    assert fuzz.run(list(samples.SEEDS), CASES, seed=1) == []
