"""small-batch: kernels that leave most multiprocessors empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.rules.device.small_batch import small_batch
from foretrace.errors import MissingDataError
from tests.diagnose.loops import findings, launches, loop


def test_kernels_of_a_few_blocks(tmp_path: Path) -> None:
    trace = loop(
        tmp_path, 1_000, lambda recording, at: launches(recording, at, 100, **{"blocks per SM": 0.25})
    )
    (found,) = findings(small_batch, trace)
    assert found.evidence["filled_pct"] == pytest.approx(25)
    assert found.evidence["small_pct"] == pytest.approx(100)
    assert found.predicted is None  # a larger batch is other work


def test_full_kernels_are_no_finding(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(small_batch, trace) == []


def test_without_grids_it_cannot_look(tmp_path: Path) -> None:
    trace = loop(
        tmp_path,
        1_000,
        lambda recording, at: recording.launch(at, "kernel", at + 5, at + 100) and None,
    )
    with pytest.raises(MissingDataError, match="grids"):
        list(small_batch(Case(trace)))
