"""Mutated recordings through both scanners: neither may crash or hang, and both must read the same.

    python tests/ingest/fuzz.py --cases 50000 --seed 1

Prints the number of cases and of differences; exits with 1 if there was any. CI runs fewer, in test_fuzz.py.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from foretrace.errors import FormatError
from foretrace.ingest import kineto_native, kineto_python
from foretrace.ingest.columns import ARG_TEXT, GROUPS, NULL_U32, Columns

NAME_CODES = {("spans", "name"), ("stacks", "name"), ("modules", "name"), ("counters", "name"), ("labels", "name"),
              ("instants", "name"), ("windows", "name")}  # fmt: skip
TEXT_CODES = {("ops", "shapes"), ("ops", "dtypes"), ("ops", "strides"), ("ops", "inputs"), ("ops", "call_stack"),
              ("counters", "key"), ("labels", "text"), ("args", "key")}  # fmt: skip
# Pieces that have broken readers before, ours or others'.
PIECES = (
    b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"NaN", b"-inf", b"N/A", b"1e999", b"-", b"\x00",
    b"\xff", b"\xed\xa0\x80", b"\\u12", b"\\ud800", b"\\x", b"\n", b"18446744073709551616", b"-1", b"0.5", b"1e3",
    b'"ph": "X"', b'{"ph": "X", "ts": 1, "dur": 2}', b'"args": {}', b"}},", b"]}", b'"traceEvents": [', b"true",
    b'"ts": "12.5"', b'"dur": -3', b'"dur": 1e18', b'"correlation": 0', b"[[[[[[[[", b"\xef\xbb\xbf", b"007",
)  # fmt: skip


def mutate(data: bytes, random: random.Random) -> bytes:
    """A damaged copy: one to four bytes, pieces or ranges changed."""
    text = bytearray(data)
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        choice = random.randrange(7)
        if choice == 0 and at < len(text):
            text[at] = random.randrange(256)
        elif choice == 1:
            text[at:at] = random.choice(PIECES)
        elif choice == 2:
            del text[at : at + random.choice((1, 2, 8, 64, 400))]
        elif choice == 3:
            end = min(len(text), at + random.choice((4, 40, 400)))
            text[at:at] = text[at:end]
        elif choice == 4:
            del text[at:]
        elif choice == 5:
            piece = random.choice(PIECES)
            text[at : at + len(piece)] = piece
        else:
            source = random.randrange(len(text) + 1)
            text[at:at] = text[source : source + random.choice((16, 200))]
        if not text:
            text += b" "
    return bytes(text)


def native(data: bytes, random: random.Random) -> Columns | None:
    """What the extension reads from pieces of any size; None if it says that this is no trace."""
    from foretrace._scan import Scanner

    scanner = Scanner()
    at = 0
    while at < len(data):
        size = random.choice((1, 7, 100, 5000, 1 << 20))
        scanner.push(data[at : at + size])
        at += size
    try:
        return kineto_native.linked(scanner)
    except FormatError:
        return None


def python(data: bytes) -> Columns | None:
    """What the Python scanner reads."""
    try:
        return kineto_python.scan([data])
    except FormatError:
        return None


def plain(columns: Columns) -> dict[str, Any]:
    """Everything that was read, with text instead of codes, ready to compare."""
    result: dict[str, Any] = {}
    for group, names in GROUPS.items():
        for name in names:
            values = columns.groups[group][name]
            if (group, name) in NAME_CODES | TEXT_CODES:
                texts = columns.names if (group, name) in NAME_CODES else columns.texts
                result[f"{group}.{name}"] = [None if code == NULL_U32 else texts[code] for code in values]
            elif (group, name) == ("args", "value"):
                kinds = columns.groups["args"]["type"]
                result["args.value"] = [
                    columns.texts[value] if kind == ARG_TEXT else int(value)
                    for kind, value in zip(kinds, values, strict=True)
                ]
            else:
                result[f"{group}.{name}"] = [str(value) for value in values]
    counts = {key: value for key, value in columns.counts.items() if value}
    return result | {"lanes": columns.lanes, "header": columns.header, "origin": columns.origin_ns,
                     "counts": counts, "repairs": columns.repairs, "processes": columns.processes}  # fmt: skip


def differences(data: bytes, random: random.Random) -> list[str]:
    """What the two scanners read differently."""
    ours, reference = native(data, random), python(data)
    if ours is None or reference is None:
        return [] if ours is reference else [f"native {ours and 'read'}, python {reference and 'read'}"]
    a, b = plain(ours), plain(reference)
    return [f"{key}: {str(a[key])[:200]} != {str(b[key])[:200]}" for key in a if a[key] != b[key]]


def run(seeds: list[bytes], cases: int, seed: int, *, keep: Path | None = None) -> list[str]:
    """The differences over that many mutated inputs."""
    found = []
    for case in range(cases):
        generator = random.Random(seed * 1_000_003 + case)
        data = mutate(generator.choice(seeds), generator)
        if different := differences(data, generator):
            found.append(f"case {case}: {different[0]}")
            if keep:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"case{case}.json").write_bytes(data)
    return found


def main() -> int:
    """Runs the cases of the command line."""
    from tests.ingest.samples import SEEDS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the inputs that differ")
    options = parser.parse_args()
    np.seterr(all="raise")
    began = time.perf_counter()
    found = run(list(SEEDS), options.cases, options.seed, keep=options.keep)
    took = time.perf_counter() - began
    print("\n".join(found[:50]))
    print(f"{options.cases} cases, {len(found)} differences, {took:.0f} s")
    return 1 if found else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
