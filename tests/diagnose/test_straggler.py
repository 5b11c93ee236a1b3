"""straggler: one recording cannot tell which rank is late."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrace.diagnose.case import Case
from foretrace.diagnose.straggler import straggler
from foretrace.errors import MissingDataError
from tests.diagnose.loops import findings, launches, loop


def test_one_of_several_ranks_is_not_enough(tmp_path: Path) -> None:
    trace = loop(
        tmp_path,
        1_000,
        lambda recording, at: launches(recording, at, 100),
        distributedInfo={"backend": "nccl", "rank": 0, "world_size": 4},
    )
    with pytest.raises(MissingDataError, match="recordings of all ranks"):
        list(straggler(Case(trace)))


def test_a_program_on_its_own_waits_for_nobody(tmp_path: Path) -> None:
    trace = loop(tmp_path, 1_000, lambda recording, at: launches(recording, at, 100))
    assert findings(straggler, trace) == []
