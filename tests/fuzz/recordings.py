"""Small recordings to damage: hand-made ones, and real ones cut to their first steps."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from foretrace import zstd
from tests.ingest.samples import SEEDS

_TREE = Path(__file__).parents[2]
_REAL = (
    "tests/traces/graphs/capture.json.gz", "tests/traces/graphs/reduce_overhead.json.gz",
    "tests/traces/compile/recompile.json.gz", "tests/traces/operators/cold.json.gz",
    "tests/accuracy/j/coil_scans.slow.lite.json.zst", "tests/accuracy/j/card_payments.slow.lite.json.zst",
    "tests/accuracy/j/prompt_store.slow.lite.json.zst", "docs/tutorials/recordings/slow_model.json.zst",
    "docs/tutorials/recordings/loader_serial.json.zst",
)  # fmt: skip
_MOST_EVENTS = 500


def small() -> list[tuple[Any, bytes]]:
    """Each recording as plain data and as text."""
    sys.path.insert(0, str(_TREE / "benchmarks"))
    from many_steps import HEADER, one_kernel, one_of_everything

    found = [json.loads(text) for text in SEEDS]
    for step, steps in ((one_kernel, 4), (one_of_everything, 3)):
        found.append({**HEADER, "traceEvents": [event for number in range(steps) for event in step(number)]})
    found += [_cut(json.loads(_text(_TREE / path))) for path in _REAL]
    return [(document, json.dumps(document).encode()) for document in found]


def _text(path: Path) -> bytes:
    packed = path.read_bytes()
    return gzip.decompress(packed) if path.suffix == ".gz" else zstd.decompress(packed)


def _cut(document: dict[str, Any]) -> dict[str, Any]:
    """The first events by their start, with what names threads."""
    events = [event for event in document["traceEvents"] if event.get("ph") in ("X", "i", "C")]
    named = [event for event in document["traceEvents"] if event.get("ph") == "M"][:40]
    events.sort(key=lambda event: float(event.get("ts", 0)))
    return {**document, "traceEvents": named + events[:_MOST_EVENTS]}
