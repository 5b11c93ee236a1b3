"""Small recordings to damage: hand-made ones, and real ones cut to their first steps."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from zstandard import ZstdDecompressor

from tests.ingest.samples import SEEDS

_TREE = Path(__file__).parents[2]
_REAL = (
    "tests/traces/graphs/capture.json.gz", "tests/traces/graphs/reduce_overhead.json.gz",
    "tests/traces/compile/recompile.json.gz", "tests/traces/operators/cold.json.gz",
    "benchmarks/pairs/recordings/*/pageable_gather.slow.lite.json.zst",
    "benchmarks/pairs/recordings/*/candidate_grid.slow.lite.json.zst",
    "benchmarks/pairs/recordings/*/label_maps.slow.lite.json.zst",
    "benchmarks/pairs/recordings/a/layer_item.slow.lite.json.*",
    "benchmarks/pairs/recordings/d/lion_loop.slow.lite.json.*",
)  # fmt: skip
_MOST_EVENTS = 500


def small() -> list[tuple[Any, bytes]]:
    """Each recording as plain data and as text."""
    sys.path.insert(0, str(_TREE / "benchmarks"))
    from many_steps import HEADER, one_kernel, one_of_everything

    found = [json.loads(text) for text in SEEDS]
    for step, steps in ((one_kernel, 4), (one_of_everything, 3)):
        found.append({**HEADER, "traceEvents": [event for number in range(steps) for event in step(number)]})
    for pattern in _REAL:
        found += [_cut(json.loads(_text(path))) for path in sorted(_TREE.glob(pattern))[:1]]
    return [(document, json.dumps(document).encode()) for document in found]


def _text(path: Path) -> bytes:
    packed = path.read_bytes()
    return (
        gzip.decompress(packed)
        if path.suffix == ".gz"
        else ZstdDecompressor().decompressobj().decompress(packed)
    )


def _cut(document: dict[str, Any]) -> dict[str, Any]:
    """The first events by their start, with what names threads."""
    events = [event for event in document["traceEvents"] if event.get("ph") in ("X", "i", "C")]
    named = [event for event in document["traceEvents"] if event.get("ph") == "M"][:40]
    events.sort(key=lambda event: float(event.get("ts", 0)))
    return {**document, "traceEvents": named + events[:_MOST_EVENTS]}
