"""Named baselines: what a comparison asks of a recording, in a small JSON file that can be kept in git.

The file holds times, parts, counts, values, and the device, processor and versions; no paths, no machine's name and no kernel names. Keys are sorted and times are whole
nanoseconds, so that saving the same recording again changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from msgspec import Struct

from foretrace import own_files
from foretrace.compare.sides import Side
from foretrace.errors import InputError, UsageError, unknown
from foretrace.own_files import Amount, Finite, NotNegative, Positive
from foretrace.sourced import JUDGEMENT, Count

SCHEMA = "foretrace.baselines/1"
_MOST_BYTES = 4 << 20  # a larger file holds something else
_MOST = Count(100, "times of steps that a baseline keeps", JUDGEMENT)


class Baseline(Struct, frozen=True):
    """A Side as its file holds it."""

    device: str
    clock: str
    marked: bool
    has_stacks: bool
    times_ns: tuple[Positive, ...]
    blocks_ns: tuple[Positive, ...]
    parts: dict[Literal["GPU", "wait", "host", "recording"], dict[str, NotNegative]]
    taken_in: dict[str, Amount]
    counts: dict[str, Amount]
    values: dict[str, Finite]
    dtype: str | None
    unprofiled_ns: Positive | None
    product_flops: Amount | None
    environment: dict[str, str] = {}


def is_baselines(path: Path) -> bool:
    """Whether a file holds baselines, by its content."""
    try:
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return False
        document = own_files.parsed(path.read_bytes(), path)
    except (OSError, InputError):  # a recording, or nothing that can be read: others say so
        return False
    return isinstance(document, dict) and document.get("schema") == SCHEMA


def load(path: Path, name: str | None) -> Side:
    """The baseline of this name; without one, the only one there is."""
    known = _read(path)
    if name is None:
        if len(known) != 1:
            listed = ", ".join(map(repr, known)) or "none"
            raise UsageError(f"{path}: which baseline? --baseline NAME says; there are: {listed}")
        name = next(iter(known))
    if name not in known:
        raise unknown(f"{path}: no baseline named {name!r}", name, known)
    try:
        return _side(name, own_files.converted(known[name], Baseline, f"{path}: baseline {name!r}"))
    except InputError as error:
        raise InputError(f"{error}; save it again with --save-baseline {name} --force") from error


def with_baseline(path: Path, name: str, side: Side, values: Mapping[str, float], *, force: bool) -> str:
    """The text of the file with this baseline in it."""
    if not name.strip():
        raise UsageError("--save-baseline: a baseline needs a name")
    known = _read(path) if path.exists() else {}
    if name in known and not force:
        raise UsageError(f"{path} has a baseline {name!r}: will not overwrite without --force")
    known[name] = _document(replace(side, values=dict(values)))
    return (
        json.dumps({"schema": SCHEMA, "baselines": known}, indent=1, sort_keys=True, allow_nan=False) + "\n"
    )


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        raise InputError(f"{path}: no such file; --save-baseline NAME writes one")
    document = own_files.parsed(own_files.read_bytes(path), path)
    known = document.get("baselines") if isinstance(document, dict) else None
    if not isinstance(known, dict) or document.get("schema") != SCHEMA:
        raise InputError(f"{path}: not a file of baselines")
    return known


def _document(side: Side) -> dict[str, Any]:
    return {
        "device": side.device,
        "clock": side.clock,
        "marked": side.marked,
        "has_stacks": side.has_stacks,
        "dtype": side.dtype,
        "times_ns": _few(side.times_ns),
        "blocks_ns": _few(side.blocks_ns),
        "unprofiled_ns": None if side.unprofiled_ns is None else round(side.unprofiled_ns),
        # Halves are those of two steps in the middle.
        "parts": {
            kind: {what: round(ns, 1) for (of_kind, what), ns in side.parts.items() if of_kind == kind}
            for kind in dict.fromkeys(kind for kind, _ in side.parts)
        },
        "taken_in": dict(side.taken_in),
        "product_flops": side.product_flops,
        "counts": dict(side.counts),
        "values": dict(side.values),
        "environment": dict(side.environment),
    }


def _few(times: Sequence[float]) -> list[int]:
    """The times from the shortest to the longest; of many, evenly spread ones, so that the median stays."""
    ordered = np.sort(np.array(times, float))
    if len(ordered) > _MOST:
        ordered = np.quantile(ordered, np.linspace(0, 1, int(_MOST) - 1))
    return [round(float(time)) for time in ordered]


def _side(name: str, saved: Baseline) -> Side:
    fields = {field: getattr(saved, field) for field in saved.__struct_fields__ if field != "parts"}
    parts: dict[tuple[str, str], float] = {
        (kind, what): ns for kind, of_kind in saved.parts.items() for what, ns in of_kind.items()
    }
    return Side(name=name, parts=parts, **fields)
