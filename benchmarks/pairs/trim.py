"""Trims recordings to what Foretrace reads, and packs them as they are kept here.

    python benchmarks/pairs/trim.py FILE ...

NAME.json.gz or NAME.json.zst becomes NAME.json.zst without flows (the arrows that viewers draw between events),
without the arguments that no table keeps, and without `External id` where every link is found without it. All tables
and all metadata but the sizes must be equal before and after; a file for which they are not stays as it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from polars.testing import assert_frame_equal
from zstandard import ZstdCompressionParameters, ZstdCompressor, ZstdDecompressor

import foretrace
from foretrace.ingest.kineto_python import DROPPED
from foretrace.schema import TABLES

FLOW_PHASES = ("s", "t", "f")
EXTERNAL_ID = "External id"
SIZES = ("events", "flows", "file_bytes", "compression")
LEVEL = 19
SEARCH_LOG = 4  # as small as with the level's own 7, at a twentieth of the time: 5 s for the largest


def read(path: Path) -> dict[str, Any]:
    """The recording as JSON."""
    packed = path.read_bytes()
    if path.suffix == ".zst":
        return json.loads(ZstdDecompressor().decompressobj().decompress(packed))
    return json.loads(gzip.decompress(packed))


def trimmed(recording: dict[str, Any], dropped: Iterable[str]) -> dict[str, Any]:
    """The recording without flows and without these arguments."""
    events = []
    for event in recording["traceEvents"]:
        if event.get("ph") in FLOW_PHASES:
            continue
        args = {key: value for key, value in event.get("args", {}).items() if key not in dropped}
        events.append({**event, "args": args} if args else {k: v for k, v in event.items() if k != "args"})
    return {**recording, "traceEvents": events}


def difference(before: Path, after: Path) -> str | None:
    """What Foretrace reads otherwise from the second file; None where it reads the same."""
    one, other = (foretrace.open(path, cache=False) for path in (before, after))
    for key in sorted({*one.meta, *other.meta} - set(SIZES)):
        if one.meta.get(key) != other.meta.get(key):
            return f"metadata {key}"
    if one.repairs != other.repairs:
        return "repairs"
    for table in TABLES:
        try:
            assert_frame_equal(
                one.table(table), other.table(table), check_exact=True, categorical_as_str=True
            )
        except AssertionError as error:
            return f"table {table}: {error}"
    return None


def pack(text: bytes) -> bytes:
    """The text as one zstd frame."""
    parameters = ZstdCompressionParameters.from_level(LEVEL, source_size=len(text), search_log=SEARCH_LOG)
    return ZstdCompressor(compression_params=parameters).compress(text)


def trim(path: Path) -> Path:
    """The packed file that took the place of this one, or `path` where trimming would change what is read."""
    recording = read(path)
    packed = path.with_suffix(".zst")
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / path.with_suffix("").name
        for dropped in ({*DROPPED, EXTERNAL_ID}, DROPPED):
            text = json.dumps(trimmed(recording, dropped), separators=(",", ":"))
            plain.write_text(text)
            differs = difference(path, plain)
            if differs is None:
                break
        else:
            print(f"{path}: left as it is, {differs}", file=sys.stderr)
            return path
    before = path.stat().st_size
    path.unlink()
    packed.write_bytes(pack(text.encode()))
    links = "" if EXTERNAL_ID in dropped else f", with {EXTERNAL_ID}"
    print(f"{packed}: {before} -> {packed.stat().st_size} bytes{links}", flush=True)
    return packed


def main() -> int:
    """Trims each file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path)
    for path in parser.parse_args().files:
        trim(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
