"""What a Run says of the processor, and what commands read of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretrace.capture import processor
from foretrace.ingest.processor import read_processor

CPUINFO = """processor\t: 0
model name\t: AMD EPYC 9004
flags\t\t: fpu sse2 avx2 avx512f avx512_bf16 amx_tile

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


def test_the_processor_is_described_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    monkeypatch.setattr(processor, "_CPUINFO", str(tmp_path / "cpuinfo"))
    facts = json.loads(json.dumps(processor.describe()))
    assert facts["model"] == "AMD EPYC 9004"
    assert facts["flags"] == ["amx_tile", "avx2", "avx512_bf16", "avx512f"]
    assert facts["usable_cpu_count"] >= 1


def test_a_machine_that_tells_nothing_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "_CPUINFO", str(tmp_path / "absent"))
    assert processor.describe()["flags"] is None
    found = read_processor({"flags": None, "torch_threads_count": None}, None)
    assert found is not None
    assert (found.bf16, found.threads, found.cores) == (None, None, None)
    assert read_processor(None, 4.0) is None


@pytest.mark.parametrize(
    ("flags", "bf16"),
    [(["avx512_bf16"], "avx512_bf16"), (["avx512_bf16", "amx_bf16"], "amx_bf16"), (["avx512f"], None)],
)
def test_bf16_is_what_the_flags_say(flags: list[str], bf16: str | None) -> None:
    found = read_processor({"flags": flags, "usable_cpu_count": 8, "torch_threads_count": 16}, 2.5)
    assert found is not None
    assert (found.bf16, found.cores, found.threads) == (bf16, 2.5, 16), (
        "a quota counts, not the affinity alone"
    )
