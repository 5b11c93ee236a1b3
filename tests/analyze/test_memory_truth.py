"""Predicted memory beside what the same program takes when it is run that way: checkpointed, or with another batch."""

from __future__ import annotations

import pytest

from foretrace.analyze import run
from foretrace.analyze.concepts.memory import batch_bytes, memory_replay
from tests.analyze.cpu_memory import KINDS, recorded

pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
pytestmark = pytest.mark.slow
BLOCKS = {"encoder": "TransformerEncoderLayer", "mlp": "Mlp", "convolutions": "Convolutions"}


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_with_blocks_checkpointed(kind: str) -> None:
    values = run(recorded(kind), "saved-activations").values
    assert (values["checkpoint"], values["modules_count"]) == (BLOCKS[kind], 6)
    measured = memory_replay.find(recorded(kind, checkpointed=True)).peak_bytes
    assert values["peak_after_bytes"] == pytest.approx(measured, rel=0.15)
    before = values["peak_bytes"]
    assert isinstance(before, int)
    assert values["freed_bytes"] == pytest.approx(before - measured, rel=0.15)


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_of_another_batch(kind: str) -> None:
    """From two batches alone: of one recording the third's peak follows, as it does from the other."""
    measured = memory_replay.find(recorded(kind, batch=24)).peak_bytes
    for batch in (8, 16):
        trace = recorded(kind, batch=batch)
        predicted = memory_replay.find(trace).peak_with([batch_bytes.grown(trace, 24 / batch)])
        assert predicted == pytest.approx(measured, rel=0.05)
